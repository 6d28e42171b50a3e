"""What passes the proxy on the wire: untouched where we have no business, planned where we have."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.own_paths import EVICTED_AT_ONCE, MAX_EVICT_BYTES
from prefixpilot.testing import BreakOff, CloseConnection, ErrorEvent, Fault, Garbage, Respond, SimulatedEngine

from .support import FailingPilot, assistant, chat, fetch, metric, post_chat, user

OWN = ("host", "connection")


def metrics(proxy: RunningProxy, name: str, **labels: str) -> float:
    return metric(fetch(proxy.url, "GET", "/metrics").body.decode(), name, **labels)


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND")
TARGETS = ("/v1/embeddings?a=1&a=%2F&b", "/x%2Fy//z;p?q=%20+", "/evicted", "/v1/v1")


@pytest.mark.parametrize("body", [None, b'\x00 any  "bytes"\xff'])
def test_every_other_request_passes_untouched(engine: SimulatedEngine, proxy: RunningProxy, body: bytes | None) -> None:
    headers = {"Authorization": "Bearer k", "X-Mine": "a, b", "Cookie": "c=1", "TE": "trailers", "Accept-Encoding": "x"}
    sent = {key.lower(): value for key, value in headers.items() if key != "TE"}
    for method, target in itertools.product(METHODS, TARGETS):
        answer = fetch(proxy.url, method, target, body, headers)
        path, _, query = target.partition("?")
        got = engine.requests[-1]
        assert (got.method, got.path, got.query, got.body) == (method, path, query.encode(), body or b"")
        received = {key: value for key, value in got.headers if key not in OWN}
        assert int(received.pop("content-length", "0")) == len(body or b"")
        assert received == sent
        assert (answer.status, answer.json()["method"]) == (200, method)


def test_repeated_headers_are_kept_both_ways(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    engine.fault = Respond(418, b"short", "text/x-odd", (("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-o", "1")))
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=10)
    for _ in range(2):
        connection.putrequest("GET", "/any", skip_accept_encoding=True)
        connection.putheader("X-Two", "1")
        connection.putheader("X-Two", "2")
        connection.putheader("Connection", "keep-alive, X-Drop")
        connection.putheader("X-Drop", "1")
        connection.endheaders()
        response = connection.getresponse()
        assert (response.status, response.read()) == (418, b"short")
        assert response.headers.get_all("set-cookie") == ["a=1", "b=2"]
        assert response.headers["content-type"] == "text/x-odd"
        got = [pair for pair in engine.requests[-1].headers if pair[0] not in OWN]
        assert got == [("x-two", "1"), ("x-two", "2")], "no cookie is stored, nothing is added"
    connection.close()


def test_a_compressed_answer_is_passed_as_it_is(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    packed = gzip.compress(b'{"choices": []}')
    engine.fault = Respond(200, packed, headers=(("content-encoding", "gzip"),))
    for answer in (fetch(proxy.url, "GET", "/any"), post_chat(proxy.url, chat([user("Q?")], ["A"]))):
        assert (answer.body, answer.header("content-encoding")) == (packed, "gzip")


def test_redirects_are_the_clients_business(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    engine.fault = Respond(307, b"", headers=(("location", "/elsewhere"),))
    answer = fetch(proxy.url, "POST", "/v1/audio", b"x")
    assert (answer.status, answer.header("location"), len(engine.requests)) == (307, "/elsewhere", 1)


def test_head_and_chunked_uploads(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    assert fetch(proxy.url, "HEAD", "/any").body == b""
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=10)
    connection.request("POST", "/v1/files", iter([b"one,", b"two"]), encode_chunked=True)
    assert connection.getresponse().read()
    connection.close()
    assert engine.requests[-1].body == b"one,two"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_engine_may_be_given_with_or_without_v1(engine: SimulatedEngine, path: str, suffix: str) -> None:
    with serve_in_thread(ProxySettings(engine.base_url + suffix, port=0)) as proxy:
        answer = fetch(proxy.url, "POST", f"{path}?x=1", chat([user("Q?")], ["A"]))
        assert answer.status == 200
        assert fetch(proxy.url, "GET", "/v1/models").json()["object"] == "list"
    assert [r.path for r in engine.requests] == ["/v1/chat/completions", "/v1/models"]
    assert engine.chats[0].query == b"x=1"


@pytest.mark.parametrize(
    "body",
    [
        b'{ "model":"m",  "messages": [{"role":"user","content":"\\u00e9"}] ,"x":1.0}',
        b"no json at all",
        b'["context_blocks"]',
        b'{"messages": [], "temperature": NaN}',
    ],
)
def test_a_chat_request_without_blocks_keeps_its_bytes(
    engine: SimulatedEngine, proxy: RunningProxy, body: bytes
) -> None:
    headers = {"Content-Type": "application/json", "X-PrefixPilot-Mode": "on", "Accept-Encoding": "identity"}
    answer = fetch(proxy.url, "POST", "/v1/chat/completions", body, headers)
    got = engine.requests[-1]
    assert got.body == body
    assert {key for key, _ in got.headers} == {*(name.lower() for name in headers), "content-length", "host"}
    assert answer.header("x-prefixpilot-plan") is None


def test_the_request_id_is_the_clients_or_ours(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    body = chat([user("Q?")], ["A"])
    theirs = post_chat(proxy.url, body, X_Request_Id="mine-1")
    assert engine.chats[-1].header("x-request-id") == "mine-1"
    assert json.loads(theirs.header("x-prefixpilot-plan") or "")["request_id"] == "mine-1"
    for headers in ({}, {"X_Request_Id": " "}):
        ours = post_chat(proxy.url, body, **headers)
        made = json.loads(ours.header("x-prefixpilot-plan") or "")["request_id"]
        assert engine.chats[-1].header("x-request-id") == made
        assert made.strip() not in ("", "mine-1")


def test_a_gzipped_body_with_blocks_is_planned(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    packed = gzip.compress(json.dumps(chat([user("Q?")], ["A"])).encode())
    assert fetch(proxy.url, "POST", "/v1/chat/completions", packed, {"Content-Encoding": "gzip"}).status == 200
    assert engine.chats[-1].json()["messages"][0]["content"] == "[Doc 1]\nA\n\nQ?"
    assert engine.chats[-1].header("content-encoding") is None


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        (chat([user("Q?")], ["A", {"id": 1}]), {}, "context_blocks[1].text"),
        (chat([], ["A"]), {}, "messages"),
        (chat([user("Q?")]), {"X_PrefixPilot_Mode": "auto"}, "X-PrefixPilot-Mode"),
        (chat([user("Q?")]), {"X_PrefixPilot_Conversation": " "}, "X-PrefixPilot-Conversation"),
        (chat([user("Q?")], ["A"]), {"X_Request_Id": "x" * 500}, "X-Request-Id"),
    ],
)
def test_a_clients_mistake_is_a_400_that_names_it(
    engine: SimulatedEngine, proxy: RunningProxy, body: Any, headers: dict[str, str], param: str
) -> None:
    answer = post_chat(proxy.url, body, **headers)
    error = answer.json()["error"]
    assert (answer.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}
    assert not engine.requests
    assert metrics(proxy, "prefixpilot_requests_total", outcome="client_error") == 1


def test_a_body_over_the_bound_is_a_413(engine: SimulatedEngine) -> None:
    with serve_in_thread(ProxySettings(engine.base_url, port=0, max_body_bytes=1000)) as proxy:
        assert post_chat(proxy.url, chat([user("Q" * 1000)], ["A"])).status == 413
        assert post_chat(proxy.url, chat([user("Q" * 1000)]), X_PrefixPilot_Conversation="c").status == 413
        assert fetch(proxy.url, "POST", "/v1/files", b"x" * 5000).status == 200


def test_an_engine_that_is_down_is_a_502() -> None:
    engine = SimulatedEngine().start()
    engine.stop()
    with serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
        for answer in (fetch(proxy.url, "GET", "/x"), post_chat(proxy.url, chat([user("Q?")], ["A"]))):
            error = answer.json()["error"]
            assert (answer.status, error["code"], error["param"]) == (502, "engine_unreachable", None)
        ready = fetch(proxy.url, "GET", "/readyz")
        assert (ready.status, ready.json()["ready"]) == (503, False)
        assert engine.base_url in ready.json()["missing"][0]
        assert fetch(proxy.url, "GET", "/healthz").status == 200
        assert metrics(proxy, "prefixpilot_requests_total", outcome="engine_error") == 2


@pytest.mark.parametrize("fault", [CloseConnection(), Garbage()])
def test_an_engine_that_speaks_no_http_is_a_502(engine: SimulatedEngine, proxy: RunningProxy, fault: Fault) -> None:
    engine.fault = fault
    assert post_chat(proxy.url, chat([user("Q?")], ["A"])).status == 502


def test_an_engine_that_says_nothing_is_a_504(engine: SimulatedEngine) -> None:
    engine.delay_s = 30
    with serve_in_thread(ProxySettings(engine.base_url, port=0, idle_timeout=0.2)) as proxy:
        answer = post_chat(proxy.url, chat([user("Q?")], ["A"]))
        assert (answer.status, answer.json()["error"]["code"]) == (504, "engine_timeout")
    assert engine.wait_for_disconnect()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [Respond(429, b'{"error": 1}'), Respond(500), ErrorEvent(0), BreakOff(0)])
def test_nothing_is_learnt_of_an_answer_that_failed(engine: SimulatedEngine, fault: Fault, stream: bool) -> None:
    pilot = FailingPilot(())
    with serve_in_thread(ProxySettings("http://x"), app=_app(engine, planner=pilot)) as proxy:
        engine.fault = fault
        body = chat([user("Q?")], ["A"], stream=stream)
        try:
            answer = post_chat(proxy.url, body, X_PrefixPilot_Conversation="c")
            assert not (stream and isinstance(fault, BreakOff))
            if isinstance(fault, Respond):
                assert (answer.status, answer.body) == (fault.status, fault.body)
            if isinstance(fault, BreakOff):
                assert (answer.status, answer.json()["error"]["code"]) == (502, "engine_broke_off")
        except http.client.HTTPException:
            assert stream and isinstance(fault, BreakOff), "a stream that breaks off is passed on as one"
        assert pilot.live_requests == 0
        engine.fault = None
        post_chat(proxy.url, chat([user("Q?"), assistant(), user("R?")]), X_PrefixPilot_Conversation="c")
        assert engine.chats[-1].json()["messages"][0]["content"] == "Q?"
        assert post_chat(proxy.url, body).status == 200
        assert pilot.live_requests == 1


def test_a_stream_that_breaks_off_later_is_learnt_and_broken(engine: SimulatedEngine) -> None:
    pilot = FailingPilot(())
    with serve_in_thread(ProxySettings("http://x"), app=_app(engine, planner=pilot)) as proxy:
        engine.fault = BreakOff(2)
        with pytest.raises(http.client.IncompleteRead) as caught:
            post_chat(proxy.url, chat([user("Q?")], ["A"], stream=True))
        assert caught.value.partial.count(b'"content"') == 3
        assert pilot.live_requests == 1


def test_a_stream_comes_piece_by_piece_and_a_client_that_leaves_ends_it(
    engine: SimulatedEngine, proxy: RunningProxy
) -> None:
    engine.reply = lambda body: "word " * 500
    engine.chunk_delay_s = 0.05
    raw = json.dumps(chat([user("Q?")], ["A"], stream=True)).encode()
    with socket.create_connection((urlsplit(proxy.url).hostname, urlsplit(proxy.url).port), timeout=10) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        client.sendall(head.encode() + raw)
        received = b""
        while received.count(b'word"') < 2:
            received += client.recv(65536)
        assert received.count(b'word"') < 100, "the pieces are not collected"
    assert engine.wait_for_disconnect()


@pytest.mark.parametrize("body", [chat([user("Q?")], ["A"]), chat([user("Q?")])])
def test_a_client_that_leaves_while_the_engine_thinks_ends_the_request(
    engine: SimulatedEngine, proxy: RunningProxy, body: Any
) -> None:
    engine.delay_s = 30
    raw = json.dumps(body).encode()
    with socket.create_connection((urlsplit(proxy.url).hostname, urlsplit(proxy.url).port), timeout=10) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        client.sendall(head.encode() + raw)
        assert engine.wait_for_requests(1)
    assert engine.wait_for_disconnect()


def test_plans_evict_and_metrics(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    body = chat([user("Q?")], [{"text": "A", "id": "a"}, {"text": "B", "id": 2}])
    post_chat(proxy.url, body, X_Request_Id="r 1/x")
    plan = fetch(proxy.url, "GET", "/plans/r%201%2Fx").json()
    assert [(b["position"], b["id"], b["label"]) for b in plan["labels"]] == [(0, "a", "Doc 1"), (1, 2, "Doc 2")]
    assert fetch(proxy.url, "GET", "/plans/unknown").status == 404
    assert metrics(proxy, "prefixpilot_index_live_requests") == 1
    assert metrics(proxy, "prefixpilot_requests_total", outcome="planned") == 1
    assert metrics(proxy, "prefixpilot_prompt_tokens_total", mode="on") > 0
    post_chat(proxy.url, body, X_Request_Id="r2")
    many = ["r 1/x", *(f"unknown {n}" for n in range(2 * EVICTED_AT_ONCE)), "chatcmpl-r2"]
    assert fetch(proxy.url, "POST", "/evict", {"request_ids": many}).json() == {"evicted": 2}
    too_long = fetch(proxy.url, "POST", "/evict", b" " * (MAX_EVICT_BYTES + 1))
    assert too_long.status == 413 and f"at most {MAX_EVICT_BYTES} bytes" in too_long.body.decode()
    assert metrics(proxy, "prefixpilot_index_live_requests") == 0
    mistakes: list[Any] = [b"{", {"request_ids": "r"}, {"request_ids": [1]}, []]
    for wrong in mistakes:
        assert fetch(proxy.url, "POST", "/evict", wrong).status == 400
    assert fetch(proxy.url, "GET", "/readyz").json() == {
        "ready": True,
        "engine": engine.base_url,
        "missing": [],
        "degraded": [],
    }
    assert len(engine.chats) == 2


def test_an_error_in_each_step_still_brings_the_evidence_to_the_engine(engine: SimulatedEngine) -> None:
    for failing in ("propose", "learn"):
        app = _app(engine, planner=FailingPilot([failing]))
        with serve_in_thread(ProxySettings("http://x"), app=app) as proxy:
            assert post_chat(proxy.url, chat([user("Q?")], ["A", "B"])).status == 200
            assert engine.chats[-1].json()["messages"][0]["content"] == "[Doc 1]\nA\n\n[Doc 2]\nB\n\nQ?"
            assert metric(app.metrics.text().decode(), "prefixpilot_requests_total", outcome="fallback") == (
                failing == "propose"
            )


def _app(engine: SimulatedEngine, **steps: Any) -> ProxyApp:
    return ProxyApp(ProxySettings(engine.base_url, port=0), **steps)
