"""An ASGI app inside of an actor: its lifespan, and its answers to requests that come whole. Without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from prefixpilot.errors import EngineError
from prefixpilot.proxy.wire.exchange import Message, Scope
from prefixpilot.ray.carried import AsgiApp, Carried

END_S: Final = 10.0
"""How long an app may take to start, to end, and to end a request whose client has gone."""
AHEAD: Final = 64
"""Messages of one answer that may wait to be taken; an app that is further ahead waits."""


class HostedApp:
    """Runs an app's lifespan from :meth:`start` to :meth:`stop`. For one event loop."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._ending = asyncio.Event()
        self._lifespan: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once the app has started.

        Raises:
            EngineError: it has not within :data:`END_S`, or says that it cannot.
        """
        started: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._lifespan = asyncio.create_task(self._live(started))
        await asyncio.wait((started, self._lifespan), timeout=END_S, return_when=asyncio.FIRST_COMPLETED)
        told = started.result() if started.done() else {"type": "", "message": "it does not say why"}
        if told["type"] != "lifespan.startup.complete":
            await self.stop()
            raise EngineError(f"the app did not start: {told.get('message', '')}")

    async def _live(self, started: asyncio.Future[Message]) -> None:
        said: list[Message] = [{"type": "lifespan.startup"}]

        async def receive() -> Message:
            if said:
                return said.pop()
            await self._ending.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Message) -> None:
            if not started.done():
                started.set_result(message)

        await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)

    async def stop(self) -> None:
        """The app ends, within a bound. A second stop does nothing."""
        self._ending.set()
        if self._lifespan is not None and not self._lifespan.done():
            await asyncio.wait((self._lifespan,), timeout=END_S)
            self._lifespan.cancel()

    async def answer(self, request: Carried) -> AsyncIterator[list[Message]]:
        """The app's messages as they come, those together that are there together; never an empty list.

        Ending the iteration early tells the app that the client has gone.

        Raises:
            Exception: what the app raised; what it had said comes first.
        """
        under_way = _UnderWay(self._app, request)
        try:
            while batch := await under_way.next():
                yield batch
            await under_way.result()
        finally:
            await under_way.end()


class _UnderWay:
    """One request in the app."""

    def __init__(self, app: AsgiApp, request: Carried) -> None:
        self._said: asyncio.Queue[Message | None] = asyncio.Queue(AHEAD)
        self._gone = asyncio.Event()
        self._over = False
        self._body: bytes | None = request.body
        self._task = asyncio.create_task(self._run(app, request.scope))

    async def _run(self, app: AsgiApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            await self._send(None)

    async def _receive(self) -> Message:
        if self._body is None:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message | None) -> None:
        """Whoever waits for a place when the client goes is let go by :meth:`end`, which empties the queue."""
        if not self._gone.is_set():
            await self._said.put(message)

    async def next(self) -> list[Message]:
        """One message or more; none once the app has ended."""
        found: list[Message] = []
        while not self._over and not (found and self._said.empty()):
            message = await self._said.get()
            self._over = message is None
            if message is not None:
                found.append(message)
        return found

    async def result(self) -> None:
        """Raise what the app raised. It has ended, or is about to."""
        await asyncio.wait_for(asyncio.shield(self._task), END_S)

    async def end(self) -> None:
        """Tell it that the client has gone, and see it end within a bound. Nothing where it has ended."""
        self._gone.set()
        while not self._said.empty():
            self._said.get_nowait()
        if not self._task.done():
            await asyncio.wait((self._task,), timeout=END_S)
            self._task.cancel()
