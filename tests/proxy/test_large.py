"""A large request is worked on beside the event loop: others do not wait for it."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from prefixpilot.apis import CHAT, Api
from prefixpilot.prompts.request import BlocksRequest, parse_request
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.testing import SimulatedEngine

from .support import Answer, chat, fetch, post_chat, user

WAIT_S = 10.0


class Gate:
    """A parser that stops at requests with ``"slow": true`` until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.opened_in_time: list[bool] = []

    def __call__(self, body: Mapping[str, Any], api: Api = CHAT, *, history: bool = False) -> BlocksRequest | None:
        if body.get("slow"):
            self.entered.set()
            self.opened_in_time.append(self.open.wait(WAIT_S))
        return parse_request(body, api, history=history)


def packed(body: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return gzip.compress(json.dumps(body).encode()), {"Content-Encoding": "gzip"}


def large(body: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps({**body, "image": "x" * (2 << 20)}).encode(), {}


@pytest.mark.parametrize("form", [packed, large])
def test_others_are_served_while_a_large_request_is_read(engine: SimulatedEngine, form: Any) -> None:
    gate = Gate()
    app = ProxyApp(ProxySettings(engine.base_url, port=0, drain_timeout=2), parse=gate)
    answers: list[Answer] = []
    body, headers = form(chat([user("Q?")], ["A", "B"], slow=True))
    with serve_in_thread(ProxySettings("http://x"), app=app) as proxy:
        asking = threading.Thread(
            target=lambda: answers.append(fetch(proxy.url, "POST", "/v1/chat/completions", body, headers))
        )
        asking.start()
        assert gate.entered.wait(WAIT_S)
        assert fetch(proxy.url, "GET", "/healthz").status == 200
        assert fetch(proxy.url, "GET", "/metrics").status == 200
        assert post_chat(proxy.url, chat([user("R?")], ["B"])).status == 200
        gate.open.set()
        asking.join(WAIT_S)
    assert gate.opened_in_time == [True], "the others did not wait for it"
    assert [answer.status for answer in answers] == [200]
    sent = [request.json()["messages"][0]["content"] for request in engine.chats]
    assert [content.endswith("R?") for content in sent] == [True, False]
    assert {"A", "B"} <= set(sent[1].split("\n"))


def test_large_and_small_requests_share_one_state(engine: SimulatedEngine) -> None:
    """Many at once: every one gets its own documents, and the index knows them all."""
    app = ProxyApp(ProxySettings(engine.base_url, port=0, drain_timeout=2))
    answers: dict[int, Answer] = {}

    def ask(number: int) -> None:
        body = chat([user(f"Q{number}?")], [f"D{number}", "shared"], request=number)
        data, headers = packed(body) if number % 2 else (json.dumps(body).encode(), {})
        ids = {"X-Request-Id": f"r{number}", "X-PrefixPilot-Conversation": f"c{number % 3}"}
        answers[number] = fetch(proxy.url, "POST", "/v1/chat/completions", data, {**headers, **ids})

    with serve_in_thread(ProxySettings("http://x"), app=app) as proxy:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        metrics = fetch(proxy.url, "GET", "/metrics").body.decode()
    assert [answers[number].status for number in range(24)] == [200] * 24
    assert "prefixpilot_index_live_requests 24.0" in metrics
    for request in engine.chats:
        content = request.json()["messages"][0]["content"]
        assert f"D{request.json()['request']}" in content
        assert "shared" in content
