"""Labels that stand in a prompt as headings: which of them a reference may name, and from which number to count on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Final

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates, free_number, written_label
from prefixpilot.conversation import ConversationRecord
from prefixpilot.prompts.request import BlocksRequest

_HEADING: Final = re.compile(r"\n\[([^\[\]\n]{1,80})\]")
"""A label at the beginning of a line. With the line break in the pattern it is found in a tenth of the time."""
_HEADING_CHARS: Final = 82


def headings_of(text: str, templates: Templates = DEFAULT_TEMPLATES) -> tuple[str, ...]:
    """What stands as a label (in brackets, unless the wording is another) at the beginning of lines, one by one, with
    those that stand several times. O(bytes).

    >>> headings_of("[Doc 1]\\nRome [2]\\n[3] Age")
    ('Doc 1', '3')
    """
    if templates.label != DEFAULT_TEMPLATES.label:
        return tuple(_heading(templates.label).findall(text))
    first = _HEADING.match("\n" + text[:_HEADING_CHARS])
    return (*(() if first is None else first.groups()), *_HEADING.findall(text))


@lru_cache(maxsize=16)
def _heading(label: str) -> re.Pattern[str]:
    """A label in other words than the default ones, at the beginning of a line."""
    opening, closing = written_label("\0", Templates(label=label)).split("\0")
    return re.compile(f"^{re.escape(opening)}([^\\n]{{1,80}}?){re.escape(closing) or '$'}", re.MULTILINE)


def told_apart(record: ConversationRecord, headings: Iterable[str]) -> ConversationRecord:
    """The record without the blocks whose label stands as a heading more than once, because a text or the client itself
    has written it: a reference would name two places. O(headings); O(1) in a first turn, without looking at them.

    Args:
        headings: all that the prompt will have, those of earlier turns and of the blocks that come now too.
    """
    if not record.labels:
        return record
    counted = Counter(headings)
    return replace(record, labels={block: label for block, label in record.labels.items() if counted[label] < 2})


def counted_on(
    record: ConversationRecord, count: int, headings: Iterable[str], templates: Templates = DEFAULT_TEMPLATES
) -> ConversationRecord:
    """The record, from a number on which ``count`` labels can be given none of which stands among these headings."""
    written = (written_label(heading, templates) for heading in headings)
    first = free_number(record.next_number, count, written, templates)
    return record if first == record.next_number else replace(record, next_number=first)


def headings_in(texts: Iterable[str | None], templates: Templates = DEFAULT_TEMPLATES) -> Iterator[str]:
    """Those of many texts. O(bytes)."""
    return (heading for text in texts if text for heading in headings_of(text, templates))


def own_headings(asked: BlocksRequest, templates: Templates = DEFAULT_TEMPLATES) -> Iterator[str]:
    """Those that the client wrote itself. O(bytes of its own text)."""
    return headings_in((segment.text for segment in asked.prompt.segments()), templates)


def new_headings(asked: BlocksRequest, templates: Templates = DEFAULT_TEMPLATES) -> Iterator[str]:
    """Those that the client wrote itself, and those in the blocks that come with its request. O(bytes)."""
    return chain(own_headings(asked, templates), headings_in((block.text for block in asked.blocks), templates))
