"""One HTTP exchange with a client, over ASGI: the request's body, the answer, and whether the client is still there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from prefixpilot.proxy.wire.client import WIRE, Refusal, Wire
from prefixpilot.proxy.wire.headers import RawHeaders, framed_once

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

_AUTHORITY: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
JSON: Final[tuple[bytes, bytes]] = (b"content-type", b"application/json")


class ClientGoneError(Exception):
    """The client closed its connection."""


class BodyTooLargeError(Exception):
    """The request's body is longer than its bound.

    Attributes:
        most: the bound in bytes, if it is not that of all requests.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most


class SlowClientError(Exception):
    """The client stopped sending before the end of its request's body."""


class _Head(NamedTuple):
    """Of an answer, before it is sent."""

    message: Message
    reason: bytes | None


class Exchange:
    """A request and the answer to it.

    Attributes:
        method: as sent.
        target: raw path and query, also where the client sent a whole URL; what else it sent is left as it is.
        path: raw, still percent-encoded, without the query.
        headers: raw, in order, names in lower case.
        peer: address of the connection's other end; ``None`` if it has none.
        started: the answer's head has been sent. One that waits for its body has not been: another may take its place.
        status: of that head; 0 before it.
        slow: the client stopped sending.

    Args:
        receive_timeout: seconds in which the client may send nothing of a body; ``None`` for no bound.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, receive_timeout: float | None = None) -> None:
        self.method: str = scope["method"]
        self._wire: Wire | None = scope.get(WIRE)
        self.target = _origin_form(self._wire.target if self._wire else _target(scope))
        self.path = self.target.partition(b"?")[0]
        self.headers = framed_once(list(scope["headers"]))
        self.peer: str | None = scope["client"][0] if scope.get("client") else None
        self.started = False
        self._waiting: _Head | None = None
        self.status = 0
        self.slow = False
        self._receive_timeout = receive_timeout
        self._framed_twice = len(self.headers) < len(scope["headers"])
        self._receive = receive
        self._send = send
        self._body_read = asyncio.Event()

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        names = {name for name, _ in self.headers}
        return b"content-length" in names or b"transfer-encoding" in names

    @property
    def at_once(self) -> bool:
        """Whether what is written goes out before anything else of this loop runs, so that the client's next request is
        read after whatever is done right behind. So it is under our own server; others may pass it on later."""
        return self._wire is not None

    @property
    def refused(self) -> Refusal | None:
        """What the client was told where its body turned out to be no HTTP; it then counts as gone."""
        return self._wire.refused if self._wire else None

    async def stream(self) -> AsyncIterator[bytes]:
        """The request's body as it comes. Raises ClientGoneError, SlowClientError."""
        more = True
        while more:
            message = await self._next_message()
            if message["type"] == "http.disconnect":
                self._body_read.set()
                raise ClientGoneError
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]
        self._body_read.set()

    async def _next_message(self) -> Message:
        if self._wire is not None and self._wire.body_read:
            return await self._receive()  # it is there
        try:
            async with asyncio.timeout(self._receive_timeout) as bound:
                return await self._receive()
        except TimeoutError:
            if not bound.expired():
                raise
            self.slow = True
            raise SlowClientError from None

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises ClientGoneError, SlowClientError, BodyTooLargeError."""
        body, rest = await self.read_up_to(max_bytes)
        if rest is not None:
            raise BodyTooLargeError(max_bytes)
        return body

    async def read_up_to(self, max_bytes: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """The body, or as much of it as passes the bound, and what then is still to come. Raises as ``read``."""
        pieces, size = list[bytes](), 0
        stream = self.stream()
        async for data in stream:
            pieces.append(data)
            size += len(data)
            if size > max_bytes:
                return b"".join(pieces), stream
        return b"".join(pieces), None  # a single piece is not copied

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``; if the client goes away first, cancel it and raise ClientGoneError."""
        if self._wire is None:
            return await self._while_received(work)
        if self._wire.gone:
            work.close()
            raise ClientGoneError
        task = asyncio.current_task()
        assert task is not None, "an app runs in a task"
        before = task.cancelling()
        self._wire.bind(task)
        try:
            return await work
        finally:
            if not self._wire.unbind(task) and task.uncancel() <= before:
                raise ClientGoneError from None

    async def _while_received(self, work: Coroutine[Any, Any, T]) -> T:
        """The same under any server, with a second task: what comes after the body is that the client has gone."""
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

    async def start(
        self, status: int, headers: RawHeaders, reason: bytes | None = None, *, waits: bool = False
    ) -> None:
        """Send the head of the answer; one that ``waits`` goes out with the first piece of the body, in one packet.

        No request may follow one whose length was given in two ways (RFC 9112, 6.3).
        """
        self.status = status
        if self._framed_twice:
            headers = [*headers, (b"connection", b"close")]
        self._waiting = _Head({"type": "http.response.start", "status": status, "headers": headers}, reason)
        if not waits:
            await self._send_head(joined=False)

    async def _send_head(self, *, joined: bool) -> None:
        """The head that waits, if one does; ``joined``: in one packet with what is sent next."""
        if self._waiting is None:
            return
        (message, reason), self._waiting = self._waiting, None
        self.started = True
        if self._wire is not None:
            self._wire.reason = reason
            self._wire.waits = joined
        await self._send(message)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the answer's body; waits while the client is slow."""
        await self._send_head(joined=True)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: tuple[bytes, bytes] = JSON,
        more: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole answer of ours, with ``more`` headers."""
        await self.start(status, [content_type, (b"content-length", str(len(body)).encode()), *more], waits=True)
        await self.write(body, more=False)

    async def empty(self, status: int) -> None:
        """Send a whole answer of ours that has no body."""
        await self.start(status, [])
        await self.write(b"", more=False)


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return path + (b"?" + query if query else b"")


def _origin_form(target: bytes) -> bytes:
    """Path and query of a whole URL, which a server must take too (RFC 9112, 3.2.2); the engine is its host, always."""
    authority = _AUTHORITY.match(target)
    if authority is None:
        return target
    rest = target[authority.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
