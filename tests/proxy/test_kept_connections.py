"""Connections to the engine are used again, and a request that finds one closed is not lost, and not sent twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread

from .raw_engine import RawEngine, RawRequest, plain
from .support import chat, fetch, post_chat, user

EVENTS = b'data: {"choices": [{"index": 0, "delta": {"content": "ok"}}]}\n\ndata: [DONE]\n\n'
CHAT = "/v1/chat/completions"


@pytest.fixture
def raw() -> Iterator[RawEngine]:
    with RawEngine() as engine:
        yield engine


@pytest.fixture
def before(raw: RawEngine) -> Iterator[RunningProxy]:
    with serve_in_thread(ProxySettings(raw.url, port=0, drain_timeout=1)) as proxy:
        yield proxy


def first_only(request: RawRequest) -> bytes | None:
    """Says keep-alive, and hangs up at the second request of a connection."""
    return plain() if request.nth == 1 else None


@pytest.mark.parametrize("body", [chat([user("Q?")], ["A"]), chat([user("Q?")])])
def test_a_chat_request_that_finds_its_connection_closed_goes_out_again(
    raw: RawEngine, before: RunningProxy, body: dict[str, object]
) -> None:
    raw.answer = first_only
    assert [post_chat(before.url, body).status for _ in range(5)] == [200] * 5
    answered = [request.body for request in raw.requests if request.nth == 1]
    assert len(answered) == 5
    assert len(set(answered)) == 1


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE"])
def test_an_idempotent_request_goes_out_again(raw: RawEngine, before: RunningProxy, method: str) -> None:
    raw.answer = first_only
    assert [fetch(before.url, method, "/x").status for _ in range(4)] == [200] * 4


def test_another_request_does_not(raw: RawEngine, before: RunningProxy) -> None:
    raw.answer = first_only
    assert fetch(before.url, "GET", "/x").status == 200
    assert fetch(before.url, "POST", "/v1/files", b"x").status == 502
    assert [request.lines[0].split()[0] for request in raw.requests] == [b"GET", b"POST"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_no_request_follows_a_stream(raw: RawEngine, before: RunningProxy, path: str) -> None:
    raw.answer = lambda request: (
        plain(b"200 OK", EVENTS, b"content-type: text/event-stream") if request.nth == 1 else None
    )
    assert [fetch(before.url, "POST", path, b"{}").status for _ in range(5)] == [200] * 5
    assert [request.nth for request in raw.requests] == [1] * 5


@pytest.mark.parametrize("start", [b"H", b"HTTP/1.1 200 OK\r\nconte", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_after_a_byte_of_an_answer_nothing_is_sent_again(raw: RawEngine, before: RunningProxy, start: bytes) -> None:
    raw.hangs_up = lambda request: request.nth > 1
    raw.answer = lambda request: plain() if request.nth == 1 else start
    body = chat([user("Q?")], ["A"])
    assert [post_chat(before.url, body).status for _ in range(2)] == [200, 502]
    assert [request.nth for request in raw.requests] == [1, 2]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_new_connection_that_fails_is_not_tried_again(raw: RawEngine, before: RunningProxy, method: str) -> None:
    raw.answer = lambda request: None
    body = b"{}" if method == "POST" else None
    assert fetch(before.url, method, CHAT, body).status == 502
    assert len(raw.requests) == 1


def test_a_request_is_sent_twice_at_most(raw: RawEngine, before: RunningProxy) -> None:
    assert fetch(before.url, "GET", "/x").status == 200
    raw.answer = lambda request: None
    assert fetch(before.url, "GET", "/x").status == 502
    assert [request.nth for request in raw.requests] == [1, 2, 1]
