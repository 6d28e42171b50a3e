"""What nobody waits for: the report of a plan is made while the engine works, and a turn is learnt behind its answer,
yet before anything else that the client may send."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.conversations import Conversations
from prefixpilot.proxy.learning import Observation
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.relay import pass_on
from prefixpilot.proxy.report import PlanReport, plan_header
from prefixpilot.proxy.wire.exchange import Exchange
from prefixpilot.proxy.wire.upstream import EngineResponse

from .raw_engine import RawEngine, RawRequest, plain
from .support import chat, fetch, post_chat, user

SAID = "Said."
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}]}
).encode()
ANSWER_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"


def answer(request: RawRequest) -> bytes:
    return plain(b"200 OK", ANSWER, b"content-type: application/json")


@pytest.fixture
def raw() -> Iterator[RawEngine]:
    with RawEngine(answer) as engine:
        yield engine


# -- the report


def test_the_plan_is_there_while_the_engine_works(raw: RawEngine) -> None:
    seen: list[Any] = []
    with serve_in_thread(ProxySettings(raw.url, port=0, drain_timeout=2)) as proxy:

        def look(request: RawRequest) -> bytes:
            (name,) = request.header(b"x-request-id")
            seen.append(fetch(proxy.url, "GET", f"/plans/{name.decode()}"))
            return answer(request)

        raw.answer = look
        got = post_chat(proxy.url, chat([user("q")], ["one", "two"]))
    assert got.status == 200 and [each.status for each in seen] == [200]
    assert seen[0].json()["blocks"] == json.loads(got.header("x-prefixpilot-plan") or "")["blocks"] == 2


def test_the_plan_is_there_when_no_engine_is(raw: RawEngine) -> None:
    raw.answer = lambda request: None
    with serve_in_thread(ProxySettings(raw.url, port=0, drain_timeout=2)) as proxy:
        got = post_chat(proxy.url, chat([user("q")], ["one"]), **{"x-request-id": "lost"})
        plan = fetch(proxy.url, "GET", "/plans/lost")
    assert (got.status, plan.status) == (502, 200)


def test_the_report_of_a_request_that_goes_out_twice_is_made_once(raw: RawEngine) -> None:
    """The engine closes a kept connection: the same request on a new one."""
    described: list[str] = []

    def describe(report: PlanReport) -> bytes:
        described.append(report.request_id)
        return plan_header(report)

    raw.hangs_up = lambda request: len(raw.requests) == 1
    app = ProxyApp(settings := ProxySettings(raw.url, port=0, drain_timeout=2), describe=describe)
    with serve_in_thread(settings, app=app) as proxy:
        got = [post_chat(proxy.url, chat([user("q")], ["one"]), **{"x-request-id": name}) for name in "ab"]
    assert [each.status for each in got] == [200, 200] and described == ["a", "b"]


REFUSED = plain(b"500 Internal Server Error", b"{}", b"content-type: application/json")
HALF = ANSWER_HEAD + b"{"


@pytest.mark.parametrize(
    ("answered", "status", "recorded"),
    [(None, 502, False), (REFUSED, 500, False), (HALF, 502, False), (b"", 200, True)],
)
def test_a_kept_plan_says_what_has_become_of_its_turn(
    raw: RawEngine, answered: bytes | None, status: int, recorded: bool
) -> None:
    raw.answer = lambda request: answer(request) if answered == b"" else answered
    raw.hangs_up = lambda request: True
    headers = {"x-request-id": "r", "x-prefixpilot-conversation": "c"}
    with serve_in_thread(ProxySettings(raw.url, port=0, drain_timeout=2)) as proxy:
        got = post_chat(proxy.url, chat([user("q")], ["one"]), **headers)
        plan = fetch(proxy.url, "GET", "/plans/r").json()
    assert (got.status, plan["recorded"]) == (status, recorded)


# -- the turn


class Log:
    """In which order an answer is written, read and settled."""

    def __init__(self, *, kept: bool, at_once: bool, gone: bool = False) -> None:
        self.events: list[str] = []
        self.kept = kept
        self.at_once = at_once
        self._gone = gone

    async def write(self, data: bytes, *, more: bool = True) -> None:
        self.events.append("write")
        if self._gone:
            raise ConnectionError

    def feed(self, data: bytes) -> None:
        self.events.append("feed")

    def finish(self) -> None:
        self.events.append("finish")

    def unsettled(self) -> bool:
        return self.kept

    async def settle(self) -> None:
        self.events.append("settle")

    def run(self) -> list[str]:
        """A whole answer, passed on."""
        content = SimpleNamespace(is_eof=lambda: True, read_nowait=lambda: ANSWER)
        response = cast(EngineResponse, SimpleNamespace(content=content))
        parts = cast(Exchange, self), response, cast(Observation, self), cast(Conversations, self)
        asyncio.run(pass_on(*parts, None))
        return self.events


def test_in_memory_the_answer_goes_first() -> None:
    assert Log(kept=False, at_once=True).run() == ["write", "feed", "finish"]


def test_on_disk_it_goes_last() -> None:
    assert Log(kept=True, at_once=True).run() == ["feed", "finish", "settle", "write"]


def test_under_a_server_that_may_pass_it_on_later_it_goes_last() -> None:
    assert Log(kept=False, at_once=False).run() == ["feed", "finish", "write"]


def test_what_the_engine_holds_is_learnt_though_the_client_has_gone() -> None:
    log = Log(kept=False, at_once=True, gone=True)
    with pytest.raises(ConnectionError):
        log.run()
    assert log.events == ["write", "feed", "finish"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_client_that_asks_on_at_once_finds_each_turn(raw: RawEngine, tmp_path: Any, kept: bool) -> None:
    """By turns on two connections, without a pause."""
    store = StoreSettings(state_dir=str(tmp_path)) if kept else StoreSettings()
    messages: list[dict[str, Any]] = []
    with ExitStack() as stack:
        settings = ProxySettings(raw.url, port=0, drain_timeout=2, store=store)
        place = urlsplit(stack.enter_context(serve_in_thread(settings)).url).netloc
        clients = [stack.enter_context(closing(http.client.HTTPConnection(place, timeout=10))) for _ in range(2)]
        for turn in range(24):
            messages.append(user(f"q{turn}"))
            body = json.dumps(chat(messages, [f"block {turn}", "the same block"]))
            client = clients[turn % 2]
            client.request("POST", "/v1/chat/completions", body, {"X-PrefixPilot-Conversation": "c"})
            got = client.getresponse()
            assert (got.status, json.loads(got.headers["X-PrefixPilot-Plan"])["restored"]) == (200, turn)
            got.read()
            messages.append({"role": "assistant", "content": SAID})
