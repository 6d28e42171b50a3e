"""A model that compares answers, behind any OpenAI-compatible API.

Each answer is compared with that of arrival twice, in both orders, since judges lean to a position (Zheng et al. 2023,
arXiv 2306.05685). A verdict counts if both agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from prefixpilot.bench.intervals import Interval, paired
from prefixpilot.bench.kept import KeptLines
from prefixpilot.bench.quality.cases import QualityArm
from prefixpilot.bench.quality.runner import Result
from prefixpilot.engines.doctor.client import Client
from prefixpilot.errors import EngineError

JUDGED: Final = "judged.jsonl"
TIMEOUT_S: Final = 300.0

RUBRIC: Final = """\
You compare two answers to a question. The reference answers are right. The better answer is the one that says what a \
reference answer says; an answer that adds something false is worse; length and style do not count. If both are as \
good or as bad, it is a tie. Think if you need to, then end with one line: VERDICT: A, VERDICT: B or VERDICT: TIE."""

Verdict: TypeAlias = Literal["A", "B", "TIE"]
_VERDICT: Final = re.compile(r"verdict\W*(A|B|TIE)\b", re.IGNORECASE)


class Judge:
    """Asks for verdicts.

    Args:
        url: base URL, with or without ``/v1``.
        key: sent as a bearer token.
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self.model = model
        self._client = Client(url, key, TIMEOUT_S)

    def verdict(self, question: str, references: Sequence[str], first: str, second: str) -> Verdict | None:
        """Which answer is better, A (``first``) or B; ``None`` if the reply does not say.

        Raises:
            EngineError: it did not answer.
        """
        about = f"Question: {question}\nReference answers: {'; '.join(references)}"
        asked = f"{about}\n\nAnswer A: {first}\n\nAnswer B: {second}"
        messages = [{"role": "system", "content": RUBRIC}, {"role": "user", "content": asked}]
        answer = self._client.post(
            "/v1/chat/completions", {"model": self.model, "messages": messages, "temperature": 0}
        )
        try:
            return verdict_of(str(answer.json()["choices"][0]["message"]["content"]))
        except (TypeError, LookupError):
            shown = answer.body[:300].decode("utf-8", "replace")
            raise EngineError(f"the judge answered with {answer.status or 'no answer'}: {shown}") from None


def verdict_of(reply: str) -> Verdict | None:
    """The last verdict in a reply.

    >>> verdict_of("A is right. **Verdict: B**"), verdict_of("Both.")
    ('B', None)
    """
    found = _VERDICT.findall(reply)
    return {"a": "A", "b": "B", "tie": "TIE"}[found[-1].lower()] if found else None  # type: ignore[return-value]


class Judged(NamedTuple):
    """An arm against arrival.

    Attributes:
        cases: in all.
        same: answered alike, so not shown to the judge.
        better, worse: by both verdicts.
        even: ties, and pairs whose verdict went with the position.
        swayed: of these, those that went with the position.
        unreadable: a reply had no verdict; they count as nothing.
        net: better less worse, as a share of the cases that have a verdict or the same answer.
    """

    arm: QualityArm
    cases: int
    same: int
    better: int
    worse: int
    even: int
    swayed: int
    unreadable: int
    net: Interval


class _Pair(NamedTuple):
    case: int
    arm: QualityArm
    answer: str
    arrival: str


def judge_results(
    judge: Judge,
    results: Sequence[Result],
    folder: Path,
    about: Mapping[str, Any],
    on_answer: Callable[[], object] = lambda: None,
) -> list[Judged]:
    """Every arm against arrival. What ``folder`` holds already is not asked again.

    Raises:
        ConfigError: the folder's verdicts are of something else.
        EngineError: the judge failed; what is complete is kept.
    """
    kept = KeptLines(folder / JUDGED, {"judged": {**about, "judge": judge.model}})
    known = {_Pair(*line["pair"]): tuple(line["verdicts"]) for line in kept.found}
    by_arm: dict[QualityArm, list[tuple[Verdict | None, Verdict | None] | None]] = {}
    for pair, result in _pairs(results):
        if pair.answer == pair.arrival:
            by_arm.setdefault(pair.arm, []).append(None)
            continue
        if pair not in known:
            question, references = result.case.question, result.case.references
            forward = judge.verdict(question, references, pair.answer, pair.arrival)
            known[pair] = forward, judge.verdict(question, references, pair.arrival, pair.answer)
            kept.add({"pair": list(pair), "verdicts": list(known[pair])})
        by_arm.setdefault(pair.arm, []).append(known[pair])
        on_answer()
    return [_judged(arm, verdicts) for arm, verdicts in by_arm.items()]


def _pairs(results: Iterable[Result]) -> Iterator[tuple[_Pair, Result]]:
    arrival: dict[int, str] = {}
    for result in results:
        number, answer = result.case.number, result.scored.answer
        if result.arm == "arrival":
            arrival[number] = answer
    for result in results:
        if result.arm != "arrival":
            number = result.case.number
            yield _Pair(number, result.arm, result.scored.answer, arrival[number]), result


def _judged(arm: QualityArm, verdicts: Sequence[tuple[Verdict | None, Verdict | None] | None]) -> Judged:
    better = verdicts.count(("A", "B"))
    worse = verdicts.count(("B", "A"))
    unreadable = sum(pair is not None and None in pair for pair in verdicts)
    same = verdicts.count(None)
    swayed = verdicts.count(("A", "A")) + verdicts.count(("B", "B"))
    even = len(verdicts) - same - better - worse - unreadable
    readable = [pair for pair in verdicts if pair is None or None not in pair]
    points = np.array([float(pair == ("A", "B")) - float(pair == ("B", "A")) for pair in readable] or [0.0])
    net = paired(np.zeros_like(points), points, lambda base, mine: (mine - base).mean(axis=-1))
    return Judged(arm, len(verdicts), same, better, worse, even, swayed, unreadable, net)


def judged_markdown(found: Sequence[Judged], model: str) -> str:
    """A table, under a line that names the judge."""
    heads = "| arm | cases | same answer | better | worse | even | of these by position | no verdict | net |"
    rows = [
        f"| {j.arm} | {j.cases} | {j.same} | {j.better} | {j.worse} | {j.even} | {j.swayed} | {j.unreadable} "
        f"| {j.net.value:+.3f} ({j.net.low:+.3f} to {j.net.high:+.3f}) |"
        for j in found
    ]
    rule = "| --- |" + " ---: |" * 8
    return "\n".join([f"Against arrival, judged by {model}:", "", heads, rule, *rows]) + "\n"
