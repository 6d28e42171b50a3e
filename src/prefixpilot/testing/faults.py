"""How a :class:`~prefixpilot.testing.SimulatedEngine` can misbehave. Each is a value; set ``engine.fault`` to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

LATER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer every request with this, whatever it asks.

    Attributes:
        headers: further response headers, for example a ``content-encoding``.
    """

    status: int = 500
    body: bytes = b'{"error": {"message": "simulated failure", "type": "server_error", "param": null, "code": null}}'
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BreakOff:
    """Close the connection in the midst of a chat answer, which then lacks its proper end.

    Attributes:
        after_chunks: how many content chunks go out before, in a stream; a plain answer breaks off within its body.
    """

    after_chunks: int = 1


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """End a chat stream by an event that carries an error; a plain answer is a 500 that carries it.

    Attributes:
        after_chunks: how many content chunks go out before it.
        error: the value of ``error``.
    """

    after_chunks: int = 0
    error: Mapping[str, object] = field(
        default_factory=lambda: {"message": "simulated failure", "type": "server_error", "param": None, "code": None}
    )


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection without a byte of an answer."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Write these bytes in place of an HTTP answer, then close the connection.

    Attributes:
        later: written ``LATER_S`` seconds behind ``data``, so that a client reads both apart.
    """

    data: bytes = b"\x00\xffthis is not HTTP\r\n\r\n"
    later: bytes = b""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Write these bytes in place of an HTTP answer, then end only the sending side: the engine goes on reading."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Stall:
    """Fall silent in the midst of an answer, and leave the connection open until the client gives it up.

    Attributes:
        after_chunks: how many content chunks go out before, in a stream; a plain answer stops within its body.
    """

    after_chunks: int = 1


Fault: TypeAlias = Respond | BreakOff | ErrorEvent | CloseConnection | Garbage | HalfClose | Stall
