"""Answers and bodies of odd shapes pass as they are, in all APIs: streams cut anywhere, trailers, 1xx, long bodies."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.memory.settings import StoreSettings

from . import dialects
from .raw_engine import RawEngine, RawRequest, plain
from .support import fetch
from .watched import ALL, APIS, BOUND_S, CANARY, KINDS, Ask, Watched, watched

MIB = 1 << 20
EVENTS = b"content-type: text/event-stream"


@pytest.fixture(scope="module")
def raw() -> Iterator[RawEngine]:
    with RawEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(raw: RawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    store = StoreSettings(state_dir=str(tmp_path_factory.mktemp("state")))
    with watched(ProxySettings(raw.url, port=0, drain_timeout=2, idle_timeout=3.0, store=store)) as running:
        yield running
        raw.answer = lambda request: plain()


def chunked(*pieces: bytes, headers: tuple[bytes, ...] = (), trailer: bytes = b"") -> bytes:
    """An answer in chunks; each piece is one."""
    head = b"\r\n".join([b"HTTP/1.1 200 OK", b"transfer-encoding: chunked", *headers]) + b"\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"


def events(api: str) -> bytes:
    done = b"data: [DONE]\n\n" if api in ("chat", "completions") else b""
    return dialects.stream(dialects.events(api, CANARY, " and \u2028 more")) + done


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def zipped(data: bytes, coding: str = "gzip") -> list[bytes]:
    """One compressed piece for each event, each flushed, as servers stream them."""
    packing = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    pieces = [packing.compress(each + b"\n\n") + packing.flush(zlib.Z_SYNC_FLUSH) for each in data.split(b"\n\n")]
    return [*pieces, packing.flush()]


COMMENT = b": keep-alive\n\n"
STREAMS: dict[str, Any] = {
    "as usual": lambda data: ([data], ()),
    "byte by byte": lambda data: (bytewise(data), ()),
    "CRLF": lambda data: ([data.replace(b"\n", b"\r\n")], ()),
    "CRLF, byte by byte": lambda data: (bytewise(data.replace(b"\n", b"\r\n")), ()),
    "CR": lambda data: ([data.replace(b"\n", b"\r")], ()),
    "comments": lambda data: ([COMMENT + data.replace(b"\n\n", b"\n\n" + COMMENT)], ()),
    "comments within events": lambda data: ([data.replace(b"data: {", b":\n: {ping}\ndata: {")], ()),
    "ids and retries": lambda data: ([data.replace(b"data: {", b"id: 7\nretry: 9\nodd\nodd: x\ndata: {")], ()),
    "no space": lambda data: ([data.replace(b"data: ", b"data:")], ()),
    "a mark of order": lambda data: ([b"\xef\xbb\xbf" + data], ()),
    "no last blank line": lambda data: ([data.rstrip(b"\n")], ()),
    "something behind": lambda data: ([data, b"\x00\xff" + CANARY.encode()], ()),
    "gzip": lambda data: (zipped(data), (b"content-encoding: gzip",)),
    "deflate": lambda data: (zipped(data, "deflate"), (b"content-encoding: deflate",)),
    "another coding": lambda data: ([data], (b"content-encoding: br",)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_passes_as_it_is_and_is_read(raw: RawEngine, proxy: Watched, name: str) -> None:
    asks = [ask for ask in ALL if ask.stream]
    names = begin(raw, proxy, asks)
    before = proxy.mark()
    for ask, conversation in zip(asks, names, strict=True):
        pieces, headers = STREAMS[name](events(ask.api))
        raw.answer = lambda request: chunked(*pieces, headers=(EVENTS, *headers))  # noqa: B023
        got = proxy.one(ask, conversation)
        assert (got.status, got.body, got.complete) == (200, b"".join(pieces), True)
        assert got.header("content-encoding") == (headers[0].split()[1].decode() if headers else None)
    for line in proxy.check_over(before, len(asks)).values():
        assert line["ttft_ms"] is not None
        readable = name != "another coding"
        assert line["cached_tokens"] == (4 if readable else None)


def begin(raw: RawEngine, proxy: Watched, asks: list[Ask]) -> list[str]:
    """The first turns of what are conversations, answered plainly."""
    raw.answer = said
    return proxy.begin(asks)


def said(request: RawRequest) -> bytes:
    """A plain answer in the API of the path."""
    path = request.lines[0].split()[1].decode()
    api = next((ask.api for ask in ALL if ask.path == path), "chat")
    return plain(b"200 OK", json.dumps(dialects.answer(api, "ok")).encode(), b"content-type: application/json")


def test_an_engine_that_is_down_and_comes_back(tmp_path: Any) -> None:
    with ExitStack() as stack:
        with RawEngine(said) as engine:
            engine.hangs_up = lambda request: True
            store = StoreSettings(state_dir=str(tmp_path))
            proxy = stack.enter_context(watched(ProxySettings(engine.url, port=0, drain_timeout=2, store=store)))
            names = proxy.begin(ALL)
        before = proxy.mark()
        for got in proxy.all(ALL, names):
            assert got.status == 502
            assert got.error.get("code", "engine_unreachable") == "engine_unreachable"
        assert {line["code"] for line in proxy.check_over(before, len(ALL)).values()} == {"engine_unreachable"}
        assert proxy.counted(before, "prefixpilot_requests_total", outcome="engine_error") == len(ALL)
        assert fetch(proxy.url, "GET", "/readyz").status == 503
        with RawEngine(said, engine.port):
            for got in proxy.all(ALL, names):
                assert (got.status, got.complete) == (200, True)
                assert json.loads(got.header("x-prefixpilot-plan") or "{}").get("restored", 0) == got.ask.restored
            assert fetch(proxy.url, "GET", "/readyz").status == 200


# -- heads and ends

OK = b"HTTP/1.1 200 OK\r\n"
ODD: dict[str, tuple[bytes, int, bytes]] = {
    "trailers": (chunked(b"ok", headers=(b"trailer: x-t",), trailer=b"x-t: 1\r\n"), 200, b"ok"),
    "chunk extensions": (OK + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n", 200, b"ok"),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + plain(), 200, b"ok"),
    "early hints": (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2 + plain(), 200, b"ok"),
    "204": (b"HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n", 204, b""),
    "205": (plain(b"205 Reset Content", b""), 205, b""),
    "304": (b'HTTP/1.1 304 Not Modified\r\netag: "x"\r\ncontent-length: 9\r\n\r\n', 304, b""),
    "no length": (OK + b"content-type: application/json\r\n\r\n{}", 200, b"{}"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nok", 200, b"ok"),
    "bare line feeds": (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok", 200, b"ok"),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
    "an answer behind it": (plain() + plain(b"200 OK", b"of another"), 200, b"ok"),
    "an empty chunked body": (chunked(), 200, b""),
    "a folded header": (OK + b"x-a: 1\r\n 2\r\ncontent-length: 2\r\n\r\nok", 200, b"ok"),
}


@pytest.mark.parametrize("name", ODD)
def test_answers_of_odd_shapes(raw: RawEngine, proxy: Watched, name: str) -> None:
    data, status, body = ODD[name]
    before = proxy.mark()
    raw.answer = lambda request: data
    raw.hangs_up = lambda request: True
    try:
        asks = [ask for ask in ALL if ask.kind != "conversation"]
        for got in proxy.all(asks):
            assert (got.status, got.body, got.complete) == (status, body, True)
        other = fetch(proxy.url, "GET", "/v1/other")
        assert (other.status, other.body) == (status, body)
    finally:
        raw.hangs_up = lambda request: False
    proxy.check_over(before, len(asks) + 1)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_head_has_the_headers_and_no_body(raw: RawEngine, proxy: Watched, path: str) -> None:
    raw.answer = lambda request: OK + b"content-length: 1234\r\nx-a: 1\r\n\r\n"
    with closing(http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=BOUND_S)) as connection:
        for _ in range(2):
            connection.request("HEAD", path)
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"")
            assert (response.getheader("content-length"), response.getheader("x-a")) == ("1234", "1")


# -- who is slow, and what is long


def test_a_client_that_does_not_read_holds_nobody_and_nothing_up(raw: RawEngine, proxy: Watched) -> None:
    """Its answer stays at the engine, and comes whole once it reads."""
    size, piece = 64 * MIB, b"data: " + b"x" * 65_528 + b"\n\n"
    answer = chunked(*[piece] * (size // len(piece)), headers=(EVENTS,))
    for ask in (Ask("chat", "blocks", True), Ask("messages", "bare", True)):
        sent = threading.Event()

        def note(request: RawRequest, sent: threading.Event = sent) -> bool:
            if b'"stream"' in request.body:
                sent.set()
            return False

        raw.answer = lambda request: answer
        raw.hangs_up = note
        before = proxy.mark()
        with closing(http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=BOUND_S)) as connection:
            connection.request("POST", ask.path, json.dumps(ask.body()), {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw.answer = said
            others = [Ask(api, kind) for api in APIS for kind in KINDS]
            for got in proxy.all(others):
                assert (got.status, got.complete) == (200, True)
            assert not sent.wait(0.5), "the engine is held, not our memory filled"
            read = 0
            while data := response.read(MIB):
                read += len(data)
            assert read == size
        raw.hangs_up = lambda request: False
        assert sent.wait(BOUND_S)
        proxy.check_over(before, len(others) + 1)


LONG = CANARY * (50 * MIB // len(CANARY))
UNHELD = CANARY * (20 * MIB // len(CANARY))
"""More than the buffers between two sockets hold."""


@pytest.mark.parametrize(
    ("api", "kind"), [("chat", "blocks"), ("messages", "blocks"), ("completions", "bare"), ("responses", "bare")]
)
def test_fifty_megabytes(raw: RawEngine, proxy: Watched, api: str, kind: str) -> None:
    raw.answer = said
    raw.requests.clear()
    before = proxy.mark()
    blocks = [LONG, "Short."] if kind == "blocks" else None
    data = json.dumps(dialects.body(api, ["Q?" if blocks else LONG], blocks)).encode()
    got = proxy.send(Ask(api, kind), data, {"Content-Type": "application/json"}, "c")
    assert (got.status, got.complete) == (200, True)
    (sent,) = [request.body for request in raw.requests if request.lines[0].startswith(b"POST")]
    if blocks:
        text = dialects.texts(api, json.loads(sent))[-1]
        assert text == f"[Doc 1]\n{LONG}\n\n[Doc 2]\nShort.\n\nQ?"
    else:
        assert hashlib.sha256(sent).digest() == hashlib.sha256(data).digest()
    raw.requests.clear()
    proxy.check_over(before, 1)


def test_an_engine_that_stops_reading_is_given_up(tmp_path: Any) -> None:
    """Of a body that does not fit the buffers between."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        settings = ProxySettings(f"http://127.0.0.1:{deaf.getsockname()[1]}", port=0, idle_timeout=1.0, drain_timeout=1)
        with watched(settings) as proxy:
            for kind in ("blocks", "bare"):
                before = proxy.mark()
                blocks = [UNHELD] if kind == "blocks" else None
                data = json.dumps(dialects.body("messages", ["Q?" if blocks else UNHELD], blocks)).encode()
                got = proxy.send(Ask("messages", kind), data, {"Content-Type": "application/json"}, "c")
                assert got.status == 504
                assert got.error["type"] == "timeout_error"
                proxy.check_over(before, 1)


@pytest.mark.parametrize("ask", [Ask("chat", "blocks"), Ask("responses", "bare"), Ask("messages", "blocks")])
def test_an_engine_that_refuses_before_the_body_is_through(ask: Ask) -> None:
    """Its answer reaches the client, not the broken connection."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(plain(b"413 Too Large", b"too large", b"connection: close"))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(MIB):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with watched(ProxySettings(f"http://127.0.0.1:{listener.getsockname()[1]}", port=0, drain_timeout=1)) as proxy:
            before = proxy.mark()
            blocks = [UNHELD] if ask.kind == "blocks" else None
            data = json.dumps(dialects.body(ask.api, ["Q?" if blocks else UNHELD], blocks)).encode()
            got = proxy.send(ask, data, {"Content-Type": "application/json"}, "c")
            assert (got.status, got.body) == (413, b"too large")
            proxy.check_over(before, 1)
        thread.join(BOUND_S)
