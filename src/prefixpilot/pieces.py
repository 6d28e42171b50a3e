"""A text made of another: spans of the original, in any order, and texts that did not stand in it.

What we send in the place of a client's string is always a :data:`Form` of that string. A form holds no text of the
client's, so it is small to keep, and applied to a string it can only ever give back what this very string contains,
and our own annotations.

Offsets count the characters of the decoded string (Python ``str``), ``start`` included, ``end`` not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from prefixpilot.errors import InvalidInputError


class Span(NamedTuple):
    """Characters ``start`` to ``end`` of the original."""

    start: int
    end: int


Piece = Span | str
Form = tuple[Piece, ...]

UNCHANGED: Final[Form] = ()
"""The form of a string that stands as it is, whatever its length."""


class Slot(NamedTuple):
    """What stands in the place of a span of the original; an empty span is a place between two characters."""

    span: Span
    pieces: Form


def apply(form: Form, text: str) -> str:
    """The string that ``form`` makes of ``text``. O(length).

    >>> apply((Span(4, 8), "and ", Span(0, 4)), "one two ")
    'two and one '
    >>> apply(UNCHANGED, "as it is")
    'as it is'

    Raises:
        InvalidInputError: a span reaches beyond ``text``: the form was made of another string.
    """
    if form == UNCHANGED:
        return text
    for piece in form:
        if isinstance(piece, Span) and not 0 <= piece.start <= piece.end <= len(text):
            raise InvalidInputError(
                "form", f"has the span {piece.start}-{piece.end}", f"text has {len(text)} characters"
            )
    return "".join(piece if isinstance(piece, str) else text[piece.start : piece.end] for piece in form)


def fill(length: int, slots: Iterable[Slot]) -> Form:
    """The form in which ``slots`` are filled and all else stands as it is. O(slots log slots).

    Several slots at one empty span are filled in the order given.

    Args:
        length: of the original, in characters.
        slots: in any order; they must not overlap.

    >>> fill(9, [Slot(Span(0, 3), (Span(6, 9),)), Slot(Span(6, 9), (Span(0, 3),))])
    (Span(start=6, end=9), Span(start=3, end=6), Span(start=0, end=3))
    >>> fill(9, [])
    ()

    Raises:
        InvalidInputError: two slots overlap, or one reaches beyond ``length``.
    """
    pieces: list[Piece] = []
    at = 0
    for span, content in sorted(slots, key=lambda slot: slot.span):
        if not at <= span.start <= span.end <= length:
            raise InvalidInputError("slots", f"has {span.start}-{span.end} after {at} of {length}", "keep them apart")
        pieces += [Span(at, span.start), *content]
        at = span.end
    if not pieces:
        return UNCHANGED
    return _joined([*pieces, Span(at, length)])


def composed(outer: Form, inner: Form) -> Form:
    """The form that makes of a text what ``outer`` makes of what ``inner`` makes of it. O(pieces of both x log).

    >>> inner = (Span(4, 7), " ", Span(0, 3))
    >>> apply(inner, "one two"), apply(composed((Span(0, 3), "!"), inner), "one two")
    ('two one', 'two!')

    Raises:
        InvalidInputError: a span of ``outer`` reaches beyond what ``inner`` makes.
    """
    if inner == UNCHANGED:
        return outer
    if outer == UNCHANGED:
        return inner
    starts = [0, *accumulate(map(_length, inner))]
    pieces: list[Piece] = []
    for piece in outer:
        if isinstance(piece, str):
            pieces.append(piece)
            continue
        if not 0 <= piece.start <= piece.end <= starts[-1]:
            reason = f"has the span {piece.start}-{piece.end}"
            raise InvalidInputError("outer", reason, f"inner makes {starts[-1]} characters")
        at = max(bisect_right(starts, piece.start) - 1, 0)
        while at < len(inner) and starts[at] < piece.end:
            pieces.append(_part(inner[at], max(piece.start - starts[at], 0), piece.end - starts[at]))
            at += 1
    return _joined(pieces)


def _length(piece: Piece) -> int:
    return len(piece) if isinstance(piece, str) else piece.end - piece.start


def _part(piece: Piece, start: int, end: int) -> Piece:
    """Characters ``start`` to ``end`` of a piece, or to its own end."""
    if isinstance(piece, str):
        return piece[start:end]
    return Span(piece.start + start, min(piece.start + end, piece.end))


def permuted(spans: Sequence[Span], order: Sequence[int]) -> list[Slot]:
    """Slots that put span ``order[i]`` in the place of span ``i``; for :func:`fill`.

    >>> fill(9, permuted([Span(0, 3), Span(4, 9)], [1, 0]))
    (Span(start=4, end=9), Span(start=3, end=4), Span(start=0, end=3))
    """
    return [Slot(place, (spans[source],)) for place, source in zip(spans, order, strict=True)]


def _joined(pieces: Iterable[Piece]) -> Form:
    """Without empty pieces, neighbours that belong together joined."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str):
            if isinstance(last, str):
                joined[-1] = last + piece
            elif piece:
                joined.append(piece)
        elif piece.start < piece.end:
            if isinstance(last, Span) and last.end == piece.start:
                joined[-1] = Span(last.start, piece.end)
            else:
                joined.append(piece)
    return tuple(joined) or ("",)
