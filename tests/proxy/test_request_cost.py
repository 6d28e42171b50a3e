"""What lets the proxy look for garbage rarely, ask for labels once, and tell aiohttp of a few headers only."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.wire.upstream import EngineUnreachableError, Upstream

from .raw_engine import RawClient, RawEngine, plain

REQUESTS = 40


def _request(number: int, field: str, conversation: bool) -> bytes:
    texts = [f"text {i} of {number}" for i in range(8)]
    question = {"role": "user", "content": f"question {number}?"}
    body = json.dumps({"model": "m", "messages": [question], field: texts}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    named = f"X-PrefixPilot-Conversation: c{number}\r\n" if conversation else ""
    return f"{head}{named}\r\n".encode() + body


@pytest.mark.parametrize(("field", "conversation"), [("context_blocks", True), ("context_blocks", False), ("x", False)])
def test_a_request_leaves_nothing_that_only_the_garbage_collector_finds(field: str, conversation: bool) -> None:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}
    with (
        RawEngine() as engine,
        serve_in_thread(ProxySettings(engine.url, port=0)) as proxy,
        RawClient(proxy.url) as client,
    ):
        engine.answer = lambda request: plain(b"200 OK", json.dumps(answer).encode(), b"content-type: application/json")
        for number in range(REQUESTS):
            if number == REQUESTS // 2:  # what is made once has been made
                gc.collect()
                gc.disable()
            status, _ = client.ask(_request(number, field, conversation))
            assert status == b"HTTP/1.1 200 OK"
        found = gc.collect()
        gc.enable()
    assert found < REQUESTS // 2, "not one object a request"


def test_a_count_is_shown_once_it_has_been_counted() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.count_usage(Usage(10, None), "on")
    shown = metrics.text().decode()
    assert 'prefixpilot_prompt_tokens_total{mode="on"} 20.0' in shown
    assert 'prefixpilot_cached_tokens_unknown_total{mode="on"} 2.0' in shown
    assert 'prefixpilot_cached_tokens_total{mode="on"}' not in shown, "unknown is no zero"


@pytest.mark.parametrize("header", [(b"x-a", b"1\r\nx-b: 2"), (b"x-a\n", b"1"), (b"x-a", b"\0")])
def test_a_header_that_http_cannot_carry_is_not_sent(header: tuple[bytes, bytes]) -> None:
    async def send(upstream: Upstream) -> None:
        await upstream.start()
        try:
            async with upstream.request("POST", b"/v1/chat/completions", [header], b"{}"):
                pass
        finally:
            await upstream.close()

    with RawEngine() as engine:
        with pytest.raises(EngineUnreachableError, match="control character"):
            asyncio.run(send(Upstream(ProxySettings(engine.url))))
        assert not engine.requests
