"""JSON inside a string, with the place of every value: read, never written.

One pass of regular-expression tokens, no recursion. Numbers, ``true``, ``false`` and ``null`` are kept as places only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prefixpilot.pieces import Span

MAX_DEPTH: Final = 32
"""Containers inside each other; a deeper text is not read."""

_TOKEN: Final = re.compile(
    r'[ \t\n\r]*(?:"(?P<string>[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*)"'
    r"|(?P<atom>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
    r"|(?P<mark>[{}\[\],:]))"
)
_SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class JsonString:
    """A string value.

    Attributes:
        span: what stands between its quotes, escapes and all.
        raw: that text.
    """

    span: Span
    raw: str

    @property
    def text(self) -> str | None:
        """Decoded; ``None`` if no UTF-8 can write it (half of a surrogate pair)."""
        decoded: str = json.loads(f'"{self.raw}"')
        try:
            decoded.encode()
        except UnicodeEncodeError:
            return None
        return decoded


@dataclass(frozen=True, slots=True)
class JsonAtom:
    """A number, ``true``, ``false`` or ``null``, and where it stands."""

    span: Span


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object: from brace to brace, and its members by name."""

    span: Span
    members: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class JsonArray:
    """An array: from bracket to bracket, and its elements."""

    span: Span
    elements: Sequence[JsonValue]


JsonValue = JsonString | JsonAtom | JsonObject | JsonArray


def read_json(text: str) -> JsonValue | None:
    """The value that ``text`` is, white space around it aside. O(length).

    >>> value = read_json(' {"a": "b\\\\n"}')
    >>> value.members["a"].text, value.span
    ('b\\n', Span(start=1, end=13))

    Returns:
        ``None`` if it is no JSON text, is nested deeper than :data:`MAX_DEPTH`, or names a member twice: then the same
        characters may mean two things.
    """
    reader = _Reader(text, 0)
    value = reader.value()
    return value if reader.rest_is_space() else None


def json_at(text: str, start: int) -> JsonValue | None:
    """The value that begins at ``start``, white space aside, whatever follows; else as :func:`read_json`."""
    return _Reader(text, start).value()


@dataclass(slots=True)
class _Open:
    """A container that has begun: what it holds so far, and for which member the next value is."""

    start: int
    members: dict[str, JsonValue] | None
    elements: list[JsonValue] = field(default_factory=list)
    key: str | None = None

    def awaits_key(self) -> bool:
        return self.members is not None and self.key is None

    def add(self, value: JsonValue) -> None:
        if self.members is None:
            self.elements.append(value)
        elif self.key is not None:
            self.members[self.key] = value
            self.key = None

    def closed(self, end: int) -> JsonValue:
        span = Span(self.start, end)
        return JsonArray(span, tuple(self.elements)) if self.members is None else JsonObject(span, self.members)


class _Reader:
    """One pass over a text from ``start`` on."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.stack: list[_Open] = []

    def value(self) -> JsonValue | None:
        """The whole value; ``None`` at the first thing that JSON does not allow."""
        fresh = True
        while True:
            token = _TOKEN.match(self.text, self.at)
            if token is None:
                return None
            self.at = token.end()
            mark = token["mark"]
            if fresh and self.stack and mark and mark in "]}":
                done = self._close(mark)
            elif self.stack and self.stack[-1].awaits_key():
                if not self._key(token):
                    return None
                fresh = False
                continue
            elif mark and mark in "[{":
                if len(self.stack) == MAX_DEPTH:
                    return None
                self.stack.append(_Open(self.at - 1, {} if mark == "{" else None))
                fresh = True
                continue
            else:
                done = self._scalar(token)
            fresh = False
            while done is not None and self.stack:
                self.stack[-1].add(done)
                ending = self._ending()
                if ending == ",":
                    break
                done = self._close(ending)
            if done is None or not self.stack:
                return done

    def rest_is_space(self) -> bool:
        """Whether nothing but white space follows what has been read."""
        found = _SPACE.match(self.text, self.at)
        return found is not None and found.end() == len(self.text)

    def _key(self, token: re.Match[str]) -> bool:
        """Takes the name of a member and its colon; whether there was one, and a new one."""
        if token["string"] is None:
            return False
        key: str = json.loads(f'"{token["string"]}"')
        self.stack[-1].key = key
        return self._ending() == ":" and key not in (self.stack[-1].members or {})

    def _ending(self) -> str:
        """The mark that comes next, taken; empty if it is none."""
        token = _TOKEN.match(self.text, self.at)
        if token is None or token["mark"] is None:
            return ""
        self.at = token.end()
        return token["mark"]

    def _close(self, mark: str) -> JsonValue | None:
        """The innermost container, ended by ``mark``; ``None`` if that is not its end."""
        ends = "]" if self.stack[-1].members is None else "}"
        return self.stack.pop().closed(self.at) if mark == ends else None

    def _scalar(self, token: re.Match[str]) -> JsonValue | None:
        """A string or atom; ``None`` for a mark."""
        if token["string"] is not None:
            return JsonString(Span(*token.span("string")), token["string"])
        return JsonAtom(Span(*token.span("atom"))) if token["atom"] is not None else None
