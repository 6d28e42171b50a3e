"""Results of tools that are several texts under head lines, or one text under a head.

Nothing moves: a result answers its call, and its order is a rank or the order of the call. Units are found so that a
later repeat of a body can be told from its ever new head (scores, anchors, wall times).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Region, Unit
from prefixpilot.pieces import Span


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a tool writes a list of texts.

    Attributes:
        name: of the format.
        start: must match at the beginning of the result; the first head stands behind it.
        head: of a unit; its body begins where a match ends. Group ``label`` names the unit. A pattern that matches
            nothing but whole lines, each of them once.
        joint: the exact text between two units, in front of the next head.
        failed: a head of an entry that has no body (a file that could not be read); ends the unit before it as well.
        tail: where it matches behind the last head, the last body ends (white space in front of it left out).
        newline: the tool adds one newline to each body.
        ranked: a number or score is shown in each head.
    """

    name: str
    start: re.Pattern[str]
    head: re.Pattern[str]
    joint: str
    failed: re.Pattern[str] | None = None
    tail: re.Pattern[str] | None = None
    newline: bool = False
    ranked: bool = False


_NOTHING: Final = re.compile("")

LANGCHAIN_RETRIEVER_TOOL: Final = HeadShape(
    "langchain_retriever_tool", _NOTHING, re.compile(r"Source: (?P<label>\{[^\n]*\})\nContent: "), "\n\n"
)
LIBRECHAT_FILE_SEARCH: Final = HeadShape(
    "librechat_file_search",
    _NOTHING,
    re.compile(r"File: (?P<label>[^\n]+)\n(?:Anchor: [^\n]*\n)?Relevance: [0-9.]+\n(?:Page: [^\n]*\n)?Content: "),
    "\n---\n",
    newline=True,
    ranked=True,
)
TAVILY_MCP: Final = HeadShape(
    "tavily_mcp",
    re.compile(r"(?:Answer: (?:[^\n]*\n)+?)?Detailed Results:\n\n"),
    re.compile(r"Title: (?P<label>[^\n]*)\nURL: [^\n]+\nContent: "),
    "\n\n",
    tail=re.compile(r"\n\nImages:\n"),
)
MCP_FILESYSTEM: Final = HeadShape(
    "mcp_filesystem",
    _NOTHING,
    re.compile(r"(?P<label>(?=\S)(?=[^\n]{0,500}?[\\/.])(?:[A-Za-z]:(?=[\\/]))?[^\n:]{1,500}):\n"),
    "\n---\n",
    failed=re.compile(r"[^\n:]{1,500}: Error - "),
    newline=True,
)
CODEX: Final = HeadShape(
    "codex",
    _NOTHING,
    re.compile(
        r"(?:(?:Exit code|Chunk ID|Wall time|Process exited|Original token count|Total output lines)[^\n]*\n)+Output:\n"
    ),
    "",
)
HEAD_SHAPES: Final = (LANGCHAIN_RETRIEVER_TOOL, LIBRECHAT_FILE_SEARCH, TAVILY_MCP, MCP_FILESYSTEM, CODEX)


@dataclass(frozen=True, slots=True)
class HeadRecogniser:
    """One shape, in tool results."""

    roles: ClassVar[tuple[Role, ...]] = ("tool",)

    shape: HeadShape
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.shape.name)

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length)."""
        if segment.sealed or segment.role != "tool":
            return ()
        units = tuple(self._units(segment.text))
        return (Region(self.name, units, False, self.shape.ranked, "repeat-only"),) if units else ()

    def _units(self, text: str) -> Iterator[Unit]:
        for head, end in self._entries(text):
            newline = self.shape.newline and text.endswith("\n", head.end(), end)
            end -= newline
            if head.re is self.shape.head:
                yield Unit(Span(head.start(), end), Span(head.end(), end), text[head.end() : end], _label(head))

    def _entries(self, text: str) -> Iterator[tuple[re.Match[str], int]]:
        """Each head, and where the joint in front of the next one begins."""
        start = self.shape.start.match(text)
        head = self._head(text, start.end()) if start else None
        at = head.end() if head else 0
        while head is not None:
            joint = text.find(self.shape.joint, at) if self.shape.joint else -1
            if joint < 0:
                yield head, self._end(text, head.end())
                return
            at = joint + len(self.shape.joint)
            following = self._head(text, at) if self._may_end(head, text, joint) else None
            if following is not None:
                yield head, joint
                head, at = following, following.end()

    def _head(self, text: str, at: int) -> re.Match[str] | None:
        failed = self.shape.failed.match(text, at) if self.shape.failed else None
        return failed or self.shape.head.match(text, at)

    def _may_end(self, head: re.Match[str], text: str, joint: int) -> bool:
        """Whether the newline that a tool adds to a body stands in front of the joint."""
        return not self.shape.newline or head.re is not self.shape.head or text.endswith("\n", head.end(), joint)

    def _end(self, text: str, body: int) -> int:
        """The end of the last unit."""
        tail = self.shape.tail.search(text, body) if self.shape.tail else None
        return tail.start() if tail else len(text)


def _label(head: re.Match[str]) -> str | None:
    return head.groupdict().get("label")
