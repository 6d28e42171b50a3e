"""One HTTP exchange with a client, over ASGI: the request's body, the answer, and whether the client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeAlias, TypeVar

from prefixpilot.proxy.headers import RawHeaders

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

JSON: Final[tuple[bytes, bytes]] = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client closed its connection."""


class BodyTooLargeError(Exception):
    """The request's body is longer than its bound."""


class Exchange:
    """A request and the answer to it.

    Attributes:
        method: as sent.
        path: raw, still percent-encoded, without the query.
        target: raw path and query.
        headers: raw, in order, names in lower case.
        started: the answer's head has been sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        self.target = self.path + (b"?" + query if query else b"")
        self.headers: RawHeaders = list(scope["headers"])
        self.started = False
        self._receive = receive
        self._send = send
        self._body_read = asyncio.Event()

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        names = {name for name, _ in self.headers}
        return b"content-length" in names or b"transfer-encoding" in names

    async def stream(self) -> AsyncIterator[bytes]:
        """The request's body as it comes. Raises ClientGoneError."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._body_read.set()
                raise ClientGoneError
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]
        self._body_read.set()

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises ClientGoneError, BodyTooLargeError."""
        body = bytearray()
        async for data in self.stream():
            body += data
            if len(body) > max_bytes:
                raise BodyTooLargeError
        return bytes(body)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``; if the client goes away first, cancel it and raise ClientGoneError."""
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.wait((task, gone))

    async def _gone(self) -> None:
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the head of the answer."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the answer's body; waits while the client is slow."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(self, status: int, body: bytes, content_type: tuple[bytes, bytes] = JSON) -> None:
        """Send a whole answer of ours."""
        await self.start(status, [content_type, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)
