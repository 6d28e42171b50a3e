"""What an engine answered to a turn, text and tool calls, and whether a client's history repeats it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from prefixpilot.apis.base import Message

HEAD_CHARS: Final = 512
CALL_CHARS: Final = 512
MAX_BYTES: Final = 4 * (HEAD_CHARS + CALL_CHARS) + 2048
"""What a :class:`Reply` may hold, as Python stores it: four bytes a character at most, and its objects."""


class Likeness(enum.Enum):
    """How a client's assistant message compares with what the engine answered."""

    EQUAL = "equal"
    HEAD = "head"
    """A part of it: the text's tail was cut off, or tool calls have other ids, or some of them are missing."""
    UNKNOWN = "unknown"
    OTHER = "other"


class ToolCall(NamedTuple):
    """One call; ``id`` is empty if it has none, ``arguments`` are canonical if they are JSON."""

    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """An assistant message as the client gives it."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


NOTHING_SAID: Final = Said()


class Reply:
    """The head of an answer, bounded; it grows while the answer streams."""

    __slots__ = ("_calls", "_calls_cut", "_cut", "_one_of_many", "_room", "_text")

    def __init__(self, text: str = "") -> None:
        self._text = ""
        self._cut = False
        self._calls: dict[int, list[str]] = {}
        self._calls_cut = False
        self._room = CALL_CHARS
        self._one_of_many = False
        self.add(text)

    @classmethod
    def of(cls, said: Said) -> Reply:
        """A reply as the client has it."""
        reply = cls(said.text)
        for place, call in enumerate(said.calls):
            reply._add(place, call)
        return reply

    def dump(self) -> list[Any]:
        """It as a JSON value. The answer may grow meanwhile, in another thread: what is there by now is taken."""
        calls = [[index, *call] for index, call in self._calls.copy().items()]
        return [self._text, self._cut, calls, self._calls_cut, self._room, self._one_of_many]

    @classmethod
    def load(cls, value: list[Any]) -> Reply:
        """What :meth:`dump` gave."""
        reply = cls()
        reply._text, reply._cut, calls, reply._calls_cut, reply._room, reply._one_of_many = value
        reply._calls = {index: fields for index, *fields in calls}
        return reply

    def add(self, text: str) -> None:
        """Append what the engine sent."""
        if not self._cut:
            joined = self._text + text
            self._cut = len(joined) > HEAD_CHARS
            self._text = joined[:HEAD_CHARS]

    def add_calls(self, calls: Any) -> None:
        """Append tool calls, whole or in the fragments of a stream (``index``, then more of ``arguments``)."""
        for place, call in enumerate(_objects(calls)):
            index = call.get("index", place)
            self._add_call(index if isinstance(index, int) else place, call)

    def add_function_call(self, call: Any) -> None:
        """Append the one call of the API's first form, which has no id."""
        if isinstance(call, dict):
            self._add_call(0, {"function": call})

    def there_are_others(self) -> None:
        """The engine gave several answers, and the client may have kept another one than this."""
        self._one_of_many = True

    def _add_call(self, index: int, call: Mapping[str, Any]) -> None:
        self._add(index, _fields(call))

    def _add(self, index: int, call: ToolCall) -> None:
        call_id, name, arguments = call
        length = len(call_id) + len(name) + len(arguments)
        self._calls_cut = self._calls_cut or length > self._room or len(self._calls) > 16
        if self._calls_cut:
            return
        self._room -= length
        known = self._calls.setdefault(index, ["", "", ""])
        known[0] = known[0] or call_id
        known[1] = known[1] or name
        known[2] += arguments

    def compare(self, client: Said) -> Likeness:
        """Compare with the client's copy. Tool calls decide if both have some; if only one has, clients leave them
        out, and nothing is known; else the texts do."""
        if self._calls and client.calls:
            likeness = self._compare_calls(client.calls)
        elif self._calls or self._calls_cut or client.calls:
            likeness = Likeness.UNKNOWN
        else:
            likeness = self._compare_text(client.text)
        return Likeness.UNKNOWN if likeness is Likeness.OTHER and self._one_of_many else likeness

    def _compare_text(self, client: str) -> Likeness:
        """Both stripped; a client may have cut the tail off."""
        ours, theirs = self._text.strip(), client.strip()
        if not ours or not theirs:
            return Likeness.UNKNOWN
        if ours == theirs and not self._cut:
            return Likeness.EQUAL
        if ours.startswith(theirs):
            return Likeness.HEAD
        if self._cut and theirs.startswith(self._text.lstrip()):
            return Likeness.EQUAL
        return Likeness.OTHER

    def _compare_calls(self, theirs: tuple[ToolCall, ...]) -> Likeness:
        """Ids decide; under other ids equal calls are a likeness, not more."""
        ours = tuple(
            ToolCall(i, name, _canonical(arguments)) for _, (i, name, arguments) in sorted(self._calls.items())
        )
        our_ids, their_ids = [c.id for c in ours if c.id], [c.id for c in theirs if c.id]
        if our_ids and their_ids:
            if our_ids == (their_ids[: len(our_ids)] if self._calls_cut else their_ids):
                return Likeness.EQUAL
            if set(our_ids) & set(their_ids):
                return Likeness.HEAD
        if self._calls_cut:
            return Likeness.OTHER if our_ids and their_ids else Likeness.UNKNOWN
        if [c[1:] for c in ours] != [c[1:] for c in theirs]:
            return Likeness.OTHER
        return Likeness.HEAD if our_ids and their_ids else Likeness.EQUAL


def said_by(messages: Iterable[Message]) -> Said:
    """The text of assistant messages that follow each other, all parts joined, and their tool calls."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for message in messages:
        texts += [segment.text for segment in message.segments]
        calls += [ToolCall(call.call_id, call.name, _canonical(call.arguments)) for call in message.calls]
    return Said("".join(texts), tuple(calls))


def _fields(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    values = (call.get("id"), function.get("name"), function.get("arguments"))
    return ToolCall(*(value if isinstance(value, str) else "" for value in values))


def _canonical(arguments: str) -> str:
    """Arguments as compact JSON with sorted keys, no arguments as no members; as they are if they are no JSON."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments


def _objects(value: Any) -> Iterable[dict[str, Any]]:
    return (element for element in value if isinstance(element, dict)) if isinstance(value, list) else ()
