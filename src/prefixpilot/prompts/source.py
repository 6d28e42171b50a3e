"""A chat body as the text it came in: texts are put into it, every other character stays as the client wrote it. Pure.

So numbers keep their digits, strings their escapes, objects their order and their repeated keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_ONCE: Final = ("role", "content")


class UnreadableError(ValueError):
    """A body that is no JSON object, or that can be read in two ways. The message says why."""


class NoObjectError(UnreadableError):
    """JSON, but no object: it has no members that could be missed."""


class Member(NamedTuple):
    """One member of an object: where its key begins, and where its value stands."""

    key: str
    start: int
    value_start: int
    end: int


class Edit(NamedTuple):
    """Characters to replace."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class ChatSource:
    """A chat body, read once.

    Attributes:
        text: as it came, decoded.
        body: its value. Of a repeated key it has the last; a number that no ``int`` or ``float`` holds is its literal.
        members: of the object, in the client's order.
        contents: the ``content`` member of each message that has one, by the message's index.
    """

    text: str
    body: Mapping[str, Any]
    members: tuple[Member, ...]
    contents: Mapping[int, Member]

    @classmethod
    def read(cls, data: bytes, field: str) -> ChatSource:
        """Read a body. O(bytes).

        Args:
            data: UTF-8.
            field: a key that may stand once only, as ``messages`` and a message's role and content.

        Raises:
            UnreadableError: it cannot be read.
        """
        try:
            text = data.decode("utf-8-sig", "surrogatepass")
            return _Reader(text).chat(field)
        except UnreadableError:
            raise
        except UnicodeDecodeError as error:
            raise UnreadableError(f"is not UTF-8 (byte {error.start})") from None
        except RecursionError:
            raise UnreadableError("is nested too deeply") from None
        except ValueError as error:
            raise UnreadableError(f"is not JSON ({error})") from None

    def with_texts(self, texts: Mapping[int, str], without: str) -> bytes:
        """The body with texts, and a blank line each, in front of the contents of some messages, by index. O(bytes).

        Content given as parts gets one more text part in front. The member ``without`` is left out.

        Raises:
            KeyError, ValueError: a message of that index has no content, or none that takes text.
        """
        edits = [self._in_front(self.contents[i].value_start, f"{text}\n\n") for i, text in texts.items()]
        edits.extend(self._cut(without))
        return _apply(self.text, edits).encode("utf-8", "surrogatepass")

    def _in_front(self, at: int, text: str) -> Edit:
        opening = self.text[at]
        if opening == '"':
            return Edit(at + 1, at + 1, json.dumps(text)[1:-1])
        if opening != "[":
            raise ValueError(f"the content at character {at} cannot take text")
        part = json.dumps({"type": "text", "text": text})
        rest = self.text[_end_of_space(self.text, at + 1)]
        return Edit(at + 1, at + 1, part if rest == "]" else f"{part}, ")

    def _cut(self, key: str) -> Iterable[Edit]:
        """The member with the comma that belongs to it."""
        for place, member in enumerate(self.members):
            if member.key != key:
                continue
            if place:
                yield Edit(self.members[place - 1].end, member.end, "")
            elif len(self.members) > 1:
                yield Edit(member.start, self.members[1].start, "")
            else:
                yield Edit(member.start, member.end, "")


class _Reader:
    """Walks the top of a chat body, and leaves the values to the standard library's scanner."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._decoder = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_refuse)
        self._members: list[Member] = []
        self._contents: dict[int, Member] = {}

    def chat(self, field: str) -> ChatSource:
        at = self._skip(0)
        if self._text[at : at + 1] != "{":
            self._decoder.decode(self._text)
            raise NoObjectError("is no JSON object")
        body, end = self._object(at, self._members, "messages")
        if self._skip(end) != len(self._text):
            raise ValueError(f"extra data at character {end}")
        _check_once(self._members, (field, "messages"), "")
        return ChatSource(self._text, body, tuple(self._members), self._contents)

    def _object(self, at: int, members: list[Member], listed: str | None = None) -> tuple[dict[str, Any], int]:
        """The object at ``at``, its members put in a list; the member ``listed`` is read as messages."""
        value: dict[str, Any] = {}
        at = self._skip(at + 1)
        if self._text[at : at + 1] == "}":
            return value, at + 1
        while True:
            key, end = self._decoder.raw_decode(self._text, at)
            if not isinstance(key, str):
                raise UnreadableError(f"is not JSON (no key at character {at})")
            start = self._skip(self._expect(":", end))
            is_list = key == listed and self._text[start : start + 1] == "["
            value[key], end = self._messages(start) if is_list else self._decoder.raw_decode(self._text, start)
            members.append(Member(key, at, start, end))
            end = self._skip(end)
            if self._text[end : end + 1] == "}":
                return value, end + 1
            at = self._skip(self._expect(",", end))

    def _messages(self, at: int) -> tuple[list[Any], int]:
        messages: list[Any] = []
        at = self._skip(at + 1)
        if self._text[at : at + 1] == "]":
            return messages, at + 1
        while True:
            message, end = self._message(at, len(messages))
            messages.append(message)
            end = self._skip(end)
            if self._text[end : end + 1] == "]":
                return messages, end + 1
            at = self._skip(self._expect(",", end))

    def _message(self, at: int, index: int) -> tuple[Any, int]:
        if self._text[at : at + 1] != "{":
            return self._decoder.raw_decode(self._text, at)
        members: list[Member] = []
        message, end = self._object(at, members)
        _check_once(members, _ONCE, f"messages[{index}].")
        self._contents.update((index, member) for member in members if member.key == "content")
        return message, end

    def _skip(self, at: int) -> int:
        return _end_of_space(self._text, at)

    def _expect(self, character: str, at: int) -> int:
        at = self._skip(at)
        if self._text[at : at + 1] != character:
            raise ValueError(f"no {character} at character {at}")
        return at + 1


def _end_of_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _check_once(members: Iterable[Member], keys: Iterable[str], where: str) -> None:
    found = [member.key for member in members]
    for key in keys:
        if found.count(key) > 1:
            raise UnreadableError(f"has the key {where}{key} twice")


def _apply(text: str, edits: Iterable[Edit]) -> str:
    pieces, at = [], 0
    for edit in sorted(edits):
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])


def _int(literal: str) -> int | str:
    try:
        return int(literal)
    except ValueError:  # more digits than Python converts
        return literal


def _float(literal: str) -> float | str:
    value = float(literal)
    return literal if value in (float("inf"), float("-inf")) else value


def _refuse(constant: str) -> float:
    raise UnreadableError(f"has {constant}, which is no JSON")
