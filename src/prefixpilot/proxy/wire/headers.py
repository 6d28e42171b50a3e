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
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


def without(headers: Iterable[tuple[bytes, bytes]], names: Iterable[bytes]) -> RawHeaders:
    """The headers but those; ``names`` in lower case."""
    dropped = frozenset(names)
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """The headers that are not about this connection, those that ``Connection`` names included."""
    headers = list(headers)
    named = [value for key, value in headers if key.lower() == b"connection"]
    tokens = {token.strip().lower() for value in named for token in value.split(b",")}
    return without(headers, HOP_BY_HOP | tokens)


_UNSENDABLE: Final = re.compile(rb"[\x00\n\v\f\r]")


def unsendable(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The first header that HTTP cannot carry, if there is one."""
    return next(
        (key.decode("latin-1") for key, value in headers if _UNSENDABLE.search(value) or _UNSENDABLE.search(key)), None
    )


def framed_once(headers: RawHeaders) -> RawHeaders:
    """Without a ``Content-Length`` that a ``Transfer-Encoding`` overrides (RFC 9112, 6.3)."""
    both = {b"content-length", b"transfer-encoding"} <= {key.lower() for key, _ in headers}
    return without(headers, (b"content-length",)) if both else headers


def wants_websocket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the request asks to go on as a WebSocket."""
    return (get(headers, b"upgrade") or "").strip().lower() == "websocket"
