"""The way to the engine: one HTTP client, that changes nothing on the way (aiohttp)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prefixpilot.errors import EngineError, MissingExtraError
from prefixpilot.proxy.headers import NOT_SENT_ON, RawHeaders, end_to_end, without
from prefixpilot.proxy.settings import ProxySettings

try:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL
except ImportError:
    raise MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"') from None

KEEP_ALIVE_S: Final = 2.0
"""Shorter than the 5 s after which common engines close an idle connection: a POST is never sent into a closing one."""
MAX_HEADER_BYTES: Final = 64 * 1024

EngineResponse = aiohttp.ClientResponse


class EngineUnreachableError(EngineError):
    """The engine did not answer, or not by HTTP."""


class EngineTimeoutError(EngineError):
    """The engine sent nothing within the bound."""


class EngineBrokeOffError(EngineError):
    """The engine's answer ended before its end."""


class Upstream:
    """A client of one engine. Use between ``start`` and ``close``, on one event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._root = settings.engine_root
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the client. No connection is made yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._settings.max_connections, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._settings.connect_timeout, sock_read=self._settings.idle_timeout
            ),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self, method: str, target: bytes, headers: RawHeaders, body: bytes | AsyncIterable[bytes] | None
    ) -> AsyncIterator[EngineResponse]:
        """Send a request; the response when its headers have come. Leaving early closes the connection.

        Args:
            target: raw path and query, as on the wire.
            headers: the client's; those of its connection and ``Host`` are left out.
            body: a body of known length as bytes, one that streams as an iterable.

        Raises:
            EngineUnreachableError, EngineTimeoutError: no response.
        """
        if self._session is None:
            raise EngineUnreachableError("the proxy is not started")
        url = URL(self._root + target.decode("latin-1"), encoded=True)
        sent = CIMultiDict((_text(k), _text(v)) for k, v in without(end_to_end(headers), NOT_SENT_ON))
        try:
            response = await self._session.request(method, url, headers=sent, data=body, allow_redirects=False)
        except TimeoutError as error:
            raise EngineTimeoutError(f"the engine at {self._root} did not answer in time ({_reason(error)})") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineUnreachableError(f"the engine at {self._root} did not answer: {_reason(error)}") from error
        _never_reuse_after_a_stream(response)
        try:
            yield response
        finally:
            response.close()

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


def _never_reuse_after_a_stream(response: EngineResponse) -> None:
    """llama.cpp closes the connection after a streamed answer, whatever its Keep-Alive header says."""
    connection = response.connection
    if connection is not None and connection.protocol is not None and response.content_type == "text/event-stream":
        connection.protocol.force_close()


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


def response_headers(response: EngineResponse) -> RawHeaders:
    """The engine's headers but those of its connection, names in lower case as ASGI wants them."""
    return [(key.lower(), value) for key, value in end_to_end(response.raw_headers)]


def _text(value: bytes) -> str:
    """So that aiohttp, which writes UTF-8, writes the same bytes; bytes that are no UTF-8 are taken as latin-1."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
