"""Where the members and elements of a JSON text stand. Found when they are asked for, and kept."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SPACES: Final = frozenset((" ", "\t", "\n", "\r", ""))
_DECODER: Final = json.JSONDecoder()
_STRUCTURE: Final = re.compile(r'["\[\]{}]')
_ESCAPED_QUOTES: Final = 8
_END_OF_PLAIN: Final = re.compile(r"[,\]} \t\n\r]|$")


class Member(NamedTuple):
    """One member of an object: where its key begins, and where its value stands."""

    key: str
    start: int
    value_start: int
    end: int


class Element(NamedTuple):
    """One element of an array."""

    start: int
    end: int


class Layout:
    """Offsets into a JSON text that has been read without an error. Each container is walked once, O(its length)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._members: dict[int, tuple[Member, ...]] = {}
        self._elements: dict[int, tuple[Element, ...]] = {}

    def know(self, at: int, members: tuple[Member, ...]) -> None:
        """Where the members of the object at ``at`` stand, from whoever has read it."""
        self._members[at] = members

    def members(self, at: int) -> tuple[Member, ...]:
        """Those of the object that begins at ``at``, in the order written; repeated keys too."""
        if at not in self._members:
            self._members[at] = tuple(self._walk_object(at))
        return self._members[at]

    def elements(self, at: int) -> tuple[Element, ...]:
        """Those of the array that begins at ``at``."""
        if at not in self._elements:
            self._elements[at] = tuple(self._walk_array(at))
        return self._elements[at]

    def end(self, at: int) -> int:
        """Where the value that begins at ``at`` ends. O(its length), and little for long strings."""
        if self.text[at] == '"':
            return _end_of_string(self.text, at)
        if self.text[at] in "[{":
            return self._end_of_container(at)
        end = _END_OF_PLAIN.search(self.text, at)
        assert end is not None  # it matches the end of the text
        return end.start()

    def _end_of_container(self, at: int) -> int:
        depth = 0
        while True:
            found = _STRUCTURE.search(self.text, at)
            assert found is not None  # the text is JSON
            at = found.start()
            if self.text[at] == '"':
                at = _end_of_string(self.text, at)
                continue
            depth += 1 if self.text[at] in "[{" else -1
            at += 1
            if not depth:
                return at

    def _walk_object(self, at: int) -> list[Member]:
        members: list[Member] = []
        at = end_of_space(self.text, at + 1)
        while self.text[at] != "}":
            key, end = _DECODER.raw_decode(self.text, at)
            start = end_of_space(self.text, end_of_space(self.text, end) + 1)
            end = self.end(start)
            members.append(Member(key, at, start, end))
            at = self._next(end)
        return members

    def _walk_array(self, at: int) -> list[Element]:
        elements: list[Element] = []
        at = end_of_space(self.text, at + 1)
        while self.text[at] != "]":
            end = self.end(at)
            elements.append(Element(at, end))
            at = self._next(end)
        return elements

    def _next(self, end: int) -> int:
        """Where the next one begins, or the bracket that closes all."""
        at = end_of_space(self.text, end)
        return end_of_space(self.text, at + 1) if self.text[at] == "," else at


def _end_of_string(text: str, at: int) -> int:
    """Behind the string that begins at ``at``: its first quote with an even number of backslashes before it.

    A string with many escaped quotes is left to the scanner of ``json``.
    """
    end = at
    for _ in range(_ESCAPED_QUOTES):
        end = text.index('"', end + 1)
        last = end
        while text[last - 1] == "\\":
            last -= 1
        if not (end - last) % 2:
            return end + 1
    return _DECODER.raw_decode(text, at)[1]


def end_of_space(text: str, at: int) -> int:
    """The first character from ``at`` on that is no JSON white space."""
    if text[at : at + 1] == " ":  # as ``json.dumps`` parts what it writes
        at += 1
    if text[at : at + 1] not in _SPACES:
        return at
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
