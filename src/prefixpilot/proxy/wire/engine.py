"""What aiohttp does not do: write a head of the client's own bytes, and say what was lost with a connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.wire.headers import RawHeaders

try:
    import aiohttp
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
except ImportError:
    raise MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"') from None

FRAMING: Final = (b"connection", b"content-length", b"transfer-encoding")
"""Headers that aiohttp decides upon, unless the client sent them. It need not know the others: the head is ours."""
MAX_HEADER_BYTES: Final = 64 * 1024
"""Of each header of an answer."""
MAX_HEADERS: Final = 4096
"""Of an answer; aiohttp takes 128 unless told otherwise."""
NOT_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add. They are not sent, since the head is ours: to make them would be for nothing."""


class LostError(Exception):
    """The connection broke, or could not be used, before the head of an answer.

    Attributes:
        stale: it had served a request before, and no byte of an answer to this one had come: it may be that the engine
            closed it without having seen this request.
        unseen: there was no connection.
        silent: no byte of an answer to this request had come.
    """

    def __init__(self, cause: Exception, *, stale: bool, silent: bool = False) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.stale = stale
        self.unseen = isinstance(cause, aiohttp.ClientConnectorError)
        self.silent = silent


class EngineProtocol(ResponseHandler):
    """A connection to the engine. Counts its requests, and the bytes that came since the last one was sent.

    Two waits that aiohttp leaves without an end have one here: for a body whose chunks turn out to be none midway, and
    for an engine that does not read what is sent to it.

    Args:
        one_stream: let no request follow a stream of events on it.
        write_timeout: seconds in which the engine may leave unread what the buffers between cannot hold.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, one_stream: bool, write_timeout: float) -> None:
        super().__init__(loop=loop)
        self._write_timeout = write_timeout
        self._unread: asyncio.TimerHandle | None = None
        self._connection: asyncio.Transport | None = None
        self._one_stream = one_stream
        self.requests = 0
        self.received = 0
        self._body: aiohttp.StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As aiohttp."""
        super().connection_made(transport)
        self._connection = cast(asyncio.Transport, transport)  # uvloop's is one, and no subclass

    def pause_writing(self) -> None:
        """The engine does not read: wait for it no longer than the bound."""
        super().pause_writing()
        self._unread = self._loop.call_later(self._write_timeout, self._give_up)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self.set_exception(aiohttp.SocketTimeoutError("it does not read the request"))
        if self._connection is not None:
            self._connection.abort()  # to close would wait for what it does not read

    def data_received(self, data: bytes) -> None:
        """Count what comes."""
        self.received += len(data)
        super().data_received(data)
        if self.exception() is not None:
            self._break_off()

    def connection_lost(self, exc: BaseException | None) -> None:
        """As aiohttp."""
        self._stop_waiting()
        self._connection = None
        super().connection_lost(exc)
        self._break_off()

    def _break_off(self) -> None:
        body, self._body = self._body, None
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("its body cannot be read on"))

    async def read(self) -> Any:
        """The head of the answer. Whether the connection serves again is settled here, before its body can end."""
        message, payload = await super().read()
        self._body = payload
        kind = message.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if self._one_stream and kind == "text/event-stream":
            self.force_close()
        return message, payload


def _protocol(one_stream: bool, write_timeout: float, loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return EngineProtocol(loop, one_stream=one_stream, write_timeout=write_timeout)


class EngineConnector(aiohttp.TCPConnector):
    """Makes connections of :class:`EngineProtocol`.

    Args:
        keep_alive: seconds for which an idle connection is kept; 0: each request has a connection of its own.
        write_timeout: see :class:`EngineProtocol`.
    """

    def __init__(self, *, limit: int, keep_alive: float, write_timeout: float, one_stream: bool = False) -> None:
        if keep_alive:
            super().__init__(limit=limit, keepalive_timeout=keep_alive)
        else:
            super().__init__(limit=limit, force_close=True)
        self._factory = functools.partial(_protocol, one_stream, write_timeout, loop=self._loop)


class EngineRequest(aiohttp.ClientRequest):
    """A request whose head is written as given, byte for byte; aiohttp only frames the body.

    Attributes:
        sent: called when all of it has been given to the connection, on the next turn of the loop.
    """

    verbatim: tuple[bytes, bytes, RawHeaders] | None = None
    sent: Callable[[], object] | None = None
    protocol: EngineProtocol | None = None

    def update_body_from_data(self, body: Any, *args: Any, **kwargs: Any) -> None:
        """No body: an empty payload, without the ``Content-Length: 0`` that aiohttp would add."""
        if body is None:
            self._body = aiohttp.payload.BytesPayload(b"")
        else:
            super().update_body_from_data(body, *args, **kwargs)

    async def answered(self, connector: EngineConnector, timeouts: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The response when its head has come: one attempt, on a connection of that connector.

        This is what is left of aiohttp's session if nobody wants its cookies, redirects, proxies, retries and traces.

        Raises:
            LostError: no answer, or none that HTTP can be read from.
            TimeoutError: as aiohttp's.
        """
        try:
            connection = await self._connected(connector, timeouts)
            try:
                assert connection.protocol is not None
                connection.protocol.set_response_params(
                    skip_payload=self.method == "HEAD",
                    read_until_eof=True,
                    auto_decompress=False,
                    read_timeout=timeouts.sock_read,
                    max_line_size=MAX_HEADER_BYTES,
                    max_field_size=MAX_HEADER_BYTES,
                    max_headers=MAX_HEADERS,
                )
                response = await self.send(connection)
                try:
                    await response.start(connection)
                except BaseException:
                    response.close()
                    raise
            except BaseException:
                connection.close()
                raise
            return response
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise LostError(error, stale=self.stale and _is_disconnect(error), silent=self.silent) from error

    async def _connected(self, connector: EngineConnector, timeouts: aiohttp.ClientTimeout) -> Connection:
        try:
            return await connector.connect(self, [], timeouts)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self.url}") from error

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Note the connection, and that a request begins on it."""
        assert isinstance(conn.protocol, EngineProtocol)
        self.protocol = conn.protocol
        self.protocol.requests += 1
        self.protocol.received = 0
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Put our head in the place of aiohttp's, which has been checked and not yet been written."""
        if self.verbatim is not None:
            assert hasattr(writer, "_headers_buf"), "aiohttp has changed; see wire/engine.py"
            writer._headers_buf = self._head(*self.verbatim)
        await super().write_bytes(writer, conn, content_length)
        if self.sent is not None:
            self.loop.call_soon(self.sent)

    def _head(self, method: bytes, target: bytes, headers: RawHeaders) -> bytes:
        given = {name.lower() for name, _ in headers}
        framing = [(name, self.headers[name.decode()].encode()) for name in self._framing() if name not in given]
        lines = [b"%b %b HTTP/1.1" % (method, target), b"host: " + self.headers["Host"].encode()]
        lines += [b"%b: %b" % pair for pair in (*headers, *framing)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _framing(self) -> Iterable[bytes]:
        return (name for name in FRAMING if name.decode() in self.headers)

    @property
    def silent(self) -> bool:
        """Whether nothing has come back."""
        return self.protocol is None or not self.protocol.received

    @property
    def stale(self) -> bool:
        """Whether it went out on a used connection and nothing has come back."""
        return self.protocol is not None and self.protocol.requests > 1 and not self.protocol.received


def _is_disconnect(error: Exception) -> bool:
    """Not: an answer that is no HTTP."""
    return isinstance(error, aiohttp.ClientConnectionError | OSError) and not isinstance(
        error, aiohttp.ClientConnectorError
    )
