"""A text as it stands in a JSON string, fast for long texts: the encoder of ``json`` looks at each character twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_RARE: Final = bytes(set(range(0x20)) - set(b"\n\r\t")) + b"\x7f"
"""Control characters but the three that are common in texts."""

_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
"""The backslash first: the others bring one."""


def escaped(text: str) -> str | None:
    """``text`` between the quotes of a JSON string, characters beyond ASCII as they are. O(length).

    Equal to what ``json.dumps`` writes. ``None`` if that is needed: for rare control characters, and for a lone
    surrogate, which no UTF-8 can carry.

    >>> print(escaped('He said "yes".'))
    He said \\"yes\\".
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    if len(data.translate(None, _RARE)) < len(data):
        return None
    for character, escape in _ESCAPES:
        if character in text:
            text = escape.join(text.split(character))  # a fifth of the time of str.replace
    return text


def all_escaped(texts: Sequence[str]) -> list[str] | None:
    """Each of them :func:`escaped`; ``None`` if one cannot be."""
    found = []
    for text in texts:
        if (plain := escaped(text)) is None:
            return None
        found.append(plain)
    return found
