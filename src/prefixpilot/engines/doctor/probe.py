"""The live probe: prompts to send one after another, and what the engine's counts of them say. Pure.

A, A again, A with its documents in another order; then a conversation of two turns. The text is invented here, and a
mark in front of it makes it one that the engine has not seen. Documents are shorter where the engine's window is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prefixpilot.engines.doctor.findings import Finding

DOCUMENTS: Final = 8
LINES: Final = 9
"""Of a document; fewer where they do not fit."""
_BYTES_A_TOKEN: Final = 2.5
"""Fewer than tokenizers make of this text, so that what is taken to fit does."""
_ROOM: Final = 120
"""Tokens of a chat template, and of an answer."""
_PLACES: Final = ("harbour", "library", "market", "museum", "station", "school", "garden", "theatre")
NAME: Final = "probe"


class Counts(NamedTuple):
    """What an answer reported.

    Attributes:
        prompt_tokens, cached_tokens: ``None``: not reported.
        text: the reply.
        error: why there is no answer; ``None`` if there is one.
        refused: it is the request that the engine would not take, as one that is too long for it.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    text: str = ""
    error: str | None = None
    refused: bool = False


class Step(NamedTuple):
    """One request of the probe, and what came of it."""

    name: str
    counts: Counts


class Probed(NamedTuple):
    """What was sent, and to what.

    Attributes:
        steps: in order.
        lines: of each document; 0: nothing was sent, since nothing would have fitted.
        window_tokens, page_tokens: of the engine; ``None``: it does not say.
    """

    steps: tuple[Step, ...] = ()
    lines: int = LINES
    window_tokens: int | None = None
    page_tokens: int | None = None


def lines_that_fit(window_tokens: int | None) -> int:
    """How long documents can be for a window; 0: even the shortest do not fit.

    >>> lines_that_fit(None), lines_that_fit(8192), lines_that_fit(1024), lines_that_fit(256)
    (9, 9, 2, 0)
    """
    for lines in range(LINES, 0, -1):
        tokens = len(question("0" * 12, documents(lines))) / _BYTES_A_TOKEN + _ROOM
        if window_tokens is None or tokens <= window_tokens:
            return lines
    return 0


def documents(lines: int = LINES) -> tuple[str, ...]:
    """Eight documents of some 17 tokens a line, the first words of which differ."""
    return tuple(_document(place, number, lines) for number, place in enumerate(_PLACES[:DOCUMENTS], start=1))


def _document(place: str, number: int, lines: int) -> str:
    rules = (
        f"Rule {line} of the {place}: visitor number {number * 10 + line} enters by door {line * number % 7 + 1} "
        f"and leaves before {8 + line} o'clock."
        for line in range(1, lines + 1)
    )
    return f"The {place}.\n" + "\n".join(rules)


def question(mark: str, order: Sequence[str]) -> str:
    """A prompt of documents in that order; ``mark`` stands in front of them."""
    return f"Case {mark}.\n\n" + "\n\n".join(order) + "\n\nWhich door does the third visitor of the museum take?"


def body(model: str | None, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """A chat request for an answer of a few tokens."""
    named = {} if model is None else {"model": model}
    return {**named, "messages": list(messages), "max_tokens": 8, "temperature": 0}


def read_counts(document: Mapping[str, Any]) -> Counts:
    """Counts of an OpenAI chat answer: ``usage``, DeepSeek's names, or llama.cpp's ``timings``."""
    usage = _object(document.get("usage"))
    timings = _object(document.get("timings"))
    cached = _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    for held, name in ((usage, "prompt_cache_hit_tokens"), (timings, "cache_n")):
        cached = _count(held.get(name)) if cached is None else cached
    choices = document.get("choices")
    first = _object(choices[0]) if isinstance(choices, list) and choices else {}
    text = _object(first.get("message")).get("content")
    return Counts(_count(usage.get("prompt_tokens")), cached, text if isinstance(text, str) else "")


def judge(probed: Probed) -> tuple[Finding, ...]:
    """Findings on the answers to ``A``, ``A again``, ``A in another order``, ``turn 1``, ``turn 2``, as far as sent."""
    counts = {step.name: step.counts for step in probed.steps}
    window, page = probed.window_tokens, probed.page_tokens or 1
    if not probed.lines:
        what = f"was not sent: the window of {window:,} tokens is too small for it"
        return (Finding(NAME, "unknown", what, "a larger context window, for which documents are worth ordering"),)
    failed = next((step for step in probed.steps if step.counts.error is not None), None)
    if failed is not None:
        return (Finding(NAME, "fail", f"{failed.name}: {failed.counts.error}", "the engine's log says why"),)
    again = counts["A again"]
    if again.cached_tokens is None and all(step.counts.cached_tokens is None for step in probed.steps):
        fix = "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report"
        return (Finding("cached_tokens", "fail", "no answer says how many tokens were reused", fix),)
    reported = Finding("cached_tokens", "ok", "answers say how many tokens were reused")
    return (
        *_shortened(probed),
        reported,
        _reuse(again, page),
        _order(counts["A in another order"], again),
        _turn(counts["turn 1"], counts["turn 2"], page),
    )


def _shortened(probed: Probed) -> Iterator[Finding]:
    if probed.lines < LINES:
        window = probed.window_tokens
        room = "the engine took no longer ones" if window is None else f"its window is {window:,} tokens"
        yield Finding(NAME, "ok", f"documents of {probed.lines} lines in place of {LINES}: {room}")


def _reuse(again: Counts, page: int) -> Finding:
    share = _share(again.cached_tokens, again.prompt_tokens, page)
    what = f"the same prompt again: {_said(again)}"
    if share is None:
        return Finding("prefix caching", "unknown", f"{what}{_fills_no_page(again.prompt_tokens, page)}")
    if share < 0.5:
        fix = "turn prefix caching on; if it is on, its cache is too small or other replicas answered"
        return Finding("prefix caching", "fail", what, fix)
    return Finding("prefix caching", "ok", what)


def _order(other: Counts, again: Counts) -> Finding:
    what = f"the same documents in another order: {_said(other)}"
    if not other.prompt_tokens:
        return Finding("document order", "unknown", what)
    saved = max(0, (again.cached_tokens or 0) - (other.cached_tokens or 0))
    return Finding("document order", "ok", f"{what}; {saved:,} tokens that ordering keeps")


def _turn(first: Counts, second: Counts, page: int) -> Finding:
    what = f"turn 2 of a conversation: {_said(second)}, turn 1 had {first.prompt_tokens}"
    share = _share(second.cached_tokens, first.prompt_tokens, page)
    if share is None:
        return Finding("turns", "unknown", f"{what}{_fills_no_page(first.prompt_tokens, page)}")
    if share < 0.8:
        fix = (
            "a chat template that keeps earlier turns as they were; or a router that keeps a conversation on a replica"
        )
        return Finding("turns", "fail", what, fix)
    return Finding("turns", "ok", what)


def _said(counts: Counts) -> str:
    cached = "no count" if counts.cached_tokens is None else f"{counts.cached_tokens:,}"
    return f"{cached} of {counts.prompt_tokens} tokens reused"


def _fills_no_page(tokens: int | None, page: int) -> str:
    return f"; that fills no page of {page} tokens" if tokens is not None and tokens < page else ""


def _share(part: int | None, whole: int | None, page: int) -> float | None:
    """Of the full pages of a prompt; its last token is always computed. ``None``: not known, or none is full."""
    pages = 0 if whole is None else (whole - 1) // page * page
    return None if part is None or pages < 1 else part / pages


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
