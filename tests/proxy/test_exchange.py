"""Work for a client ends with the client: in the task of its request, or with a second one under another server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import h11
import pytest

from prefixpilot.proxy.wire.client import WIRE, ClientWire
from prefixpilot.proxy.wire.exchange import ClientGoneError, Exchange, Message


class Client:
    """One that has sent a request without a body."""

    def __init__(self, wire: ClientWire | None) -> None:
        self.wire = wire
        self._asked = False
        self._left = asyncio.Event()
        scope: dict[str, Any] = {"method": "GET", "path": "/x", "query_string": b"", "headers": [], "client": None}
        self.exchange = Exchange(scope if wire is None else {**scope, WIRE: wire}, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        raise AssertionError(message)

    def leave(self) -> None:
        self._left.set()
        if self.wire is not None:
            self.wire.lost()


Case = Callable[[Client], Awaitable[None]]


def run(case: Case, *, ours: bool) -> None:
    async def main() -> None:
        client = Client(ClientWire(h11.SERVER) if ours else None)
        await client.exchange.read(0)
        await case(client)

    asyncio.run(main())


def tasks() -> int:
    return len(asyncio.all_tasks())


each_server = pytest.mark.parametrize("ours", [True, False])


@each_server
def test_work_is_done_while_the_client_is_there(ours: bool) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return tasks()

    async def case(client: Client) -> None:
        assert await client.exchange.while_connected(work()) == (1 if ours else 3)
        assert tasks() == 1
        client.leave()
        await asyncio.sleep(0)  # what goes now cancels nothing

    run(case, ours=ours)


@each_server
def test_work_is_cancelled_when_the_client_goes(ours: bool) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what is to be put in order may wait
            ended.append("cancelled")
            raise

    async def case(client: Client) -> None:
        asyncio.get_running_loop().call_soon(client.leave)
        with pytest.raises(ClientGoneError):
            await client.exchange.while_connected(work())
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        assert (ended, tasks()) == (["cancelled"], 1)

    run(case, ours=ours)


def test_work_for_a_client_that_has_gone_is_not_begun() -> None:
    begun = []

    async def work() -> None:
        begun.append(True)

    async def case(client: Client) -> None:
        client.leave()
        with pytest.raises(ClientGoneError):
            await client.exchange.while_connected(work())
        assert not begun

    run(case, ours=True)


def test_the_next_request_of_a_connection_is_not_taken_for_the_one_before() -> None:
    async def first(inner: Coroutine[Any, Any, None], client: Client) -> str:
        other = asyncio.create_task(client.exchange.while_connected(inner))
        await asyncio.sleep(0)
        return "done" if not other.done() else "ended"

    async def case(client: Client) -> None:
        held = asyncio.Event()

        async def wait() -> None:
            await held.wait()

        assert await client.exchange.while_connected(first(wait(), client)) == "done"
        second = next(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
        client.leave()
        with pytest.raises(ClientGoneError):
            await second

    run(case, ours=True)


@each_server
@pytest.mark.parametrize("leaves", [False, True])
def test_a_server_that_ends_is_no_client_that_goes(ours: bool, leaves: bool) -> None:
    async def serve(client: Client) -> None:
        await client.exchange.while_connected(asyncio.Event().wait())

    async def case(client: Client) -> None:
        serving = asyncio.create_task(serve(client))
        await asyncio.sleep(0)
        serving.cancel()
        if leaves:
            client.leave()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert serving.cancelled()

    run(case, ours=ours)
