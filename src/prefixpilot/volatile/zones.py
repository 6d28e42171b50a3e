"""Lines of a text that no rule may read: code fences, and what stands between tags, where documents stand.

Not a recogniser of documents: those are in :mod:`prefixpilot.formats`, and a caller that knows of some gives their
spans as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from prefixpilot.pieces import Span
from prefixpilot.volatile.base import Line

OPEN_TAGS = frozenset(
    {
        *("env", "environment", "environment_context", "environment_details", "environment_info", "system_info"),
        *("context_info", "session", "session_info", "runtime", "current_datetime", "current_date", "current_time"),
        *("datetime", "metadata", "system-reminder", "instructions", "system", "system_prompt", "info"),
    }
)
"""Tags that frame facts about the session, not documents: rules may look inside."""

OUTSIDE = -1

_FENCE = re.compile(r"[ \t]{0,8}(?:[-*>] )?(`{3,}|~{3,})")
_OPENING = re.compile(r"[ \t]{0,40}<([A-Za-z][\w.:-]{0,60})(?:\s[^<>]{0,400})?(?<!/)>")
_CLOSING = re.compile(r"</([A-Za-z][\w.:-]{0,60})>")


class Zones(NamedTuple):
    """What each line of a text belongs to.

    Attributes:
        blocked: code fences, and what the caller excluded.
        opened: index of the line with the tag that a line stands behind, that line's own for the line itself;
            :data:`OUTSIDE` if none.
    """

    blocked: list[bool]
    opened: list[int]

    def free(self, index: int) -> bool:
        """Whether rules may read a line."""
        return not self.blocked[index] and self.opened[index] == OUTSIDE


def zones(text: str, lines: Sequence[Line], excluded: Sequence[bool]) -> Zones:
    """The zones of a text. O(length).

    Args:
        excluded: for each line, whether it belongs to a document or the like.
    """
    blocked = [left_out or fenced for left_out, fenced in zip(excluded, _fences(text, lines), strict=True)]
    return Zones(blocked, _tags(text, lines, blocked))


def touched(lines: Sequence[Line], spans: Sequence[Span]) -> list[bool]:
    """For each line, whether one of ``spans`` has a character of it. O(lines + spans log spans)."""
    marked: list[bool] = []
    ordered = sorted(spans)
    at, end = 0, 0
    for line in lines:
        while at < len(ordered) and ordered[at].start < line.ending.end:
            end = max(end, ordered[at].end)
            at += 1
        marked.append(line.content.start < end)
    return marked


def _fences(text: str, lines: Sequence[Line]) -> list[bool]:
    """Lines that are a fence or inside one. An open fence reaches to the end."""
    fenced: list[bool] = []
    fence = ""
    for line in lines:
        found = _FENCE.match(text, *line.content)
        fenced.append(bool(fence) or found is not None)
        if found is None:
            continue
        if not fence:
            fence = found[1]
        elif found[1].startswith(fence) and not text[found.end() : line.content.end].strip():
            fence = ""
    return fenced


def _tags(text: str, lines: Sequence[Line], blocked: Sequence[bool]) -> list[int]:
    """Lines from a tag that opens a line to its closing tag. A tag that never closes is no tag."""
    last_closing = {found[1]: found.start() for found in _CLOSING.finditer(text)}
    opened: list[int] = []
    start, inside = OUTSIDE, ""
    for i, line in enumerate(lines):
        if not inside and not blocked[i]:
            tag = _OPENING.match(text, *line.content)
            if tag and tag[1].lower() not in OPEN_TAGS and last_closing.get(tag[1], -1) >= tag.end():
                start, inside = i, tag[1]
        opened.append(start)
        if inside and text.find(f"</{inside}>", *line.content) >= 0:
            start, inside = OUTSIDE, ""
    return opened
