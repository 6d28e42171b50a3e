"""Long elements of arrays, known by how they are written: what came before is not read a second time.

The same documents come again and again, in other orders. An element that is written like one that has been read is that
one: a string or an object says itself where it ends, so that to compare its characters is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from sys import getsizeof
from typing import Any, Final, NamedTuple, TypeAlias

from prefixpilot.generations import Generations
from prefixpilot.jsontext.layout import end_of_space

Scan: TypeAlias = Callable[[str, int], tuple[Any, int]]
"""Reads the value that begins at a character; the value, and where it ends. As ``json``'s ``scan_once``."""

SHORTEST: Final = 256
"""Characters of an element that is kept: what is shorter is read as fast."""

MOST_MEMBERS: Final = 8

_NEXT_ONE: Final = (', "', ", {")
"""How ``json.dumps`` writes that another string or object follows."""


class _Element(NamedTuple):
    """An element that was read: a string, or an object of such values, which nobody changes.

    Attributes:
        written: how it was written; of a string without escapes what is between its quotes, which is the value itself:
            so the memory that is compared is the memory that is sent on.
        quotes: 1 if ``written`` stands between quotes, else 0.
    """

    written: str
    value: Any
    quotes: int


class KnownElements:
    """Long strings and objects of strings that have been read as elements. Bounded; threads may share it.

    An element is looked up by 64 of its characters; of those that have the same ones there, the last one is kept.

    Args:
        max_bytes: of all that is kept: what was written, and as much for its values.
        members: of a body, those whose arrays are read so.
    """

    def __init__(self, max_bytes: int, members: Iterable[str]) -> None:
        self.members = frozenset(members)
        self._kept: Generations[tuple[str, str], _Element] = Generations(max_bytes, _size)

    @property
    def size(self) -> int:
        """Bytes held: an estimate."""
        return self._kept.size

    def array(self, text: str, at: int, scan: Scan, plain: Callable[[], bool]) -> tuple[list[Any], int]:
        """The array that begins at ``at``, and where it ends; as ``scan`` reads it. O(its length), and little for what
        is known of it.

        Args:
            plain: whether no object that was read so far has a key twice.

        Raises:
            StopIteration, IndexError, json.JSONDecodeError: it is broken.
        """
        values: list[Any] = []
        at = end_of_space(text, at + 1)
        if text[at] == "]":
            return values, at + 1
        used_lately = self._kept.newer.get
        while True:
            known = used_lately((text[at : at + 32], text[at + 128 : at + 160]))
            if known is None or not (end := _end(known, text, at)):
                value, end = self._element(text, at, scan, plain)
                values.append(value)
            else:
                values.append(known.value)
            at = end
            if text.startswith(_NEXT_ONE, at):
                at += 2
                continue
            at = end_of_space(text, at)
            if text[at] == "]":
                return values, at + 1
            if text[at] != ",":
                raise json.JSONDecodeError("no comma between elements", text, at)
            at = end_of_space(text, at + 1)

    def _element(self, text: str, at: int, scan: Scan, plain: Callable[[], bool]) -> tuple[Any, int]:
        key = text[at : at + 32], text[at + 128 : at + 160]
        known = self._kept.get(key)
        if known is not None and (end := _end(known, text, at)):
            return known.value, end
        value, end = scan(text, at)
        if end - at >= SHORTEST and _is_kept(value) and plain():
            as_it_is = type(value) is str and len(value) == end - at - 2
            self._kept.put(key, _Element(value if as_it_is else text[at:end], value, int(as_it_is)))
        return value, end

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

    def check_invariants(self) -> None:
        """Raises InvariantError: see :class:`prefixpilot.generations.Generations`."""
        self._kept.check_invariants()


def _end(element: _Element, text: str, at: int) -> int:
    """Where the element that begins at ``at`` ends if it is written like this one; else 0. Raises IndexError: the text
    has no end of it."""
    written, _, quotes = element
    if not text.startswith(written, at + quotes):
        return 0
    end = at + quotes + len(written)
    if not quotes:
        return end
    return end + 1 if text[end] == '"' and text[at] == '"' else 0


def _is_kept(value: Any) -> bool:
    """Whether it takes about as much as its text: no lists, whose elements may be smaller than what refers to them."""
    if type(value) is dict:
        return len(value) <= MOST_MEMBERS and all(type(each) in (str, int, bool, type(None)) for each in value.values())
    return type(value) is str


def _size(element: _Element) -> int:
    """Of what was written, and as much again for a value that is not the same string."""
    return (2 - element.quotes) * getsizeof(element.written) + 1024
