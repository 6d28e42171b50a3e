"""Units of the general formats whose order tells something: mails by date, the parts of a log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from prefixpilot.formats.base import Region, Unit

GENERAL: Final = frozenset({"headed_blocks", "ruled_blocks", "tagged"})
"""Formats of no one application, so that nothing but the units themselves tells what their order means."""

_MONTH: Final = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE: Final = re.compile(
    r"(?i)(?<!\d)(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2}))(?!\d)"
    rf"|\b\d{{1,2}}\.? {_MONTH}\b|\b{_MONTH}\.? \d{{1,4}}\b|\b(?:[01]?\d|2[0-3]):[0-5]\d\b"
)
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,18}(?!\d)")


def is_series(region: Region, text: str) -> bool:
    """Whether the units of a region are to keep their order: two have dates or times above them, or their labels count.

    Labels count where they differ in one number only, which rises by one from unit to unit. Only in formats of
    :data:`GENERAL`, and not where ranks tell the old order. ``text`` is the string that the region stands in.
    O(characters above the bodies).
    """
    if region.format not in GENERAL or region.ranked:
        return False
    heads = [_head(unit, text) for unit in region.units]
    dated = sum(_DATE.search(head) is not None for head in heads)
    return dated > 1 or counts([unit.label or head for unit, head in zip(region.units, heads, strict=True)])


def counts(labels: Sequence[str]) -> bool:
    """Whether two labels or more differ in one number only, which rises by one.

    >>> counts(["Mail 9", "Mail 10"]), counts(["Mail 9", "Mail 11"]), counts(["Mail 9", "Memo 10"])
    (True, False, False)
    """
    if len(labels) < 2 or len({_NUMBER.sub("0", label) for label in labels}) > 1:
        return False
    columns = list(zip(*(map(int, _NUMBER.findall(label)) for label in labels), strict=True))
    changing = [column for column in columns if len(set(column)) > 1]
    return len(changing) == 1 and _rises(changing[0])


def _rises(numbers: Iterable[int]) -> bool:
    given = list(numbers)
    return given == list(range(given[0], given[0] + len(given)))


def _head(unit: Unit, text: str) -> str:
    """What stands above the body, and the label."""
    return f"{text[unit.span.start : unit.body.start]}\n{unit.label or ''}"
