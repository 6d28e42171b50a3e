"""Sections of memories, as applications recall them for one turn and write them into the system text.

Two shapes: a heading (``User Memories:``, ``## Relevant memories``) with a list below it, and a pair of tags
(``<memories>`` to ``</memories>``). A line that ends in a colon directly above belongs to the section: it announces it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from prefixpilot.volatile.base import Line
from prefixpilot.volatile.zones import OUTSIDE, Zones

_NAMES = (
    r"(?:(?:user'?s?|relevant|retrieved|recalled|related|long[- ]term|past|previous|personal|stored|saved|your|core)"
    r"[ _-])?"
    r"memor(?:y|ies)(?:[ _/-](?:facts?|blocks?|context|entries|section|about the user|of the user))?"
)
_HEADING = re.compile(
    rf"[ \t]{{0,8}}(?:#{{1,6}} |[-*] )?\*{{0,2}}(?:{_NAMES}|user context)(?: \([^()]{{0,60}}\))?"
    r"(?P<colon>\*{0,2}[ \t]{0,4}:)?\*{0,2}[ \t]{0,8}",
    re.IGNORECASE,
)
_MARKED = re.compile(r"[ \t]{0,8}(?:#|\*\*)")
_ITEM = re.compile(r"[ \t]{0,16}(?:[-*•] |\d{1,4}[.)] |\[)")
_TAG = re.compile(
    r"[ \t]{0,16}<(?P<tag>(?:(?:user|relevant|retrieved|recalled|long[_-]term|session|agent|core)[_-])?"
    r"memor(?:y|ies)(?:[_-](?:blocks?|context|facts|bank))?)(?:\s[^<>]{0,200})?>",
    re.IGNORECASE,
)


class Section(NamedTuple):
    """Lines ``first`` to ``end``, ``end`` not included."""

    first: int
    end: int


def find_sections(text: str, lines: Sequence[Line], zones: Zones) -> list[Section]:
    """All sections, in order, not overlapping. O(length log length)."""
    found: list[Section] = []
    tags = _Tags(text, lines, zones)
    at = 0
    while at < len(lines):
        section = tags.section(at) or _headed(text, lines, zones, at)
        if section is None:
            at += 1
            continue
        above = section.first - 1
        announced = above >= (found[-1].end if found else 0) and zones.free(above) and _announces(text, lines, above)
        found.append(Section(section.first - announced, section.end))
        at = section.end
    return found


class _Tags:
    """Where tags of memories open and close."""

    def __init__(self, text: str, lines: Sequence[Line], zones: Zones) -> None:
        self._text = text
        self._lines = lines
        self._zones = zones
        self._blocked = list(accumulate(zones.blocked, initial=0))
        self._opening: dict[str, list[int]] = {}
        self._closing: dict[str, list[int]] = {}
        for i, line in enumerate(lines):
            tag = _TAG.match(text, *line.content)
            if tag is not None:
                self._opening.setdefault(tag["tag"], []).append(i)
            content = text[slice(*line.content)].strip()
            if content.startswith("</") and content.endswith(">"):
                self._closing.setdefault(content[2:-1], []).append(i)

    def section(self, at: int) -> Section | None:
        """The section whose tag opens line ``at``: the tag alone in its line, or both tags in one line."""
        line = self._lines[at].content
        tag = _TAG.match(self._text, *line)
        if tag is None or self._zones.blocked[at] or self._zones.opened[at] not in (OUTSIDE, at):
            return None
        rest = self._text[tag.end() : line.end].strip()
        if rest:
            close = f"</{tag['tag']}>"
            return Section(at, at + 1) if rest.endswith(close) and rest.count(close) == 1 else None
        end = _next(self._closing.get(tag["tag"], []), at)
        nested = _next(self._opening[tag["tag"]], at)
        if end is None or (nested is not None and nested < end) or self._blocked[end + 1] > self._blocked[at]:
            return None
        return Section(at, end + 1)


def _next(sorted_lines: list[int], at: int) -> int | None:
    place = bisect_right(sorted_lines, at)
    return sorted_lines[place] if place < len(sorted_lines) else None


def _headed(text: str, lines: Sequence[Line], zones: Zones, at: int) -> Section | None:
    """A heading in line ``at`` and the items below it, one blank line between at most."""
    heading = _HEADING.fullmatch(text, *lines[at].content) if zones.free(at) else None
    if heading is None or not (heading["colon"] or _MARKED.match(text, *lines[at].content)):
        return None
    first = at + 1
    if first < len(lines) and not text[slice(*lines[first].content)].strip():
        first += 1
    end = first
    while end < len(lines) and zones.free(end) and _ITEM.match(text, *lines[end].content):
        end += 1
    return Section(at, end) if end > first else None


def _announces(text: str, lines: Sequence[Line], at: int) -> bool:
    return text[slice(*lines[at].content)].rstrip().endswith(":")
