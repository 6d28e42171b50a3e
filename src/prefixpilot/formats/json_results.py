"""Results of tools that are JSON in a string: an array of records, or one record.

Nothing moves in a JSON text: the rank of a record is its position, and commas would have to be written again. What is
found is where the bare texts stand, so that a later repeat of one can be replaced between its quotes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Region, Repeats, Unit
from prefixpilot.formats.json_spans import JsonArray, JsonObject, JsonString, JsonValue, json_at, read_json
from prefixpilot.formats.marks import MarkGroups

_BODIES: Final = ("content", "page_content", "text", "body", "description", "snippet", "summary", "output")
_LABELS: Final = ("title", "name", "path", "file_path", "filename", "url", "source", "id")


@dataclass(frozen=True, slots=True)
class JsonShape:
    """How a tool writes its records.

    Attributes:
        name: of the format.
        array: member of the outermost object that holds the records; ``None`` if that object is the only record.
        needs: members that each record has.
        bodies: names of the member that is the bare text; the first that a record has counts.
        labels: names of members that name a record; the first that is a string counts.
        ranked: a number or score is shown in each record.
    """

    name: str
    array: str | None
    needs: frozenset[str]
    bodies: tuple[str, ...]
    labels: tuple[str, ...] = ()
    ranked: bool = False


ONYX: Final = JsonShape("onyx", "results", frozenset({"document", "content"}), ("content",), ("title",), ranked=True)
TAVILY: Final = JsonShape(
    "tavily_langchain_json", "results", frozenset({"url", "content"}), ("content",), ("title", "url"), ranked=True
)
BRAVE: Final = JsonShape(
    "brave_mcp", None, frozenset({"url", "title", "description"}), ("description",), ("title", "url")
)
CODEX: Final = JsonShape("codex_json", None, frozenset({"output", "metadata"}), ("output",))
JSON_SHAPES: Final = (ONYX, TAVILY, BRAVE, CODEX)


@dataclass(frozen=True, slots=True)
class JsonRecogniser:
    """One shape, in tool results that are JSON texts as a whole, with names of members written as they are read."""

    roles: ClassVar[tuple[Role, ...]] = ("tool",)

    shape: JsonShape
    name: str = field(init=False)
    marks: MarkGroups = field(init=False)

    def __post_init__(self) -> None:
        names = [*sorted(self.shape.needs), self.shape.array or ""]
        object.__setattr__(self, "name", self.shape.name)
        object.__setattr__(self, "marks", (("{",), *((f'"{name}"',) for name in names if name)))

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        value = _result(segment)
        if not isinstance(value, JsonObject):
            return ()
        shape = self.shape
        records = [value] if shape.array is None else _records(value.members.get(shape.array))
        if not all(shape.needs <= record.members.keys() for record in records):
            return ()
        return _region(shape.name, records, shape.bodies, shape.labels, shape.ranked)


@dataclass(frozen=True, slots=True)
class AnyJsonRecogniser:
    """Arrays of alike objects with a bare text in each, at any depth of a tool result that no other shape knows."""

    NAME: ClassVar[str] = "json_results"
    roles: ClassVar[tuple[Role, ...]] = ("tool",)
    marks: ClassVar[MarkGroups] = (("[",), ("{",))

    name: str = NAME

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length). One region for each array."""
        value = _result(segment)
        regions: list[Region] = []
        for array in _arrays(value):
            records = _records(array)
            if len({frozenset(record.members) for record in records}) == 1:
                regions += _region(self.name, records, _BODIES, _LABELS, ranked=False)
        return tuple(regions)


@dataclass(frozen=True, slots=True)
class ZepRecogniser:
    """``<FACTS>`` with an array of dated facts, in what systems and users say.

    A fact is only true between its dates, so an equal sentence is not an equal fact: none may become a reference.
    """

    roles: ClassVar[tuple[Role, ...]] = ("system", "user", "assistant")
    marks: ClassVar[MarkGroups] = (("<FACTS>",),)

    name: str = "zep_graphiti"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        if segment.sealed or segment.role == "tool":
            return ()
        opened = _FACTS.search(segment.text, max(0, segment.text.find("<FACTS>")))
        value = json_at(segment.text, opened.end()) if opened else None
        if not isinstance(value, JsonArray) or not _FACTS_END.match(segment.text, value.span.end):
            return ()
        records = _records(value)
        if not all(record.members.keys() >= {"fact", "valid_at", "invalid_at"} for record in records):
            return ()
        return _region(self.name, records, ("fact",), (), ranked=False, repeats="no")


_FACTS: Final = re.compile(r"<FACTS>\s*")
_JSON: Final = re.compile(r"\s*[\[{]")
_FACTS_END: Final = re.compile(r"\s*</FACTS>")


def _result(segment: Segment) -> JsonValue | None:
    """A tool result as JSON; ``None`` if it is none, or no tool result."""
    if segment.sealed or segment.role != "tool" or not _JSON.match(segment.text):
        return None
    return read_json(segment.text)


def _records(value: JsonValue | None) -> list[JsonObject]:
    """The elements of an array; none if one of them is no object."""
    elements = value.elements if isinstance(value, JsonArray) else ()
    records = [element for element in elements if isinstance(element, JsonObject)]
    return records if len(records) == len(elements) else []


def _arrays(value: JsonValue | None) -> Iterator[JsonArray]:
    """All arrays, outer ones first; those inside the records of one are left out if it has any."""
    waiting = deque([value])
    while waiting:
        current = waiting.popleft()
        if isinstance(current, JsonArray):
            yield current
            if not _records(current):
                waiting += current.elements
        elif isinstance(current, JsonObject):
            waiting += current.members.values()


def _region(
    name: str,
    records: list[JsonObject],
    bodies: tuple[str, ...],
    labels: tuple[str, ...],
    ranked: bool,
    repeats: Repeats = "repeat-only",
) -> tuple[Region, ...]:
    """One region of the records that have a body."""
    units = tuple(unit for record in records if (unit := _unit(record, bodies, labels)))
    return (Region(name, units, False, ranked, repeats, "json"),) if units else ()


def _unit(record: JsonObject, bodies: tuple[str, ...], labels: tuple[str, ...]) -> Unit | None:
    body = _first_string(record, bodies)
    text = body.text if body else None
    if body is None or text is None:
        return None
    label = _first_string(record, labels)
    return Unit(record.span, body.span, text, label.text if label else None)


def _first_string(record: JsonObject, names: tuple[str, ...]) -> JsonString | None:
    """The first of the named members that is a string with something in it."""
    for name in names:
        member = record.members.get(name)
        if isinstance(member, JsonString) and member.raw:
            return member
    return None
