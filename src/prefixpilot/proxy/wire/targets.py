"""Which path a request target means, in whatever way it is written. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_DECODINGS: Final = 4
"""A path is decoded until nothing is left to decode, but at most so often: gateways in a row decode once each."""

_PARAMETERS: Final = re.compile(rb";[^/]*")
_SLASHES: Final = re.compile(rb"[/\\]+")
_BLANK: Final = bytes((*range(0x21), 0x7F))


def plain_path(path: bytes) -> bytes:
    """The path as the most tolerant of servers would read it.

    Percent-encoding is undone, a fragment and what follows an encoded ``?`` is left out, so are parameters of segments
    (``;a=b``) and blanks or control characters at the ends; backslashes are slashes, several slashes are one, ``.``
    and ``..`` are resolved, letters are small, and there is no slash at the end. Two paths that any server takes for
    one are equal here; that two others are, too, is the price. O(bytes).
    """
    plain = _unquoted(path)
    plain = re.split(rb"[#?]", plain, maxsplit=1)[0]
    plain = _SLASHES.sub(b"/", _PARAMETERS.sub(b"", plain)).strip(_BLANK).lower()
    segments: list[bytes] = []
    for segment in plain.split(b"/"):
        word = segment.strip(_BLANK)
        if word == b"..":
            del segments[-1:]
        elif word not in (b"", b"."):
            segments.append(word)
    return b"/" + b"/".join(segments)


def _unquoted(path: bytes) -> bytes:
    for _ in range(_DECODINGS):
        decoded = unquote_to_bytes(path)
        if decoded == path:
            break
        path = decoded
    return path
