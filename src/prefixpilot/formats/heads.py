"""Heads of units: where they stand in a text, and what is written in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from prefixpilot.formats.shape import Shape

_ATTRIBUTE: Final = re.compile(r"([\w:.-]+)=")
_HEADER_KEY: Final = re.compile(r"(?m)^([^:\n]*):")
_FEW: Final = 4
_SCARCE: Final = 1024
_COUNTERS: Final = re.compile(r"""(?:\s*(?:index|number|rank)=["']\d+["'])+""")
_NUMBER: Final = re.compile(r"""\s(?:index|id|number|rank)=["'](\d{1,9})["']""")


def heads_of(shape: Shape, text: str) -> list[re.Match[str]]:
    """All heads, in order, not overlapping. O(length)."""
    found: list[re.Match[str]] = []
    for place in _where(shape, text):
        head = shape.head.match(text, place) if not found or place >= found[-1].end() else None
        found += [head] if head is not None else []
    return found


def _where(shape: Shape, text: str) -> list[int]:
    """Where heads may stand, rising."""
    if not shape.behind:
        return _begun(shape.starts, text)
    starts, few = shape.starts or ("",), len(shape.behind) * len(shape.starts) <= _FEW
    lead = starts if few else ("",)
    found = {place + len(mark) for mark in shape.behind for start in lead for place in places(mark + start, text)}
    return sorted(place for place in {0, *found} if text.startswith(starts, place))


def _begun(starts: tuple[str, ...], text: str) -> list[int]:
    """Where one of ``starts`` stands, rising: one pass over a first character that all have, if it is scarce."""
    first = starts[0][:1]
    if len(starts) > 1 and all(start.startswith(first) for start in starts) and text.count(first) <= _SCARCE:
        return [place for place in places(first, text) if text.startswith(starts, place)]
    return sorted({place for start in starts for place in places(start, text)})


def closings_of(shape: Shape, text: str) -> list[re.Match[str]]:
    """All closing marks, in order, not overlapping. O(length)."""
    if shape.closing is None or not shape.closes:
        return all_of(shape.closing, text)
    found: list[re.Match[str]] = []
    for place in places(shape.closes, text):
        mark = shape.closing.match(text, place) or shape.closing.match(text, place + len(shape.closes))
        found += [mark] if mark is not None and (not found or mark.start() >= found[-1].end()) else []
    return found


def places(word: str, text: str) -> Iterator[int]:
    """Where ``word`` stands in ``text``, rising; it may overlap with itself."""
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def line_starts(word: str, text: str) -> Iterator[int]:
    """Where a line begins with ``word``, rising."""
    if text.startswith(word):
        yield 0
    yield from (place + 1 for place in places(f"\n{word}", text))


def all_of(pattern: re.Pattern[str] | None, text: str) -> list[re.Match[str]]:
    return [] if pattern is None else list(pattern.finditer(text))


def group(match: re.Match[str], name: str) -> str | None:
    value: str | None = match[name] if name in match.re.groupindex else None
    return value


def same_key(head: re.Match[str], other: re.Match[str]) -> bool:
    """Whether a closing mark, or another head, is of the same kind as ``head``."""
    return group(head, "key") == group(other, "key")


def manner(head: re.Match[str]) -> tuple[object, ...]:
    """How a head is written: equal for all units of a run."""
    attributes, keys = group(head, "attributes") or "", group(head, "keys") or ""
    kind = group(head, "alike"), tuple(_ATTRIBUTE.findall(attributes))
    return (*kind, tuple(_HEADER_KEY.findall(keys)))


def decoded(raw: str, in_json: bool) -> str | None:
    """The text of a body; ``None`` if it is no JSON string where it must be one."""
    if not in_json:
        return raw
    try:
        text = json.loads(f'"{raw}"')
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def number_of(head: re.Match[str]) -> int | None:
    """The number of a unit, by its group or an attribute called ``index``, ``id``, ``number`` or ``rank``."""
    number = group(head, "number")
    if number is None and (attribute := _NUMBER.search(group(head, "attributes") or "")):
        number = attribute[1]
    return int(number) if number is not None and len(number) < 10 else None


def label_of(head: re.Match[str]) -> str | None:
    """Words of a head that name the unit: its group ``label``, its number, or its attributes.

    Attributes that only count what stands in this prompt (``index="1"``) name none: in the next one they are on another
    unit.
    """
    label = group(head, "label") or group(head, "number") or group(head, "attributes")
    label = (label or "").strip(" \n:")
    return None if not label or _COUNTERS.fullmatch(label) else label


def score_of(head: re.Match[str]) -> float | None:
    """The score of a unit, if its head shows one."""
    score = group(head, "score")
    return float(score) if score else None
