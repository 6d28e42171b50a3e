"""The way to the engine: one HTTP client, that changes nothing on the way (aiohttp)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from prefixpilot.errors import EngineError, MissingExtraError
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.wire.engine import FRAMING, NOT_ADDED, EngineConnector, EngineRequest, LostError
from prefixpilot.proxy.wire.headers import NOT_SENT_ON, RawHeaders, end_to_end, unsendable, without

try:
    import aiohttp
    from aiohttp.payload import BytesPayload, Payload
    from multidict import CIMultiDict
    from yarl import URL
except ImportError:
    raise MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"') from None

KEEP_ALIVE_S: Final = 2.0
"""Shorter than the 5 s after which common engines close an idle connection: few POSTs meet a closing one."""
PIECE_BYTES: Final = 256 * 1024
"""A longer body is written in pieces, so that no copy of all of it is made at once."""
IDEMPOTENT: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
"""Methods that may be sent again when it is not known whether the engine saw them (RFC 9110, 9.2.2)."""

EngineResponse = aiohttp.ClientResponse
Head: TypeAlias = tuple[bytes, bytes, RawHeaders]
"""Method, target and headers, as on the wire."""

log = logging.getLogger(__name__)


class NoAnswerError(EngineError):
    """There is no answer that can be passed on.

    Attributes:
        unseen: no connection came about, so that the engine has not seen the request.
        silent: no byte of an answer had come.
    """

    def __init__(self, message: str, *, unseen: bool = False, silent: bool = False) -> None:
        super().__init__(message)
        self.unseen = unseen
        self.silent = silent or unseen


class EngineUnreachableError(NoAnswerError):
    """The engine did not answer, or not by HTTP."""


class UnsendableError(EngineUnreachableError):
    """The request cannot be sent to any engine."""


class EngineTimeoutError(NoAnswerError):
    """The engine sent nothing within the bound."""


class EngineBrokeOffError(EngineError):
    """The engine's answer ended before its end."""


class Upstream:
    """A client of one engine. Use between ``start`` and ``close``, on one event loop.

    Connections are used again. One that turns out to be closed before the first byte of an answer (engines close them
    as they like) is no failure of a request that may be sent twice: it goes out once more, on a new connection.
    llama.cpp closes after every streamed answer, whatever its headers say, so that without TLS, where a new connection
    costs next to nothing, none is used again after a stream.

    Attributes:
        server: what the engine last said in its header ``Server``; empty: nothing.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.server = ""
        self._settings = settings
        self._root = settings.engine_root
        self._url = URL(self._root + "/", encoded=True)
        self._prefix = self._url.raw_path.rstrip("/").encode("ascii")
        self._timeouts = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout, sock_read=settings.idle_timeout
        )
        self._pooled: EngineConnector | None = None
        self._fresh: EngineConnector | None = None

    async def start(self) -> None:
        """Open the client. No connection is made yet."""
        limit, one_stream = self._settings.max_connections, self._url.scheme == "http"
        idle = self._settings.idle_timeout
        self._pooled = EngineConnector(limit=limit, keep_alive=KEEP_ALIVE_S, write_timeout=idle, one_stream=one_stream)
        self._fresh = EngineConnector(limit=limit, keep_alive=0, write_timeout=idle)

    async def close(self) -> None:
        """Close all connections."""
        for connector in (self._pooled, self._fresh):
            if connector is not None:
                await connector.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterable[bytes] | None,
        *,
        repeatable: bool = False,
    ) -> AsyncIterator[EngineResponse]:
        """:meth:`answer`, closed at the end. Leaving early closes the connection."""
        response = await self.answer(method, target, headers, body, repeatable=repeatable)
        try:
            yield response
        finally:
            response.close()

    async def answer(
        self,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | AsyncIterable[bytes] | None,
        *,
        repeatable: bool = False,
        sent: Callable[[], object] | None = None,
    ) -> EngineResponse:
        """Send a request; the response when its headers have come. Close it.

        Args:
            target: raw path and query, as on the wire; begins with ``/``, so that it cannot choose a host.
            headers: the client's; those of its connection and ``Host`` are left out.
            body: a body of known length as bytes, one that streams as an iterable.
            repeatable: to send it twice does no harm, though the method is not idempotent.
            sent: called when it is on its way, if it comes to that: for what can be done while the engine works.

        Raises:
            EngineUnreachableError, EngineTimeoutError: no response, or none that can be passed on.
        """
        if not target.startswith(b"/"):
            raise UnsendableError("a request target has to begin with /")
        head = method.encode("ascii"), self._prefix + target, without(end_to_end(headers), NOT_SENT_ON)
        if (name := unsendable(head[2])) is not None:
            raise UnsendableError(f"the header {name!r} holds a control character")
        again = isinstance(body, bytes | None) and (repeatable or method in IDEMPOTENT)
        try:
            response = await self._send(head, body, sent, again=again)
        except TimeoutError as error:
            message = f"the engine at {self._root} did not answer in time ({_reason(error)})"
            raise EngineTimeoutError(message, unseen=isinstance(error, aiohttp.ConnectionTimeoutError)) from error
        except (LostError, aiohttp.ClientError, OSError, ValueError) as error:
            message = f"the engine at {self._root} did not answer: {_reason(error)}"
            lost = error if isinstance(error, LostError) else LostError(error, stale=False)
            raise EngineUnreachableError(message, unseen=lost.unseen, silent=lost.silent) from error
        try:
            _check_head(response)
        except EngineUnreachableError:
            response.close()
            raise
        self.server = response.headers.get("Server", "")
        return response

    async def _send(
        self, head: Head, body: bytes | AsyncIterable[bytes] | None, sent: Callable[[], object] | None, *, again: bool
    ) -> EngineResponse:
        if self._pooled is None or self._fresh is None:
            raise EngineUnreachableError("the proxy is not started")
        try:
            return await self._attempt(self._pooled, head, body, sent)
        except LostError as lost:
            if not (again and lost.stale):
                raise
            log.debug("a kept connection to the engine was closed (%s); sending again on a new one", kind_of(lost))
        return await self._attempt(self._fresh, head, body, sent)

    async def _attempt(
        self,
        connector: EngineConnector,
        head: Head,
        body: bytes | AsyncIterable[bytes] | None,
        sent: Callable[[], object] | None,
    ) -> EngineResponse:
        method, _, headers = head
        fields = CIMultiDict(
            [(key.decode("latin-1"), value.decode("latin-1")) for key, value in headers if key.lower() in FRAMING]
        )
        data: Payload | AsyncIterable[bytes] | None = None
        if not isinstance(body, bytes):
            data = body
        elif len(body) > PIECE_BYTES:
            fields.setdefault("Content-Length", str(len(body)))
            data = _pieces(body)
        else:
            data = BytesPayload(body)
        request = EngineRequest(
            method.decode("ascii"),
            self._url,
            headers=fields,
            skip_auto_headers=NOT_ADDED,
            data=data,
            loop=asyncio.get_running_loop(),
        )
        request.verbatim, request.sent = head, sent
        return await request.answered(connector, self._timeouts)

    async def probe(self) -> str | None:
        """Ask the engine for ``/health``; what is wrong with it, or ``None``. An engine without that path is fine."""
        try:
            async with asyncio.timeout(self._settings.ready_timeout):
                async with self.request("GET", b"/health", [], None) as response:
                    return None if response.status < 500 else f"answers GET /health with {response.status}"
        except TimeoutError:
            return f"does not answer GET /health within {self._settings.ready_timeout:g} s"
        except EngineError as error:
            return str(error)


def _check_head(response: EngineResponse) -> None:
    """Raises EngineUnreachableError for a head that no client could be sent."""
    if not 200 <= response.status < 600:
        raise EngineUnreachableError(f"the engine answered with status {response.status}, which is none of HTTP")
    name = unsendable(response.raw_headers)
    if name is not None:
        raise EngineUnreachableError(f"the engine's header {name!r} holds a control character")


async def _pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


async def chunks(response: EngineResponse) -> AsyncGenerator[bytes, None]:
    """The raw body as it comes, still encoded.

    Raises:
        EngineBrokeOffError, EngineTimeoutError: it ended before its end.
    """
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except TimeoutError as error:
        raise EngineTimeoutError("the engine stopped sending") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineBrokeOffError(f"the engine broke off: {_reason(error)}") from error


def is_complete(response: EngineResponse) -> bool:
    """Whether the whole body has come with the head."""
    return response.content.is_eof()


def whole(response: EngineResponse) -> bytes:
    """The raw body of a response that :func:`is_complete`. Raises as :func:`chunks`."""
    try:
        return response.content.read_nowait()
    except (aiohttp.ClientError, OSError) as error:
        raise EngineBrokeOffError(f"the engine broke off: {_reason(error)}") from error


def response_headers(response: EngineResponse) -> RawHeaders:
    """The engine's headers but those of its connection, names in lower case as ASGI wants them."""
    return [(key.lower(), value) for key, value in end_to_end(response.raw_headers)]


def response_reason(response: EngineResponse) -> bytes:
    """The engine's reason phrase, as sent."""
    return (response.reason or "").encode("utf-8", "surrogateescape")


def kind_of(error: BaseException) -> str:
    """The kinds of an error and of its cause: all of it that may be logged, since its message may quote the engine."""
    return " < ".join(type(each).__name__ for each in (error, error.__cause__) if each is not None)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
