"""Door and hosted app without Ray, before a real engine over sockets: what comes out, when, and what is asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from prefixpilot.errors import EngineError
from prefixpilot.proxy.app import create_app
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.wire.exchange import Message, Receive, Scope, Send
from prefixpilot.ray.carried import Carried, below_root, carried_of
from prefixpilot.ray.door import Door
from prefixpilot.ray.hints import Hint
from prefixpilot.ray.hosting import HostedApp
from prefixpilot.testing import SimulatedEngine

BODY = {"messages": [{"role": "user", "content": "What?"}], "context_blocks": ["one text", "another text"]}


class LostError(Exception):
    """A replica is no more."""


class FullError(Exception):
    """There is no room."""


class Asked:
    """An answer of a hosted app, or what is in its place."""

    def __init__(self, answer: AsyncIterator[list[Message]]) -> None:
        self._answer = answer
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self._answer

    def cancel(self) -> None:
        self.cancelled = True


async def failing(error: Exception, first: list[Message] | None = None) -> AsyncIterator[list[Message]]:
    if first is not None:
        yield first
    raise error


def scope_of(path: str = "/v1/chat/completions", method: str = "POST", root: str = "", **more: Any) -> Scope:
    headers = [(b"content-type", b"application/json"), *more.pop("headers", ())]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root + path,
        "raw_path": (root + path).encode(),
        "root_path": root,
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


class Client:
    """Sends one request to an ASGI app, and may go away after so many messages."""

    def __init__(self, body: bytes, leave_after: int | None = None) -> None:
        self._parts = [{"type": "http.request", "body": body, "more_body": False}]
        self._leave_after = leave_after
        self._gone = asyncio.Event()
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if self._parts:
            return self._parts.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.got.append(message)
        if len(self.got) == self._leave_after:
            self._gone.set()

    @property
    def status(self) -> int:
        status: int = self.got[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


def door_of(
    *answers: AsyncIterator[list[Message]] | HostedApp, asked: list[Hint] | None = None, most: int = 10_000
) -> Door:
    waiting = list(answers)

    def ask(hint: Hint, request: Carried) -> Asked:
        if asked is not None:
            asked.append(hint)
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return Asked(answer.answer(request) if isinstance(answer, HostedApp) else answer)

    return Door(ask, lost=(LostError,), full=(FullError,), max_body_bytes=most, receive_timeout=5.0)


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


async def with_proxy(
    engine: SimulatedEngine, client: Client, *before: AsyncIterator[list[Message]], **scope: Any
) -> None:
    hosted = HostedApp(create_app(ProxySettings(engine=engine.base_url)))
    await hosted.start()
    try:
        async with asyncio.timeout(20):
            await door_of(*before, hosted)(scope_of(**scope), client.receive, client.send)
    finally:
        await hosted.stop()


def test_a_request_goes_through_door_and_proxy_to_the_engine(engine: SimulatedEngine) -> None:
    client = Client(json.dumps(BODY).encode())
    asyncio.run(with_proxy(engine, client))
    assert client.status == 200
    assert json.loads(client.body)["choices"][0]["message"]["content"] == "This is a simulated answer."
    sent = engine.chats[0].json()
    assert "one text" in sent["messages"][0]["content"]
    assert "context_blocks" not in sent


def test_a_stream_comes_piece_by_piece(engine: SimulatedEngine) -> None:
    engine.chunk_delay_s = 0.02
    client = Client(json.dumps({**BODY, "stream": True}).encode())
    asyncio.run(with_proxy(engine, client))
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert sum(bool(message.get("body")) for message in client.got) >= 4


def test_a_client_that_goes_away_ends_the_engines_request(engine: SimulatedEngine) -> None:
    engine.chunk_delay_s = 0.2
    client = Client(json.dumps({**BODY, "stream": True}).encode(), leave_after=2)
    asyncio.run(with_proxy(engine, client))
    assert engine.wait_for_disconnect()


def test_a_replica_that_dies_before_its_answer_is_replaced_by_another(engine: SimulatedEngine) -> None:
    client = Client(json.dumps(BODY).encode())
    asyncio.run(with_proxy(engine, client, failing(LostError()), failing(LostError())))
    assert client.status == 200
    assert len(engine.chats) == 1


def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    head: Message = {"type": "http.response.start", "status": 200, "headers": []}
    asked: list[Hint] = []
    client = Client(json.dumps(BODY).encode())
    door = door_of(failing(LostError(), [head]), asked=asked)
    with pytest.raises(LostError):  # the server then closes the connection
        asyncio.run(door(scope_of(), client.receive, client.send))
    assert (client.got, len(asked)) == ([head], 1)


@pytest.mark.parametrize(
    ("path", "method", "tries"),
    [("/v1/chat/completions", "POST", 3), ("/v1/models", "GET", 3), ("/reset", "POST", 1), ("/v1/files", "POST", 1)],
)
def test_what_might_be_done_twice_is_asked_once(path: str, method: str, tries: int) -> None:
    asked: list[Hint] = []
    client = Client(b"{}")
    door = door_of(*[failing(LostError()) for _ in range(3)], asked=asked)
    asyncio.run(door(scope_of(path, method), client.receive, client.send))
    assert (client.status, len(asked)) == (503, tries)
    assert b"replica_lost" in client.body


def test_errors_have_the_apis_own_shape() -> None:
    client = Client(b"{}")
    asyncio.run(door_of(failing(FullError()))(scope_of("/v1/messages"), client.receive, client.send))
    assert client.status == 503
    assert json.loads(client.body)["type"] == "error"
    assert (b"retry-after", b"1") in client.got[0]["headers"]


def test_a_body_that_is_too_long_is_refused() -> None:
    client = Client(b" " * 101)
    asyncio.run(door_of(failing(LostError()), most=100)(scope_of(), client.receive, client.send))
    assert client.status == 413


def test_the_router_is_told_of_conversation_and_blocks(engine: SimulatedEngine) -> None:
    asked: list[Hint] = []
    client = Client(json.dumps(BODY).encode())
    door = door_of(failing(FullError()), asked=asked)
    headers = [(b"x-prefixpilot-conversation", b"c7")]
    asyncio.run(door(scope_of(headers=headers), client.receive, client.send))
    assert (asked[0].conversation, len(asked[0].segments)) == ("c7", 3)


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [("", "/v1/x", b"/v1/x"), ("/a", "/v1/x", b"/v1/x"), ("/a/b c", "", b"/"), ("/a", "/a/x", b"/a/x")],
)
def test_paths_are_those_of_the_application(root: str, path: str, seen: bytes) -> None:
    scope = scope_of(path, root=root)
    scope["raw_path"] = scope["raw_path"].replace(b" ", b"%20")
    assert carried_of(scope, b"").path == seen


def test_an_app_below_a_root_sees_its_own_paths() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["raw_path"], scope["path"], scope["root_path"]))

    client = Client(b"")

    async def once() -> None:
        await below_root(app)(scope_of("/x", root="/r"), client.receive, client.send)

    asyncio.run(once())
    assert seen == [(b"/x", "/x", "")]


def test_an_app_that_does_not_start_says_so() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    with pytest.raises(EngineError, match="no disk"):
        asyncio.run(HostedApp(app).start())


def test_what_an_app_raises_comes_behind_what_it_said() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    async def collect() -> None:
        async for messages in HostedApp(app).answer(carried_of(scope_of(), b"")):
            got.extend(messages)

    got: list[Message] = []
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(collect())
    assert [message["type"] for message in got] == ["http.response.start"]
