"""Claude Code's billing header: a first line of the system text that is another one in each request.

``x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;``, seen in front of the system text
or as a part of its own (https://github.com/anthropics/claude-code/issues/68900). Anthropic reads it; no one else does.
"""

from __future__ import annotations

import re

from prefixpilot.pieces import Span

_HEADER = re.compile(r"\s{0,8}x-anthropic-billing-header:(?P<values>[^\n]*\S[^\n]*)(?:\n|\Z)", re.IGNORECASE)


def find_billing_header(text: str) -> Span | None:
    """What of a system text goes: the header with its line break; its values only, where nothing else stands in the
    text, since an empty part is refused by some servers. ``None`` if the text does not begin with one. O(length)."""
    first = last = _HEADER.match(text)
    if first is None or last is None:
        return None
    while (another := _HEADER.match(text, last.end())) is not None:
        last = another
    if not text[last.end() :].strip():
        return Span(first.start("values"), last.end("values"))
    return Span(first.start(), last.end())
