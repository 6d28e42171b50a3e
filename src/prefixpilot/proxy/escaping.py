"""Texts as they stand in JSON strings, by ``orjson``: a tenth of the time of :mod:`prefixpilot.jsontext.escapes`.

Of a body nothing but single strings is written by it, so that nothing else can come out otherwise than it came.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from sys import getsizeof
from typing import Any, Final, cast

from prefixpilot.errors import MissingExtraError
from prefixpilot.generations import Generations
from prefixpilot.jsontext import Edit, JsonText

try:
    import orjson
except ImportError:
    raise MissingExtraError("orjson", 'pip install "prefixpilot[proxy]"') from None

LONGEST: Final = 32 << 10
"""Characters of a text that is kept: blocks, not what is made of many."""

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


class Placing:
    """Puts texts into bodies. What a text looks like there is kept, for it may come again. Bounded; threads may share
    it.

    Args:
        max_bytes: of what is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._kept: Generations[str, str] = Generations(max_bytes, _size)

    @property
    def size(self) -> int:
        """Bytes held: an estimate."""
        return self._kept.size

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

    def place(self, source: JsonText, edits: Sequence[Edit]) -> bytes:
        """:meth:`JsonText.edited`."""
        return source.edited(edits, self.all_escaped)

    def all_escaped(self, texts: Sequence[str]) -> list[str] | None:
        """Each of them :func:`escaped`; ``None`` if one cannot be. O(1) for a ``str`` that came before."""
        known = list(map(self._kept.newer.get, texts))
        found = [self._one(text) if plain is None else plain for text, plain in zip(texts, known, strict=True)]
        return None if None in found else cast("list[str]", found)

    def _one(self, text: str) -> str | None:
        """Of a text that was not used lately."""
        if len(text) > LONGEST:
            return escaped(text)
        found = self._kept.get(text)
        if found is None and (found := escaped(text)) is not None:
            found = text if found == text else found
            self._kept.put(text, found)
        return found


def _size(found: str) -> int:
    """Of what is found, and of the text that it is found by."""
    return 2 * getsizeof(found) + 512
