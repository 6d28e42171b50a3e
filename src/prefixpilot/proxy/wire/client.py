"""What uvicorn keeps from an app and a transparent proxy needs: target as sent, reason phrase, the client's end.

And what it leaves open: a head that is too long is told so, and one that does not come to its end has a bound in time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from prefixpilot.errors import MissingExtraError

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("uvicorn", 'pip install "prefixpilot[proxy]"') from None

WIRE: Final = "prefixpilot.wire"
"""Key of the ASGI scope under which the app finds the :class:`ClientWire`."""
_TOLD_BY_US: Final = (
    "ASGI callable returned without completing response.",
    "Invalid HTTP request received.",
)
"""What uvicorn says of an answer that breaks off as the engine's did, and of what is no HTTP. Both are in our log."""

_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*+")
_ALL_CAME: Final = frozenset((h11.DONE, h11.MUST_CLOSE))

log = logging.getLogger(__name__)
log.addFilter(lambda record: record.msg not in _TOLD_BY_US)


class Refusal(NamedTuple):
    """Our answer to what is no HTTP, or did not come to its end.

    Attributes:
        target: of the request, as far as it came; empty if that is not known.
        request: there is a request that it ends; else nothing was passed to the app.
    """

    target: bytes
    status: int
    code: str
    message: str
    request: bool


Refuse: TypeAlias = Callable[[Refusal], bytes]
"""Told of a refusal; returns the body of the answer."""


class Wire:
    """A connection with a client, as the app sees it.

    Attributes:
        target: of the request that is being answered, as sent.
        reason: phrase of the answer that comes next; ``None``: the usual one of its status.
        waits: the head of that answer goes out together with the first piece of its body, which is there already.
        refused: our answer to what was no HTTP; ``None`` if there is none.
        gone: the client has closed its connection.
        body_read: all of the request that is being answered has come.
    """

    target: bytes = b""
    reason: bytes | None = None
    waits: bool = False
    refused: Refusal | None = None
    gone: bool = False
    body_read: bool = False

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def lost(self) -> None:
        """The client has gone: cancel the tasks that are bound to it."""
        self.gone = True
        while self._tasks:
            self._tasks.pop().cancel()

    def bind(self, task: asyncio.Task[Any]) -> None:
        """Cancel that task when the client goes."""
        self._tasks.add(task)

    def unbind(self, task: asyncio.Task[Any]) -> bool:
        """Cancel it no more. Whether it was not: ``False`` if the client has gone."""
        bound = task in self._tasks
        self._tasks.discard(task)
        return bound


class ClientWire(h11.Connection, Wire):
    """A connection that h11 reads and writes.

    Attributes:
        max_head: bound of a request's head in bytes; ``None`` for h11's own, which is of what has not yet all come.
        too_long: the client sent a head longer than the bound.
    """

    _head: bytes = b""
    max_head: int | None = None
    too_long: bool = False

    def __init__(self, our_role: type[h11.SERVER], **bounds: int) -> None:
        h11.Connection.__init__(self, our_role, **bounds)
        Wire.__init__(self)

    @property
    def body_read(self) -> bool:  # type: ignore[override]
        """All of the request that is being answered has come."""
        return self.their_state in _ALL_CAME

    def next_event(self) -> Any:
        """As h11, and note the target; empty lines before a request are none of it (RFC 9112, 2.2)."""
        if self.their_state is h11.IDLE and self._begins_with_end_of_line():
            return h11.NEED_DATA
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self.target = event.target
                if self.max_head is not None and _head_bytes(event) > self.max_head:
                    raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        except h11.RemoteProtocolError as error:
            self.too_long = error.error_status_hint == 431
            raise
        return event

    def _begins_with_end_of_line(self) -> bool:
        """Drop the empty lines that have come; whether the next may be one, of which the half is there."""
        waiting = self.trailing_data[0]
        lines = _EMPTY_LINES.match(waiting)
        assert lines is not None  # it matches nothing, too
        if lines.end():
            self._receive_buffer.maybe_extract_at_most(lines.end())
        return waiting[lines.end() :] == b"\r"

    def send(self, event: Any) -> Any:
        """As h11, with our reason phrase; a head that waits comes with what is sent next."""
        waits, self.waits = self.waits, False
        data = self._head + (self._sent(event) or b"")
        self._head = data if waits else b""
        return b"" if waits else data

    def _sent(self, event: Any) -> bytes | None:
        reason, self.reason = self.reason, None
        if isinstance(event, h11.Response) and reason is not None and reason != event.reason:
            event = h11.Response(
                status_code=event.status_code, headers=event.headers, http_version=event.http_version, reason=reason
            )
        sent: bytes | None = super().send(event)
        return sent


class ClientProtocol(H11Protocol):
    """Uvicorn's protocol over a :class:`ClientWire`, that the app finds in its scope.

    Attributes:
        head_timeout: seconds from the first byte of a head, or from the connection, to the head's end.
        refuse: told of what is refused before the app sees it.
    """

    head_timeout: float
    refuse: Refuse

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = log
        wire = self._wire = self.conn = ClientWire(h11.SERVER, **_limit(config))
        wire.max_head = config.h11_max_incomplete_event_size
        self._head_timer: asyncio.TimerHandle | None = None
        app = self.app

        async def with_wire(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, WIRE: wire}, receive, send)

        self.app = with_wire

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn, and wait for the first head no longer than the bound."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout, self._give_up)

    def take_over(self, transport: asyncio.Transport, data: bytes, deadline: float | None, *, paused: bool) -> None:
        """Go on with a connection of another protocol, between two requests, with the bytes that have come of the next.

        Args:
            deadline: of that head, on the loop's clock; ``None``: the bound, from now.
            paused: the client does not read what was sent.
        """
        transport.set_protocol(self)
        self.connection_made(transport)
        if paused:
            self.pause_writing()
        if deadline is not None:
            self._stop_timer()
            self._head_timer = self.loop.call_at(deadline, self._give_up)
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """As uvicorn; what has come and is no whole request, an empty line or the rest of a body that was answered
        before, is followed by one within the bound.

        What follows the last request is not read (RFC 9112, 9.6).
        """
        if self.conn.their_state is h11.MUST_CLOSE:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and not self._answered:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn; and end what is done for the client."""
        self._stop_timer()
        super().connection_lost(exc)
        self._wire.lost()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    @property
    def _answered(self) -> bool:
        """The answer to the last request is over, though its body may not be."""
        return self.cycle is not None and self.cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or (self.conn.their_state is not h11.IDLE and not self._answered):
            return
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "the request's head did not come to its end in time", "request_timeout")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too long a head, in the APIs' error shape, and close."""
        if self._wire.too_long:
            self._refuse(431, "the request's headers are longer than this proxy takes", "headers_too_large")
        else:
            self._refuse(400, msg, "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer is under way
            return
        request = self.cycle is not None and not self.cycle.response_complete
        target = self._wire.target if request or self._wire.too_long else self._begun_target()
        self._wire.refused = Refusal(target, status, code, message, request)
        body = self.refuse(self._wire.refused)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode("ascii")),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _begun_target(self) -> bytes:
        """Of a head that has not come to its end."""
        words = self.conn.trailing_data[0].lstrip().partition(b"\r\n")[0].split(b" ")
        return words[1] if len(words) > 2 else b""


def client_protocol(head_timeout: float, refuse: Refuse) -> type[ClientProtocol]:
    """The protocol, with that bound, and whom it tells."""
    return type("ClientProtocol", (ClientProtocol,), {"head_timeout": head_timeout, "refuse": staticmethod(refuse)})


def _head_bytes(request: h11.Request) -> int:
    """As sent, but for white space: the request line, and each header with its colon, space and line end."""
    line = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n")
    return line + sum([len(name) + len(value) + 4 for name, value in request.headers.raw_items()]) + 2


def _limit(config: uvicorn.Config) -> dict[str, int]:
    size = config.h11_max_incomplete_event_size
    return {} if size is None else {"max_incomplete_event_size": size}
