"""Plain requests are read by llhttp; a connection with any other goes to h11 before a byte of that has been acted upon.

A request is plain if its head has come in one piece, keeps :data:`PLAIN`, has one ``Host`` and at most one length. For
these both parsers read the same. All that they may read in two ways, or not at all, is h11's, with the rest of its
connection: other methods and targets, chunked bodies, upgrades, ``Expect``, folded lines, what is no HTTP.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final
from urllib.parse import unquote

from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.wire.client import WIRE, ClientProtocol, Refuse, Wire, client_protocol, log

try:
    import httptools
    import uvicorn
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
except ImportError:
    raise MissingExtraError("httptools", 'pip install "prefixpilot[proxy]"') from None

_NAME: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_WORD: Final = rb"[!-~\x80-\xff]++"
_FRAMING: Final = rb"connection|content-length|expect|proxy-connection|transfer-encoding|upgrade"
PLAIN: Final = re.compile(
    rb"(?:GET|POST) /[!-~]*+ HTTP/1\.1\r\n"
    rb"(?:(?!(?i:" + _FRAMING + rb"):)" + _NAME + rb": " + _WORD + rb"(?: ++" + _WORD + rb")*+\r\n"
    rb"|(?i:connection: keep-alive|content-length: (?P<length>[0-9]{1,15}))\r\n)*+\r\n"
)
"""The head of a plain request. Only a filter: what passes it is read by a parser."""

_BODILESS: Final = frozenset((204, 304))


class PlainWire(Wire):
    """A connection that uvicorn writes without h11: its bytes, with our reason phrase, a head that waits with its body.

    It is the transport of uvicorn's :class:`RequestResponseCycle`.
    """

    _head: bytes = b""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self.is_closing = transport.is_closing
        self.close = transport.close
        self._write = transport.write

    def write(self, data: bytes) -> None:
        """Send it, or keep it until the next piece."""
        if self.reason is not None:
            data, self.reason = _with_reason(data, self.reason), None
        if self.waits:
            self._head, self.waits = data, False
            return
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self._write(data)


def _with_reason(head: bytes, reason: bytes) -> bytes:
    start = len(b"HTTP/1.1 200 ")
    end = head.index(b"\r\n")
    return head if head[start:end] == reason else head[:start] + reason + head[end:]


class _Cycle(RequestResponseCycle):
    async def send(self, message: Any) -> None:
        """As uvicorn, which waits for the body of answers that have none."""
        await super().send(message)
        if message.get("status") in _BODILESS:
            self.expected_content_length = 0


class PlainProtocol(HttpToolsProtocol):
    """Uvicorn's protocol over httptools for plain requests; gives its connection away at the first other one.

    Attributes:
        head_timeout: seconds from the connection to the first byte.
        other: makes the protocol that takes over.
    """

    head_timeout: float
    other: type[ClientProtocol]

    _wire: PlainWire

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = log
        self._made_with = config, server_state, app_state, _loop
        self._max_head = config.h11_max_incomplete_event_size or 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._plain = True
        self._left = 0  # bytes of the request's body that have not come
        self._next = b""  # what came of the next request while one is answered
        self._raw_root = self.root_path.encode("ascii")

    # -- of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn, and wait for the first head no longer than the bound."""
        super().connection_made(transport)
        self._wire = PlainWire(transport)
        self._head_timer = self.loop.call_later(self.head_timeout, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn; and end what is done for the client."""
        self._stop_timer()
        super().connection_lost(exc)
        self._wire.lost()

    def data_received(self, data: bytes) -> None:
        """The rest of a body, then a request, or what is to be another after the one that is answered."""
        if self._left:
            data = self._feed_body(data)
        if not data:
            return
        if self._next or (self.cycle is not None and not self.cycle.response_complete):
            self._next += data
            self.flow.pause_reading()
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        self._stop_keep_alive()  # not sooner: the rest of a body that was answered before its end is no request
        end = data.find(b"\r\n\r\n", 0, self._max_head) + 4
        head = PLAIN.fullmatch(data, 0, end) if end >= 4 else None
        length = int(head["length"] or 0) if head is not None else 0
        own = data if len(data) <= end + length else data[: end + length]
        self._left = end + length - len(own)
        if head is None or not self._feed(own):
            self._left = 0
            self._give_away(data)
            return
        if self._head_timer is not None:
            self._stop_timer()
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        if len(data) > len(own):
            self.data_received(data[len(own) :])

    def _feed(self, data: bytes) -> bool:
        """Whether a head, and what has come of its body, is plain. The app has nothing of it yet."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return self._plain

    def _feed_body(self, data: bytes) -> bytes:
        """What follows after the body."""
        size = min(self._left, len(data))
        self._left -= size
        if size == len(data):
            self.parser.feed_data(data)
            return b""
        self.parser.feed_data(data[:size])
        return data[size:]

    def _give_away(self, data: bytes) -> None:
        deadline = None if self._head_timer is None else self._head_timer.when()
        self._stop_timer()
        self.connections.discard(self)
        self.flow.resume_reading()
        self.other(*self._made_with).take_over(self.transport, data, deadline, paused=self.flow.write_paused)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_keep_alive(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    # -- of the parser

    def on_message_begin(self) -> None:
        """A request."""
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """What the app is to see of a plain request."""
        names = [name for name, _ in self.headers]
        lengths = names.count(b"content-length")
        self._plain = names.count(b"host") == 1 and lengths <= 1
        if not self._plain:
            return
        self._wire.target = self.url
        self._wire.body_read = False
        self.cycle = _Cycle(
            scope=self._scope(),
            transport=self._wire,  # type: ignore[arg-type]
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )

    def _scope(self) -> Any:
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": self.root_path,
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self._raw_root + raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
            WIRE: self._wire,
        }

    def on_body(self, body: bytes) -> None:
        """A piece; the first one is not copied."""
        cycle = self.cycle
        if not self._plain or cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = body  # type: ignore[assignment]
        else:
            cycle.body = cycle.body if isinstance(cycle.body, bytearray) else bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The end of a request."""
        if self._plain:
            self._wire.body_read = True
            super().on_message_complete()

    # -- of uvicorn

    def on_response_complete(self) -> None:
        """As uvicorn; then what has come meanwhile."""
        super().on_response_complete()
        if self._next and not self.transport.is_closing():
            data, self._next = self._next, b""
            self._begin(data)


def plain_protocol(head_timeout: float, refuse: Refuse) -> type[PlainProtocol]:
    """The protocol, with that bound; what is refused is told by the one that takes over."""
    own = {"head_timeout": head_timeout, "other": client_protocol(head_timeout, refuse)}
    return type("PlainProtocol", (PlainProtocol,), own)
