"""Lines that move behind the rest of their text: which ones, and in which order all lines then stand.

A text is its lines' contents and the breaks between them. Contents change places, breaks do not, so the result holds
every character of the text, whatever kind of break it uses and whether or not it ends in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prefixpilot.pieces import Span
from prefixpilot.volatile.base import Line, Rule, lines

_PASSES = 4


class Block(NamedTuple):
    """Lines ``first`` to ``end`` that move together, and the rule that says so."""

    first: int
    end: int
    rule: Rule


Finder = Callable[[str, Sequence[Line], Sequence[bool]], list[Block]]
"""Blocks of a text, in order, not overlapping; the last argument says for each line whether it is excluded."""


class Layout(NamedTuple):
    """The new order of the lines.

    Attributes:
        order: ``order[i]`` is the line whose content stands in place ``i``.
        moved: the blocks of the text that changed places.
    """

    order: tuple[int, ...]
    moved: tuple[Block, ...]


def settle(text: str, excluded: Sequence[bool], find: Finder) -> Layout | None:
    """Moves what ``find`` finds behind the rest, until it finds nothing more in front of it. O(length).

    ``None`` if nothing moves, or if it does not come to rest in a few passes: such a text is left alone.
    """
    all_lines = tuple(lines(text))
    order = list(range(len(all_lines)))
    moved: tuple[Block, ...] = ()
    current, left_out = text, list(excluded)
    for number in range(_PASSES):
        layout = _behind(current, tuple(lines(current)), find, left_out)
        if layout is None:
            return Layout(tuple(order), moved) if number else None
        order = [order[i] for i in layout.order]
        left_out = [left_out[i] for i in layout.order]
        moved = moved or layout.moved
        current = arranged(text, all_lines, order)
    return None


def arranged(text: str, all_lines: Sequence[Line], order: Sequence[int]) -> str:
    """The text with its lines in another order, its breaks in place."""
    return "".join(
        text[slice(*all_lines[source].content)] + text[slice(*place.ending)]
        for place, source in zip(all_lines, order, strict=True)
    )


def _behind(text: str, all_lines: Sequence[Line], find: Finder, excluded: Sequence[bool]) -> Layout | None:
    """One pass: blocks that stand in front of the last stable line go directly behind it."""
    blocks = find(text, all_lines, excluded)
    movable = [False] * len(all_lines)
    for block in blocks:
        movable[block.first : block.end] = [True] * (block.end - block.first)
    stable = [i for i, line in enumerate(all_lines) if not movable[i] and text[slice(*line.content)].strip()]
    last = stable[-1] if stable else -1
    moved = tuple(block for block in blocks if block.first < last)
    if not moved:
        return None
    front = [i for i in range(last + 1) if not movable[i]]
    back = [i for i in range(last + 1) if movable[i]]
    return Layout((*front, *back, *range(last + 1, len(all_lines))), moved)


def with_cuts(span: Span, cuts: Sequence[tuple[Span, tuple[Span | str, ...]]]) -> list[Span | str]:
    """A span without ``cuts`` that lie inside it, each replaced by its pieces; ``cuts`` are in order."""
    pieces: list[Span | str] = []
    at = span.start
    for cut, instead in cuts:
        pieces += [Span(at, cut.start), *instead]
        at = cut.end
    return [*pieces, Span(at, span.end)]
