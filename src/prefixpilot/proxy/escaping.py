"""Texts as they stand in JSON strings, by ``orjson``: a tenth of the time of :mod:`prefixpilot.jsontext.escapes`.

Of a body nothing but single strings is written by it, so that nothing else can come out otherwise than it came.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from prefixpilot.errors import MissingExtraError
from prefixpilot.jsontext import Edit, JsonText

try:
    import orjson
except ImportError:
    raise MissingExtraError("orjson", 'pip install "prefixpilot[proxy]"') from None

_COMPACT: Final = json.JSONEncoder(separators=(",", ":"))


def escaped(text: str) -> str | None:
    """``text`` between the quotes of a JSON string, characters beyond ASCII as they are. O(length).

    ``None`` for a lone surrogate, which no UTF-8 can carry.
    """
    try:
        return orjson.dumps(text)[1:-1].decode()
    except orjson.JSONEncodeError:
        return None


def dumped(value: Any) -> str:
    """JSON of what is kept by us, for ``json.loads``: keys in order, lone surrogates and long integers too.

    Raises:
        TypeError: it is none that JSON has.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return json.dumps(value)


def compact(value: Any) -> bytes:
    """JSON without spaces, in ASCII. Raises TypeError: it is none that JSON has."""
    try:
        data: bytes = orjson.dumps(value)
    except orjson.JSONEncodeError:
        data = b"\xff"
    return data if data.isascii() else _COMPACT.encode(value).encode("ascii")


def place(source: JsonText, edits: Sequence[Edit]) -> bytes:
    """:meth:`JsonText.edited`."""
    return source.edited(edits, escaped)
