"""Code fences of Markdown: where nothing of ours may stand."""

from __future__ import annotations

import re
from typing import Final

from prefixpilot.pieces import Span

_FENCE: Final = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


def may_have_fences(text: str) -> bool:
    """Whether their marks stand in a text: quick, since one character is looked for first.

    >>> may_have_fences("a\\n```\\nb"), may_have_fences("a `b` c ~ d")
    (True, False)
    """
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def fences(text: str) -> tuple[Span, ...]:
    """The fenced parts of a text, their marks included; one that is never closed reaches to the end. O(length).

    As CommonMark 4.5: a fence is closed by the same mark, at least as long, with nothing behind it.

    >>> fences("a\\n```py\\nb\\n```\\nc")
    (Span(start=2, end=13),)
    """
    found = []
    start, mark = -1, ""
    for line in _FENCE.finditer(text):
        here, info = line.group(1), line.group(2)
        if start < 0:
            if not (here[0] == "`" and "`" in info):
                start, mark = line.start(), here
        elif here[0] == mark[0] and len(here) >= len(mark) and not info.strip():
            found.append(Span(start, line.end()))
            start = -1
    if start >= 0:
        found.append(Span(start, len(text)))
    return tuple(found)


def clear_of(span: Span, parts: tuple[Span, ...]) -> bool:
    """Whether a span neither touches nor holds a part of any of these."""
    return all(span.end <= part.start or part.end <= span.start for part in parts)


def cuts(span: Span, parts: tuple[Span, ...]) -> bool:
    """Whether a span begins or ends in the middle of one of these."""
    return any(part.start < edge < part.end for part in parts for edge in span)
