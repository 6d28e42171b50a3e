"""When a restored history no longer fits the engine's window (invariant 4b). Pure.

The oldest turns then go as the client sent them. What later turns only referred to, and stood in those, is put into the
first turn that refers to it, under the label that it had: so every annotation still has its target before it. The turns
that are left are a new branch. They are cut down to a part of the window, not just below it, so that the prompt keeps
one form for as many turns as possible until it is cut again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple

from prefixpilot.core import BlockId, Plan
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts.render import block_parts
from prefixpilot.proxy.memory.records import Restoration, Span, Turn

LOW_WATER: Final = 0.75
"""Share of the window that a history is cut down to."""


class LaidOut(NamedTuple):
    """Where each block of a plan stands in a text, and what the text is made of, joined. Nothing is known: both empty.

    Attributes:
        parts: what stands before a block's words, the words (the block's own ``str``), what stands between, and so on.
    """

    spans: tuple[Span, ...] = ()
    parts: tuple[str, ...] = ()


def laid_out(plan: Plan, text: str) -> LaidOut:
    """How a plan stands in the text that it was rendered to; nothing if the text is another rendering. O(bytes)."""
    try:
        parts = block_parts(plan.blocks, plan.templates)
    except InvalidRequestError:
        return LaidOut()
    if not parts:
        return LaidOut((), (text,))
    del parts[-1]
    *starts, end = accumulate(map(len, parts), initial=0)
    if not all(map(text.startswith, parts, starts)):
        return LaidOut()
    spans = tuple(map(_span, zip(starts[::3], (*starts[2::3], end), strict=True)))
    return LaidOut(spans, (*parts, text[end:]))


def spans_of(plan: Plan, text: str) -> tuple[Span, ...]:
    """The spans of :func:`laid_out`."""
    return laid_out(plan, text).spans


_span = partial(tuple.__new__, Span)
"""``Span._make`` without the Python frame."""


def text_bytes(text: str) -> int:
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def fitted(restored: Restoration, other_bytes: int, window_bytes: int, newest: int) -> Restoration:
    """The restoration, cut down to what fits; as it is if all fits, or nothing can be cut. O(bytes of its texts).

    Args:
        other_bytes: all else that the prompt will hold: the client's own text, and that of this turn's blocks.
        window_bytes: that the engine takes.
        newest: index of the newest user message: its own turn, if it is among the restored, always stays.
    """
    indexes = sorted(restored.turns)
    path = [restored.turns[i] for i in indexes]
    sizes = [text_bytes(turn.text) for turn in path]
    if other_bytes + sum(sizes) <= window_bytes:
        return restored
    last = len(path) - 1 if newest in restored.turns else len(path)
    first = _first_kept(path, sizes, window_bytes * LOW_WATER - other_bytes, last)
    if first is None or not any(sizes[:first]):
        return restored
    kept = _branch(path, first)
    dropped = restored.dropped + sum(map(bool, sizes[:first]))
    if kept:
        kept[0].dropped = dropped
    return replace(restored, turns=dict(zip(indexes[first:], kept, strict=True)), dropped=dropped)


class _Reference(NamedTuple):
    """A paragraph that only refers to a block, and the turn in which that block stands."""

    block: BlockId
    turn: int
    place: int
    target: int


def _references(path: Sequence[Turn]) -> Iterator[_Reference]:
    """All references across turns, in the order of the prompt."""
    shown: dict[BlockId, int] = {}
    for n, turn in enumerate(path):
        for place, planned in enumerate(turn.plan.blocks if turn.plan is not None else ()):
            if planned.location_annotation is None:
                shown.setdefault(planned.block_id, n)
            elif shown.get(planned.block_id, n) < n:
                yield _Reference(planned.block_id, n, place, shown[planned.block_id])


def _first_kept(path: Sequence[Turn], sizes: Sequence[int], room: float, last: int) -> int | None:
    """The first turn to keep, at most ``last``, so that those from it on fit, with all that they refer to: or as little
    of them as can be. ``None`` if what they refer to cannot be found. O(turns x references)."""
    references = list(_references(path))
    found = None
    for first in range(last + 1):
        needed = {r.block: r for r in reversed(references) if r.target < first <= r.turn}
        if all(path[r.turn].spans and path[r.target].spans for r in needed.values()):
            found = first
            size = sum(sizes[first:]) + sum(text_bytes(_shown(path, r)) for r in needed.values())
            if size <= room:
                break
    return found


def _shown(path: Sequence[Turn], reference: _Reference) -> str:
    """The paragraph that a reference points to."""
    turn = path[reference.target]
    blocks = turn.plan.blocks if turn.plan is not None else ()
    return next(
        turn.text[span.start : span.end]
        for planned, span in zip(blocks, turn.spans, strict=True)
        if planned.block_id == reference.block and planned.location_annotation is None
    )


def _branch(path: Sequence[Turn], first: int) -> list[Turn]:
    """New turns for those from ``first`` on, each the parent of the next; what they refer to before ``first`` is put
    into the first place that refers to it."""
    moved: dict[BlockId, _Reference] = {}
    for reference in _references(path):
        if reference.target < first <= reference.turn:
            moved.setdefault(reference.block, reference)
    branch: list[Turn] = []
    for n in range(first, len(path)):
        own = {r.place: _shown(path, r) for r in moved.values() if r.turn == n}
        branch.append(_form(path[n], own, branch[-1] if branch else None))
    return branch


def _form(turn: Turn, expanded: Mapping[int, str], parent: Turn | None) -> Turn:
    """A turn with some of its references replaced by the paragraphs that they point to, behind another parent."""
    text, spans, plan = turn.text, turn.spans, turn.plan
    if expanded and plan is not None:
        pieces, spans = _replaced(turn, expanded)
        text = "".join(pieces)
        blocks = (b._replace(location_annotation=None) if i in expanded else b for i, b in enumerate(plan.blocks))
        plan = replace(plan, blocks=tuple(blocks), opener=None)
    elif plan is not None:
        plan = replace(plan, opener=None)
    labels = dict(parent.record.labels) if parent is not None else {}
    for planned in plan.blocks if plan is not None else ():
        if planned.location_annotation is None:
            labels.setdefault(planned.block_id, planned.label)
    turns = (parent.record.turns if parent is not None else 0) + (plan is not None or bool(turn.text))
    return replace(
        turn,
        parent=parent,
        text=text,
        spans=spans,
        plan=plan,
        record=replace(turn.record, turns=turns, labels=MappingProxyType(labels), opener=None),
        replies=turn.replies.copy(),
        dropped=0,
        names=(),
        stem=turn.stem or turn.identity,
        _identity=None,
        _headings=None,
        _fixed_size=0,
    )


def _replaced(turn: Turn, expanded: Mapping[int, str]) -> tuple[list[str], tuple[Span, ...]]:
    """The pieces of the text with those paragraphs in place, and where each paragraph is then."""
    pieces: list[str] = []
    spans: list[Span] = []
    at = length = 0
    for place, span in enumerate(turn.spans):
        between = turn.text[at : span.start]
        paragraph = expanded.get(place, turn.text[span.start : span.end])
        pieces += (between, paragraph)
        start = length + len(between)
        length = start + len(paragraph)
        spans.append(Span(start, length))
        at = span.end
    return [*pieces, turn.text[at:]], tuple(spans)
