"""HTTP headers as they stand on the wire: pairs of bytes, in order, repeated ones kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

CONVERSATION: Final = b"x-prefixpilot-conversation"
ENGINE: Final = b"x-prefixpilot-engine"
DEDUPE: Final = b"x-prefixpilot-dedupe"
MAX_DISPLACEMENT: Final = b"x-prefixpilot-max-displacement"
MODE: Final = b"x-prefixpilot-mode"
PLAN: Final = b"x-prefixpilot-plan"
RECOGNISE: Final = b"x-prefixpilot-recognise"
REQUEST_ID: Final = b"x-request-id"

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that belong to one connection (RFC 9110, 7.6.1)."""

NOT_SENT_ON: Final = frozenset((b"host", b"expect"))
"""Host names us; ``Expect: 100-continue`` has been answered by us."""


def get(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header, in latin-1; ``name`` in lower case."""
    for key, value in headers:
        if key == name or key.lower() == name:
            return value.decode("latin-1")
    return None


def without(headers: Iterable[tuple[bytes, bytes]], names: Iterable[bytes]) -> RawHeaders:
    """The headers but those; ``names`` in lower case."""
    dropped = frozenset(names)
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """The headers that are not about this connection, those that ``Connection`` names included."""
    kept, named = list[tuple[bytes, bytes]](), list[bytes]()
    for header in headers:
        name = header[0].lower()
        if name not in HOP_BY_HOP:
            kept.append(header)
        elif name == b"connection":
            named += header[1].split(b",")
    return without(kept, [token.strip().lower() for token in named]) if named else kept


_UNSENDABLE: Final = re.compile(rb"[\x00\n\v\f\r]")


def unsendable(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The first header that HTTP cannot carry, if there is one."""
    for key, value in headers:
        if _UNSENDABLE.search(value) or _UNSENDABLE.search(key):
            return key.decode("latin-1")
    return None


def framed_once(headers: RawHeaders) -> RawHeaders:
    """Without a ``Content-Length`` that a ``Transfer-Encoding`` overrides (RFC 9112, 6.3)."""
    if get(headers, b"transfer-encoding") is None or get(headers, b"content-length") is None:
        return headers
    return without(headers, (b"content-length",))


def wants_websocket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the request asks to go on as a WebSocket."""
    return (get(headers, b"upgrade") or "").strip().lower() == "websocket"
