"""Which questions are asked, and what each arm sends for them. Pure: no engine is asked.

The whole workload is planned, arm by arm, as if every request of it were sent: what an order is depends on what came
before. Of the requests that can be scored a sample is drawn by a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from prefixpilot.bench.comparison.prepared import BenchRequest, Preparation, prepare
from prefixpilot.blocks import estimate_tokens
from prefixpilot.config import Annotate, PilotConfig
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import DEFAULT_TENANT, BlockId, ConversationId, Plan, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.workloads import Workload, WorkloadRequest

QualityArm = Literal["arrival", "order", "annotated", "deduped", "scheduled"]
QUALITY_ARMS: Final[tuple[QualityArm, ...]] = get_args(QualityArm)
DEFAULT_ARMS: Final[tuple[QualityArm, ...]] = ("arrival", "order", "annotated", "deduped")

INSTRUCTION: Final = "Answer the question from the documents. Give only the answer, as short as possible."

Messages: TypeAlias = tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One question, and its prompt in every arm.

    Attributes:
        number: of the request, in arrival order.
        question: the user's words.
        references: reference answers, the first of which is scored by likelihood; at least one.
        evidence: texts that hold the answer, as the workload says; ``None`` for one whose text is not known.
        prompts: chat messages by arm: an instruction, the turns before, and blocks and question of this one.
    """

    number: int
    question: str
    references: tuple[str, ...]
    evidence: tuple[str | None, ...]
    prompts: Mapping[QualityArm, Messages]

    def text(self, arm: QualityArm) -> str:
        """All that the arm's prompt says."""
        return "\n\n".join(message["content"] for message in self.prompts[arm])


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is asked, and in which words.

    Attributes:
        arms: what is compared; ``arrival`` is needed.
        sample: so many requests; ``None``: all that can be scored.
        seed: of the sample.
        k: blocks of a request at most; ``None``: all.
        max_prompt_tokens: requests with a longer prompt in some arm (estimated) are not asked; ``None``: no bound.
        min_turn: in conversations, only questions with so many turns before them.
        multi_turn: sessions are conversations, their earlier answers the reference answers.
        only_changed: only requests for which some arm sends another prompt than arrival.
        annotate: how many blocks the order annotation names.
        instruction: the system message.
    """

    arms: tuple[QualityArm, ...] = DEFAULT_ARMS
    sample: int | None = None
    seed: int = 0
    k: int | None = None
    max_prompt_tokens: int | None = None
    min_turn: int = 0
    multi_turn: bool = False
    only_changed: bool = False
    annotate: Annotate = field(default_factory=lambda: PilotConfig().annotate)
    instruction: str = INSTRUCTION

    def __post_init__(self) -> None:
        unknown = next((arm for arm in self.arms if arm not in QUALITY_ARMS), None)
        if unknown is not None:
            raise ConfigError("arms", f"has {unknown!r}", f"use some of: {', '.join(QUALITY_ARMS)}")
        if "arrival" not in self.arms:
            raise ConfigError("arms", f"is {', '.join(self.arms)}", "name arrival too: the others are compared with it")
        for name in ("sample", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(name, f"is {value!r}", "use an int of 1 or more, or leave it out")


class Cases(NamedTuple):
    """What was drawn.

    Attributes:
        cases: in random order: the first so many of them are a sample too.
        requests: of the workload.
        scorable: of them, those with a reference answer, a question and a prompt that is short enough.
        changed: of the scorable ones, those for which some arm sends another prompt than arrival.
    """

    cases: tuple[Case, ...]
    requests: int
    scorable: int
    changed: int


def draw_cases(workload: Workload, how: Sampling) -> Cases:
    """Plan the workload in every arm, and draw a sample of what can be scored. O(arms x requests x k).

    Raises:
        ConfigError: nothing can be scored.
    """
    requests = prepare(workload, Preparation(k=how.k, multi_turn=how.multi_turn))
    book = _Book(workload.requests, requests, how, {arm: _turns(arm, requests, how) for arm in how.arms})
    found = [request.number for request in requests if book.can_be_scored(request.number)]
    changed = [number for number in found if book.is_changed(number)]
    eligible = changed if how.only_changed else found
    if not eligible:
        remedy = "give a workload with texts, questions and answers, or allow longer prompts"
        raise ConfigError("workload", "has no request that can be scored", remedy)
    drawn = list(eligible)
    Random(how.seed).shuffle(drawn)
    return Cases(tuple(map(book.case, drawn[: how.sample])), len(requests), len(found), len(changed))


class _Turn(NamedTuple):
    """What an arm sends for a request.

    Attributes:
        plan: of its blocks.
        before: number of the request whose turn stands before it; ``None``: it is the first.
        depth: turns before it.
        digest, tokens: of the blocks of this turn and of all before it; the length is estimated.
    """

    plan: Plan
    before: int | None
    depth: int
    digest: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class _Book:
    """The workload as each arm sends it. Texts are rendered when a case is made, not before."""

    entries: Sequence[WorkloadRequest]
    requests: Sequence[BenchRequest]
    how: Sampling
    turns: Mapping[QualityArm, Sequence[_Turn]]

    def can_be_scored(self, number: int) -> bool:
        """Whether there is a reference, a question, and a prompt of allowed length in every arm."""
        entry, limit = self.entries[number], self.how.max_prompt_tokens
        if not entry.answers or entry.query is None or self.turns["arrival"][number].depth < self.how.min_turn:
            return False
        if any(block.text is None for block in entry.request.blocks):
            return False
        return limit is None or all(turns[number].tokens <= limit for turns in self.turns.values())

    def is_changed(self, number: int) -> bool:
        """Whether some arm sends another prompt than arrival."""
        return len({turns[number].digest for turns in self.turns.values()}) > 1

    def case(self, number: int) -> Case:
        """The request as a case."""
        entry = self.entries[number]
        prompts = {arm: self._messages(arm, number) for arm in self.turns}
        evidence = tuple(self._known(number, block) for block in entry.evidence)
        return Case(number, self.requests[number].question, entry.answers, evidence, prompts)

    def _messages(self, arm: QualityArm, number: int) -> Messages:
        later: list[Mapping[str, str]] = []
        turns = self.turns[arm]
        current: int | None = number
        while current is not None:
            blocks, question = render_blocks(turns[current].plan), self.requests[current].question
            later.append({"role": "user", "content": f"{blocks}\n\n{question}" if blocks else question})
            current = turns[current].before
            if current is not None:
                later.append({"role": "assistant", "content": _reply(self.entries[current])})
        return ({"role": "system", "content": self.how.instruction}, *reversed(later))

    def _known(self, number: int, block: BlockId) -> str | None:
        """The text of a block, if this request or a turn before it was given the block."""
        turns = self.turns["arrival"]
        current: int | None = number
        while current is not None:
            for given in self.entries[current].request.blocks:
                if given.id == block:
                    return given.text
            current = turns[current].before
        return None


_START: Final = _Turn(Plan(RequestId("-"), DEFAULT_TENANT, "", ()), None, -1, b"", 0)


def _turns(arm: QualityArm, requests: Sequence[BenchRequest], how: Sampling) -> list[_Turn]:
    newest: dict[str, int] = {}
    turns: list[_Turn] = []
    for request, plan in zip(requests, _plans(arm, requests, how), strict=True):
        text = render_blocks(plan)
        before = newest.get(request.session)
        past = _START if before is None else turns[before]
        digest = hashlib.blake2b(past.digest + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        tokens = past.tokens + estimate_tokens(text) + estimate_tokens(request.question)
        turns.append(_Turn(plan, before, past.depth + 1, digest, tokens))
        newest[request.session] = request.number
    return turns


def _reply(entry: WorkloadRequest) -> str:
    """What the assistant said in an earlier turn: the reference answer, the same in every arm."""
    return entry.answers[0] if entry.answers else ""


def _plans(arm: QualityArm, requests: Sequence[BenchRequest], how: Sampling) -> list[Plan]:
    """What the arm sends, by the number of the request."""
    pilot = ContextPilot(PilotConfig(annotate=0 if arm == "order" else how.annotate))
    asked = [Request(r.blocks, RequestId(str(r.number)), ConversationId(r.session)) for r in requests]
    if arm == "scheduled":
        planned = {entry.position: entry.plan for entry in pilot.optimize_batch(asked)}
        return [planned[position] for position in range(len(asked))]
    records: dict[str, ConversationRecord] = {}
    plans = []
    for request in asked:
        record = records.get(str(request.conversation_id), NEW_CONVERSATION)
        plan = _plan(arm, pilot, request, record)
        records[str(request.conversation_id)] = record.after(plan)
        plans.append(plan)
    return plans


def _plan(arm: QualityArm, pilot: ContextPilot, request: Request, record: ConversationRecord) -> Plan:
    if arm == "arrival":
        return pilot.as_given(request, record)
    plan = pilot.propose(request, record if arm == "deduped" else replace(record, labels={}))
    pilot.learn(plan)
    return plan
