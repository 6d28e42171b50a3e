"""Lines that move behind the rest of their text: which ones, and in which order all lines then stand.

A text is its lines' contents and the breaks between them. Contents change places, breaks do not, so the result holds
every character of the text, whatever kind of break it uses and whether or not it ends in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefixpilot.pieces import Span
from prefixpilot.volatile.base import Line, Rule


class Block(NamedTuple):
    """Lines ``first`` to ``end`` that move together, and the rule that says so."""

    first: int
    end: int
    rule: Rule


class Layout(NamedTuple):
    """The new order of the lines.

    Attributes:
        order: ``order[i]`` is the line whose content stands in place ``i``.
        moved: the blocks that changed places.
    """

    order: Sequence[int]
    moved: tuple[Block, ...]


def behind(text: str, all_lines: Sequence[Line], blocks: Sequence[Block]) -> Layout:
    """Blocks that stand in front of the last line that stays go directly behind it, in their order. O(lines).

    Args:
        blocks: not overlapping.
    """
    movable = [False] * len(all_lines)
    for block in blocks:
        movable[block.first : block.end] = [True] * (block.end - block.first)
    staying = (i for i in reversed(range(len(all_lines))) if not movable[i])
    last = next((i for i in staying if text[slice(*all_lines[i].content)].strip()), -1)
    moved = tuple(block for block in blocks if block.first < last)
    if not moved:
        return Layout(range(len(all_lines)), ())
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
