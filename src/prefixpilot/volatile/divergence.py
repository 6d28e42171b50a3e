"""Where two prompts of one route part, and why: what keeps the second from hitting the cache of the first.

Compared in the order in which models read: tools, then the texts. Causes are named by the recognisers of the rules for
volatile text, so that a report can say which rule would help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from prefixpilot.apis.base import Pointer, Prompt, Segment
from prefixpilot.pieces import Span
from prefixpilot.volatile.base import Line, lines
from prefixpilot.volatile.billing import find_billing_header
from prefixpilot.volatile.clock import find_clock, find_date
from prefixpilot.volatile.ids import is_id_line
from prefixpilot.volatile.memory import find_sections
from prefixpilot.volatile.tool_order import tool_name
from prefixpilot.volatile.zones import zones

Cause = Literal[
    "model",
    "tool-order",
    "tools",
    "billing-header",
    "clock",
    "date",
    "ids",
    "memory",
    "order",
    "whitespace",
    "shape",
    "text",
]
"""``model``: another model, nothing is shared. ``tool-order``: the same tools in another order; ``tools``: others.
``billing-header``, ``clock``, ``ids``, ``memory``: as the rules of that name find them. ``date``: another day, which no
rule helps. ``order``: the same lines, or
the same texts, in another order. ``whitespace``: equal but for runs of white space. ``shape``: another role, image or
other part. ``text``: anything else, which is also how a new question parts from an old one."""


class Divergence(NamedTuple):
    """The first position at which two prompts differ.

    Attributes:
        cause: why.
        pointer: of the string, or the array, in the second body.
        offset: characters of that string, or elements of that array, that are equal; 0 if it is another value.
        shared: characters of text in front of the position, tools as JSON included.
        role: whose words differ; empty for what is no text.
    """

    cause: Cause
    pointer: Pointer
    offset: int
    shared: int
    role: str


class Place(NamedTuple):
    """Where two prompts part. Why is looked for when it is asked: that costs more than the place.

    Attributes:
        found: the place; its cause is the true one where ``texts`` is ``None``.
        texts: the texts that differ.
    """

    found: Divergence
    texts: tuple[Segment, Segment] | None = None

    def named(self) -> Divergence:
        """With its cause. O(length of the texts)."""
        return self.found if self.texts is None else self.found._replace(cause=_cause(*self.texts, self.found.offset))

    def is_inside(self, cause: Cause) -> bool:
        """Whether both texts have what that cause names at this place, and have it begin alike: another time behind
        the same words, say. O(length of the texts)."""
        offset = self.found.offset
        named = [] if self.texts is None else [_found_at(segment.text, offset) for segment in self.texts]
        return bool(named) and all(each.cause == cause and each.start < offset for each in named)


class _Named(NamedTuple):
    """What a rule finds at a place of a text, and where that begins."""

    cause: Cause
    start: int


def first_divergence(first: Prompt, second: Prompt) -> Divergence | None:
    """Where ``second`` parts from ``first``; ``None`` if one of them is the beginning of the other. O(length)."""
    place = first_place(first, second)
    return None if place is None else place.named()


def first_place(first: Prompt, second: Prompt) -> Place | None:
    """As :func:`first_divergence`, without the cause."""
    if first.body.get("model") != second.body.get("model"):
        return Place(Divergence("model", ("model",), 0, 0, ""))
    tools = _tools(first.body.get("tools"), second.body.get("tools"))
    if tools is not None:
        return Place(tools)
    given = second.body.get("tools")
    shared = len(_json(given)) if given else 0
    for old, new in zip(first.messages, second.messages, strict=False):
        texts = [segment.text for segment in old.segments], [segment.text for segment in new.segments]
        if texts[0] == texts[1] and old.role == new.role and _without_texts(old.value) == _without_texts(new.value):
            shared += sum(map(len, texts[1]))
            continue
        for mine, other in zip(old.segments, new.segments, strict=False):
            if mine.role != other.role:
                return Place(Divergence("shape", other.pointer, 0, shared, other.role))
            if mine.text != other.text:
                offset = common_prefix(mine.text, other.text)
                permuted = _permuted(*texts)
                found = Divergence("order" if permuted else "text", other.pointer, offset, shared + offset, other.role)
                return Place(found, None if permuted else (mine, other))
            shared += len(other.text)
        return Place(Divergence("shape", new.pointer, 0, shared, new.role))
    return None


def _tools(first: Any, second: Any) -> Divergence | None:
    old, new = (value if isinstance(value, list) else [] for value in (first, second))
    if old == new:
        return None
    pairs = zip(old, new, strict=False)
    equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
    shared = sum(len(_json(tool)) for tool in new[:equal])
    same = sorted(map(_json, old)) == sorted(map(_json, new)) and all(tool_name(tool) for tool in new)
    return Divergence("tool-order" if same else "tools", ("tools",), equal, shared, "")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _without_texts(value: Any) -> Any:
    """What of a message no segment holds. Cache marks move from request to request and are no part of the prompt; a
    string as content is the same as one text part."""
    if isinstance(value, dict):
        return {key: _emptied(key, item) for key, item in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_without_texts(item) for item in value]
    return value


def _emptied(key: str, item: Any) -> Any:
    if isinstance(item, str) and key in ("text", "content"):
        return "" if key == "text" else [{"type": "text", "text": ""}]
    return _without_texts(item)


def common_prefix(first: str, second: str) -> int:
    """Length of the common beginning, by halving: slices compare fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _permuted(first: Sequence[str], second: Sequence[str]) -> bool:
    return len(first) > 1 and sorted(first) == sorted(second)


def _cause(old: Segment, new: Segment, offset: int) -> Cause:
    """Why two texts differ from ``offset`` on."""
    if sorted(old.text.splitlines()) == sorted(new.text.splitlines()):
        return "order"
    if re.sub(r"\s+", " ", old.text).strip() == re.sub(r"\s+", " ", new.text).strip():
        return "whitespace"
    found = [_found_at(segment.text, offset).cause for segment in (new, old)]
    return next((cause for cause in found if cause != "text"), "text")


def _found_at(text: str, offset: int) -> _Named:
    """What a rule finds at a place of a text, or in front of which, in its line, the place stands."""
    header = find_billing_header(text)
    if header is not None and offset < header.end:
        return _Named("billing-header", header.start)
    all_lines = tuple(lines(text))
    at = _line_at(all_lines, offset)
    line = all_lines[at].content
    reading = find_clock(text[slice(*line)])
    if reading is not None and offset - line.start < reading.said.end:
        return _Named("clock", line.start + reading.said.start)
    today = find_date(text[slice(*line)])
    if today is not None and offset - line.start < today.end:
        return _Named("date", line.start + today.start)
    if is_id_line(text, line):
        return _Named("ids", line.start)
    sections = find_sections(text, all_lines, zones(text, all_lines, [False] * len(all_lines)))
    section = next((section for section in sections if section.first <= at < section.end), None)
    return _Named("text", 0) if section is None else _Named("memory", all_lines[section.first].content.start)


def _line_at(all_lines: Sequence[Line], offset: int) -> int:
    return next((i for i, line in enumerate(all_lines) if offset < line.ending.end), len(all_lines) - 1)


def excerpt(text: str, offset: int, reach: int = 40) -> Span:
    """The characters around a place, for a report that may show text.

    >>> excerpt("0123456789", 8, 4)
    Span(start=4, end=10)
    """
    return Span(max(0, offset - reach), min(len(text), offset + reach))
