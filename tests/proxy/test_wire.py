"""Byte for byte: what stands on the wire on either side of the proxy."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.server import listen
from prefixpilot.proxy.settings import TenantSettings
from prefixpilot.testing import Respond, SimulatedEngine

from .dialects import body
from .raw_engine import RawClient, RawEngine, plain
from .support import chat, fetch, post_chat, user

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RawEngine, RunningProxy]]:
    """One for all tests of this file: to end a server takes longer than most of them."""
    with RawEngine() as engine:
        settings = ProxySettings(engine.url, port=0, drain_timeout=1, max_body_bytes=100_000)
        with serve_in_thread(settings) as proxy:
            yield engine, proxy


@pytest.fixture
def raw(pair: tuple[RawEngine, RunningProxy]) -> RawEngine:
    pair[0].requests.clear()
    pair[0].answer = lambda request: plain()
    return pair[0]


@pytest.fixture
def before(pair: tuple[RawEngine, RunningProxy]) -> RunningProxy:
    return pair[1]


def test_small_answers_do_not_wait_for_an_acknowledgement() -> None:
    async def no_delay(listener: socket.socket) -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await asyncio.wait_for(seen, 10)

    assert asyncio.run(no_delay(listen(ProxySettings("http://x", port=0)))) != 0


@pytest.mark.parametrize("target", [b"@127.0.0.1:%d/steal", b".evil.test/", b"foo", b"*", b"ftp://127.0.0.1:%d/"])
def test_a_target_cannot_choose_the_host(raw: RawEngine, before: RunningProxy, target: bytes) -> None:
    with RawEngine() as other, RawClient(before.url) as client:
        chosen = target % other.port if b"%d" in target else target
        status, body = client.ask(b"OPTIONS %b HTTP/1.1\r\nHost: x\r\n\r\n" % chosen)
        assert status.startswith(b"HTTP/1.1 400 ")
        assert "begins with /" in json.loads(body)["error"]["message"]
        assert (raw.requests, other.requests) == ([], [])


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        (b"http://127.0.0.1:%d/abs?a#b", b"/abs?a#b"),
        (b"HTTPS://u:p@evil?q", b"/?q"),
        (b"//evil.test/x", b"//evil.test/x"),
    ],
)
def test_a_whole_url_goes_to_the_engine_alone(
    raw: RawEngine, before: RunningProxy, sent: bytes, forwarded: bytes
) -> None:
    with RawEngine() as other, RawClient(before.url) as client:
        chosen = sent % other.port if b"%d" in sent else sent
        assert client.ask(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % chosen)[0] == b"HTTP/1.1 200 OK"
        assert not other.requests
        assert raw.requests[0].lines[0] == b"GET %b HTTP/1.1" % forwarded


def test_a_head_is_sent_on_byte_for_byte(raw: RawEngine, before: RunningProxy) -> None:
    headers = [b"x-latin: caf\xe9", b"x-utf: caf\xc3\xa9", b"x-two: 1", b"x-other: %20", b"x-two: 2", b"x-empty: "]
    for method, target in ((b"GET", b"/a?"), (b"DELETE", b"/a?b=%2f#c"), (b"PATCH", b"/%zz?%"), (b"POST", b"/")):
        with RawClient(before.url) as client:
            client.ask(b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), b"host: mine", *headers]) + b"\r\n\r\n")
        host = b"host: 127.0.0.1:%d" % raw.port
        assert raw.requests[-1].lines == [b"%b %b HTTP/1.1" % (method, target), host, *headers]


def test_an_engine_under_a_path_keeps_it(raw: RawEngine) -> None:
    with serve_in_thread(ProxySettings(raw.url + "/some%20path/v1/", port=0)) as proxy:
        fetch(proxy.url, "GET", "/x?")
    assert raw.requests[0].lines[0] == b"GET /some%20path/x? HTTP/1.1"


@pytest.mark.parametrize("reason", [b"Fine By Me", b"", b"caf\xe9"])
def test_the_reason_phrase_is_the_engines(raw: RawEngine, before: RunningProxy, reason: bytes) -> None:
    raw.answer = lambda request: plain(b"200 " + reason)
    with RawClient(before.url) as client:
        for _ in range(2):
            assert client.ask(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")[0] == (b"HTTP/1.1 200 " + reason).strip()
        assert client.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")[0] == b"HTTP/1.1 200 OK"


def test_a_websocket_is_refused_and_not_made_a_get(raw: RawEngine, before: RunningProxy) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    answer = fetch(before.url, "GET", "/v1/realtime", headers=upgrade)
    assert (answer.status, answer.json()["error"]["param"], raw.requests) == (501, "Upgrade", [])


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("length", [4, 400])
def test_chunks_count_and_not_a_length_beside_them(
    raw: RawEngine, before: RunningProxy, path: str, length: int
) -> None:
    body = b'{"messages": []}'
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with RawClient(before.url) as client:
        status, _ = client.ask(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert status == b"HTTP/1.1 200 OK"
        assert client.ended(), "what follows on such a connection could be anything"
    (got,) = raw.requests
    assert (got.body, got.complete) == (body, True)
    assert got.header(b"content-length") in ([], [b"%d" % len(body)])


def test_a_chat_request_without_blocks_keeps_its_path(raw: RawEngine, before: RunningProxy) -> None:
    fetch(before.url, "POST", "/chat/completions?a", {"messages": []})
    assert raw.requests[0].lines[0] == b"POST /chat/completions?a HTTP/1.1"


PATHS = [
    ("/v1/completions", "/v1/completions", "completions"),
    ("/responses", "/v1/responses", "responses"),
    ("/v1/responses", "/v1/responses", "responses"),
    ("/messages", "/v1/messages", "messages"),
    ("/v1/messages", "/v1/messages", "messages"),
]


@pytest.mark.parametrize(("path", "planned", "api"), PATHS)
def test_the_paths_of_the_other_apis(raw: RawEngine, before: RunningProxy, path: str, planned: str, api: str) -> None:
    plain = b' {"stream":false, "n":1.0e0,' + json.dumps(body(api, ["Q?"])).encode()[1:]
    blocks = plain.replace(b'"n":', b'"context_blocks" : ["A"], "n":')
    for data in (plain, blocks):
        assert fetch(before.url, "POST", f"{path}?beta=true", data).status == 200
    untouched, placed = raw.requests
    assert (untouched.lines[0], untouched.body) == (f"POST {path}?beta=true HTTP/1.1".encode(), plain)
    assert placed.lines[0] == f"POST {planned}?beta=true HTTP/1.1".encode()
    assert placed.body == plain.replace(b"Q?", b"[Doc 1]\\nA\\n\\nQ?")


# -- blocks on a path where nothing takes them

NEAR = (
    "/v1/chat/completions/",
    "//v1/chat/completions",
    "/openai/v1/chat/completions",
    "/v1//chat/completions",
    "/completions",
    "/v1/completions/",
    "/openai/responses",
    "/v1/responses/input_tokens",
    "//v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses/compact",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/chat/completions/batch",
    "/invocations",
    "/tokenize",
    "/vertex_generate",
    "/v1/chat%2fcompletions",
    "/v1/chat/completions#x",
    "/v1/chat/completions%23x",
    "/v1/chat/completions%3Fa",
    "/./v1/chat/completions",
    "/v1/chat/./completions",
    "/v1/chat/completions/.",
    "/v1/models/../chat/completions",
    "/v1/%2e%2e/v1/chat/completions",
    "/V1/Chat/Completions",
    "/v1/chat%252Fcompletions",
    "/v1/chat%25252Fcompletions",
    "/v1/chat;a=b/completions;c",
    "/v1/chat\\completions",
    "/v1/chat/completions%20",
    "/v1/chat/completions%00",
    "/V1/MESSAGES//",
    "/v1/./responses",
    "/v1/x/../responses",
)


def near_to(path: str) -> str:
    """The path that a client must have meant."""
    path = path.lower()
    for word in ("messages", "responses"):
        if word in path:
            return f"/v1/{word}"
    return CHAT if "chat" in path else "to /v1/completions"


@pytest.mark.parametrize("path", NEAR)
@pytest.mark.parametrize("key", ["context_blocks", "context\\u005Fblocks"])
def test_blocks_on_another_path_are_refused(raw: RawEngine, before: RunningProxy, path: str, key: str) -> None:
    body = b'{"prompt": "q", "%b": ["evidence"]}' % key.encode()
    answer = fetch(before.url, "POST", path, body)
    error = answer.json()["error"]
    assert (answer.status, raw.requests) == (400, [])
    assert error["message"].startswith("context_blocks")
    assert error.get("param", "context_blocks") == "context_blocks"
    assert near_to(path) in error["message"]


@pytest.mark.parametrize("path", NEAR)
@pytest.mark.parametrize(
    "body", [b'{"prompt": "context_blocks"}', b'["context_blocks"]', b"no json", b'{"a":1.0 }', b""]
)
def test_without_blocks_such_a_path_passes_untouched(
    raw: RawEngine, before: RunningProxy, path: str, body: bytes
) -> None:
    assert fetch(before.url, "POST", path + "?x=", body).status == 200
    assert (raw.requests[0].lines[0], raw.requests[0].body) == (f"POST {path}?x= HTTP/1.1".encode(), body)


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1/chat/completions#x", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("data", [b'{"n": NaN, "context_blocks": ["A"]}', b'{"context_blocks": ["\xff"]}'])
def test_a_body_there_that_may_hold_blocks_and_cannot_be_read_is_refused(
    raw: RawEngine, before: RunningProxy, path: str, data: bytes
) -> None:
    answer = fetch(before.url, "POST", path, data)
    assert (answer.status, raw.requests) == (400, [])
    assert near_to(path) in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", NEAR)
def test_such_a_path_gets_the_salt_of_the_tenant(raw: RawEngine, path: str) -> None:
    secret = Secret("a secret of some length, for tests")
    settings = ProxySettings(raw.url, port=0, tenants=TenantSettings(cache_salt_secret=secret))
    with serve_in_thread(settings) as proxy:
        assert fetch(proxy.url, "POST", path, b'{"prompt": "q"}').status == 200
    (request,) = raw.requests
    assert request.lines[0] == f"POST {path} HTTP/1.1".encode()
    assert json.loads(request.body)["cache_salt"]


def test_other_paths_are_not_looked_into(raw: RawEngine, before: RunningProxy) -> None:
    body = b'{"context_blocks": ["mine"]}' + b" " * 200_000
    assert fetch(before.url, "POST", "/v1/embeddings", body).status == 200
    assert fetch(before.url, "PUT", CHAT, body).status == 200
    assert fetch(before.url, "POST", "/v1/threads/t/messages", body).status == 200
    assert [request.body for request in raw.requests] == [body, body, body]


# -- long bodies

LONG = b'{"messages": [], "image": "%b"' % (b"x" * 300_000)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_long_body_without_blocks_is_streamed(raw: RawEngine, before: RunningProxy, path: str) -> None:
    body = LONG + b', "n": 1.0 }'
    assert fetch(before.url, "POST", path, body).status == 200
    assert (raw.requests[0].body, raw.requests[0].header(b"content-length")) == (body, [b"%d" % len(body)])


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("key", [b"context_blocks", b"\\u0063ontext_blocks"])
@pytest.mark.parametrize("cut", [2, 9, 40])
def test_a_long_body_with_blocks_is_never_answered_without_them(
    raw: RawEngine, before: RunningProxy, path: str, key: bytes, cut: int
) -> None:
    body = LONG + b', "%b": ["A"]}' % key
    with RawClient(before.url) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.socket.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)))
        client.socket.sendall(body[: len(LONG) + cut])
        status, answer = client.ask(body[len(LONG) + cut :])
    assert (status.split()[1], json.loads(answer)["error"]["code"]) == (b"413", "body_too_large")
    assert not any(request.complete for request in raw.requests)


# -- answers that cannot be passed on, and ids


def test_an_answer_may_have_many_headers(raw: RawEngine, before: RunningProxy) -> None:
    many = [b"x-%d: %d" % (number, number) for number in range(3000)]
    raw.answer = lambda request: plain(b"200 OK", b"ok", *many)
    with RawClient(before.url) as client:
        client.socket.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.socket.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"ok")
    assert [line for line in head.split(b"\r\n") if line.startswith(b"x-")] == many


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"700 Odd"),
        plain(b"999 X"),
        plain(b"200 OK", b"", b"x-a: a\x0bb"),
        plain(b"200 OK", b"", *[b"a: b"] * 5000),
    ],
)
def test_an_answer_that_is_no_http_is_a_502(raw: RawEngine, before: RunningProxy, answer: bytes) -> None:
    raw.answer = lambda request: answer
    for response in (fetch(before.url, "GET", "/x"), post_chat(before.url, chat([user("Q?")], ["A"]))):
        assert (response.status, response.json()["error"]["code"]) == (502, "engine_unreachable")


def test_an_empty_request_id_is_none(raw: RawEngine, before: RunningProxy) -> None:
    answer = post_chat(before.url, chat([user("Q?")], ["A"]), X_Request_Id="")
    plan = json.loads(answer.header("x-prefixpilot-plan") or "")
    assert raw.requests[0].header(b"x-request-id") == [plan["request_id"].encode()]


def test_a_plan_is_found_by_an_id_of_any_letters(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    for sent in ("caf\xe9", "caf\xc3\xa9"):
        answer = post_chat(proxy.url, chat([user("Q?")], ["A" * 9] * 900), X_Request_Id=sent)
        at = json.loads(answer.header("x-prefixpilot-plan") or "")["labels_at"]
        assert fetch(proxy.url, "GET", at).json()["request_id"] == sent
    assert fetch(proxy.url, "GET", "/plans/caf%C3%A9").status == 200


def test_lines_of_an_answer_come_one_by_one(raw: RawEngine, before: RunningProxy) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 20\r\n\r\n"
    raw.answer = lambda request: head + b'{"n": 1}\n'  # and then nothing: the second line never comes
    body = json.dumps(chat([user("Q?")], ["A"])).encode()
    with RawClient(before.url) as client:
        client.socket.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)))
        client.socket.sendall(body)
        received = b""
        while b'{"n": 1}' not in received:
            received += client.socket.recv(65536)


# -- bounds


def test_the_number_of_blocks_has_a_bound(raw: RawEngine) -> None:
    with serve_in_thread(ProxySettings(raw.url, port=0, max_request_blocks=3)) as proxy:
        answer = post_chat(proxy.url, chat([user("Q?")], ["A"] * 4))
        assert (answer.status, answer.json()["error"]["param"]) == (400, "context_blocks")
        assert "max_request_blocks" in answer.json()["error"]["message"]
        assert post_chat(proxy.url, chat([user("Q?")], ["A"] * 3)).status == 200


def post_in_pieces(client: RawClient, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    client.socket.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)))
    client.socket.sendall(data)


def test_engine_errors_keep_their_reason(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    engine.fault = Respond(429, b'{"error": 1}')
    with RawClient(proxy.url) as client:
        post_in_pieces(client, chat([user("Q?")], ["A"]))
        assert client.read() == (b"HTTP/1.1 429 Too Many Requests", b'{"error": 1}')
