"""What agents read and run: each result is one text, bound to its call and to its moment.

Nothing moves. The unit is the whole result, or the part of it that comes back equal when the same thing is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from prefixpilot.apis.base import Message, Role, Segment
from prefixpilot.formats.base import Edges, Region, Unit
from prefixpilot.formats.marks import MarkGroups
from prefixpilot.pieces import Span

_RESULTS: Final[tuple[Role, ...]] = ("tool", "user")
_NUMBERED: Final = re.compile(r"[ ]*([0-9]{1,9})(?:\t|→)")
_CAT_PATH: Final = re.compile(r"Here's the result of running `cat -n` on (?P<path>[^\n]+?):?\n")
_REMINDER_END: Final = "</system-reminder>"
_TRAILER_MARKS: Final = (
    "[The command completed with exit code",
    "[Current working directory:",
    "[Python interpreter:",
    "[Command finished with exit code",
)
_TRAILER: Final = re.compile(rf"\n?(?:(?:{'|'.join(map(re.escape, _TRAILER_MARKS))})[^\n\]]*\](?:\n|\Z))+\Z")
_TRAILER_LINES: Final = 5
_FILE_OPEN: Final = re.compile(r'<file_content path="(?P<path>[^"\n]*)">\n')
_FILE_CLOSE: Final = "\n</file_content>"
_RESULT_OF: Final = re.compile(r"\[(?P<label>[a-z][a-z_]*(?: for '[^\n]*')?)\] Result:\s*\Z")


def _whole(name: str, text: str, body: Span, label: str | None = None) -> tuple[Region, ...]:
    """A region of one unit, from the beginning of ``body`` to its end."""
    if body.start >= body.end:
        return ()
    return (Region(name, (Unit(body, body, text[body.start : body.end], label),), False, False, "repeat-only"),)


@dataclass(frozen=True, slots=True)
class NumberedLines:
    """A file with numbered lines as a tool result (Claude Code: ``1<TAB>line``, older ``1→line``), the reminders that
    Claude Code puts behind it left out."""

    roles: ClassVar[tuple[Role, ...]] = ("tool",)

    name: str = "claude_code"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        text = segment.text
        if segment.sealed or segment.role != "tool" or not _NUMBERED.match(text):
            return ()
        end = _without_reminder(text)
        lines = text[:end].split("\n")
        numbers = [int(number[1]) if (number := _NUMBERED.match(line)) else -1 for line in lines]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return ()
        return _whole(self.name, text, Span(0, end))


def _without_reminder(text: str) -> int:
    """Where reminders at the end of a text begin; the end, if there is none."""
    if not text.rstrip().endswith(_REMINDER_END):
        return len(text)
    first = text.find("<system-reminder>")
    return len(text[:first].rstrip()) if first >= 0 else len(text)


@dataclass(frozen=True, slots=True)
class Observation:
    """SWE-agent: ``OBSERVATION:`` and what the environment said, as a tool result or as a user's message."""

    roles: ClassVar[tuple[Role, ...]] = _RESULTS

    name: str = "swe_agent"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        text = segment.text
        if segment.sealed or segment.role not in _RESULTS or not text.startswith("OBSERVATION:\n"):
            return ()
        path = _CAT_PATH.match(text, len("OBSERVATION:\n"))
        return _whole(self.name, text, Span(0, len(text)), path["path"] if path else None)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """OpenHands: what a command printed, with bracketed lines about how it ended; or a file under a ``cat -n`` line.

    The bracketed lines are not part of the body.
    """

    roles: ClassVar[tuple[Role, ...]] = _RESULTS
    marks: ClassVar[MarkGroups] = (("\nHere's the result of running `cat -n` on ", *_TRAILER_MARKS),)

    name: str = "openhands"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        text = segment.text
        if segment.sealed or segment.role not in _RESULTS:
            return ()
        path = _CAT_PATH.match(text)
        if path:
            return _whole(self.name, text, Span(0, len(text)), path["path"])
        trailer = _TRAILER.search(text, _last_lines(text))
        return _whole(self.name, text, Span(0, trailer.start())) if trailer else ()


def _last_lines(text: str) -> int:
    """Where the last few lines of a text begin: the only place where a trailer is looked for."""
    at = len(text.rstrip())
    for _ in range(_TRAILER_LINES):
        at = max(text.rfind("\n", 0, at), 0)
    return at


@dataclass(frozen=True, slots=True)
class FileContents:
    """Cline: files in ``<file_content path="…">`` in what the user says.

    A file that holds the closing tag, so that tags do not alternate, makes the whole text doubtful: nothing is found.
    """

    roles: ClassVar[tuple[Role, ...]] = _RESULTS
    marks: ClassVar[MarkGroups] = (("<file_content ",),)

    name: str = "cline"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        if segment.sealed or segment.role not in _RESULTS:
            return ()
        units = _files(segment.text)
        return (Region(self.name, tuple(units), False, False, "repeat-only"),) if units else ()


def _files(text: str) -> list[Unit]:
    units: list[Unit] = []
    opened = list(_FILE_OPEN.finditer(text))
    for head, following in zip(opened, [*opened[1:], None], strict=False):
        close = text.find(_FILE_CLOSE, head.end() - 1)
        end = close + len(_FILE_CLOSE)
        limit = following.start() if following else len(text)
        if close < 0 or end > limit or "</file_content>" in text[end:limit]:
            return []
        body = Span(head.end(), max(close, head.end()))
        units.append(Unit(Span(head.start(), end), body, text[body.start : body.end], head["path"]))
    return units


@dataclass(frozen=True, slots=True)
class WholeResult:
    """Any tool result in which nothing else is found: one unit, the whole string. For the end of a list."""

    NAME: ClassVar[str] = "tool_result"
    roles: ClassVar[tuple[Role, ...]] = ("tool",)

    name: str = NAME

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(1)."""
        if segment.sealed or segment.role != "tool":
            return ()
        return _whole(self.name, segment.text, Span(0, len(segment.text)))


class Found(NamedTuple):
    """A region, and the string that it stands in."""

    segment: Segment
    region: Region


def results_in_parts(message: Message) -> Iterator[Found]:
    """Cline's results of tools: a part ``[tool for 'x'] Result:`` of a user's message names the part behind it.

    No single string shows this, so it is no recogniser of strings. O(segments).
    """
    for head, body in zip(message.segments, message.segments[1:], strict=False):
        named = _RESULT_OF.search(head.text, max(0, len(head.text) - 1000)) if head.role == "user" else None
        if named and body.role == "user" and not body.sealed:
            for region in _whole("cline", body.text, Span(0, len(body.text)), named["label"]):
                yield Found(body, region)
