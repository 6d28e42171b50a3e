"""Faults of clients, in all APIs: bodies that cannot be read, and connections that break, stall or speak no HTTP."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.testing import SimulatedEngine

from .watched import ALL, APIS, BOUND_S, CANARY, EACH, KEY, KINDS, Ask, Got, Watched, read_on, watched

SAYS = CANARY.encode()
RECEIVE_S = 1.5
MAX_BODY = 200_000


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(engine: SimulatedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    settings = ProxySettings(
        engine.base_url,
        port=0,
        drain_timeout=2,
        receive_timeout=RECEIVE_S,
        max_body_bytes=MAX_BODY,
        max_header_bytes=16_384,
        store=StoreSettings(state_dir=str(tmp_path_factory.mktemp("state"))),
    )
    with watched(settings) as running:
        yield running


@dataclass(frozen=True)
class Case:
    """What is done to a body that was fine, and with which headers it is sent."""

    name: str
    spoil: Callable[[bytes], bytes]
    headers: dict[str, str] = field(default_factory=dict)

    def passes(self, ask: Ask) -> bool:
        """Whether the engine gets to see it all the same: it has no blocks, and nothing is to be restored."""
        return not self.headers and ask.kind != "blocks" and not ask.restored


def inside(data: bytes, text: bytes) -> bytes:
    """With a text put into the words of its prompt."""
    at = data.index(SAYS)
    return data[:at] + text + data[at:]


def with_member(data: bytes, member: bytes) -> bytes:
    return b"{" + member + b", " + data[1:]


GZIP = {"Content-Encoding": "gzip"}
CASES = [
    Case("cut", lambda data: data[:-5]),
    Case("no UTF-8", lambda data: inside(data, b"\xff\xfe")),
    Case("a lone continuation byte", lambda data: inside(data, b"\x80")),
    Case("a control character", lambda data: inside(data, b"\x00")),
    Case("NaN", lambda data: with_member(data, b'"temperature": NaN')),
    Case("nested too deeply", lambda data: with_member(data, b'"x": ' + b"[" * 50_000)),
    Case("two documents", lambda data: data + data),
    Case("UTF-16", lambda data: data.decode().encode("utf-16")),
    Case("no gzip", lambda data: data, GZIP),
    Case("gzip that is cut", lambda data: gzip.compress(data)[:-9], GZIP),
    Case("gzip that unfolds to too much", lambda data: gzip.compress(data + b" " * 900_000), GZIP),
    Case("a coding that is not read", lambda data: data, {"Content-Encoding": "br"}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_body_that_cannot_be_read(engine: SimulatedEngine, proxy: Watched, case: Case) -> None:
    """It is refused where documents would get lost, else the engine says what it thinks of it."""
    names = proxy.begin(EACH)
    before = proxy.mark()
    for ask, name in zip(EACH, names, strict=True):
        data = case.spoil(json.dumps(ask.body()).encode())
        asked = len(engine.requests)
        got = proxy.send(ask, data, {"Content-Type": "application/json", **case.headers}, name)
        assert got.complete
        if not case.passes(ask):
            assert got.status == 400
            assert got.error["message"]
            assert CANARY not in got.error["message"]
        passed = [request.body for request in engine.requests[asked:] if request.method == "POST"]
        assert passed == ([data] if case.passes(ask) else [])
    lines = proxy.check_over(before, len(EACH)).values()
    assert {line["status"] for line in lines if line["code"] is not None} == {400}
    refused = len(EACH) - sum(map(case.passes, EACH))
    assert proxy.counted(before, "prefixpilot_refused_total", status="400") == refused
    assert proxy.counted(before, "prefixpilot_requests_total", outcome="client_error") == refused
    assert sum(line["code"] is not None for line in lines) == refused
    assert proxy.counted(before, "prefixpilot_requests_total") == len(EACH)
    check_again(proxy, names)


def check_again(proxy: Watched, names: list[str]) -> None:
    for got in proxy.all(EACH, names):
        assert (got.status, got.complete) == (200, True)
        assert json.loads(got.header("x-prefixpilot-plan") or "{}").get("restored", 0) == got.ask.restored


def test_a_body_over_the_bound(engine: SimulatedEngine, proxy: Watched) -> None:
    names = proxy.begin(EACH)
    before = proxy.mark()
    padding = b" " * (2 * MAX_BODY)
    for ask, name in zip(EACH, names, strict=True):
        asked = len(engine.requests)
        got = proxy.send(ask, json.dumps(ask.body()).encode() + padding, {"Content-Type": "application/json"}, name)
        if ask.kind == "bare":
            assert (got.status, len(engine.requests)) == (200, asked + 1)
        else:
            assert (got.status, len(engine.requests)) == (413, asked)
            assert got.error["message"]
    proxy.check_over(before, len(EACH))
    assert proxy.counted(before, "prefixpilot_refused_total", status="413") == len(EACH) * 2 / 3


# -- connections


@contextmanager
def connections(proxy: Watched, count: int) -> Iterator[list[socket.socket]]:
    parts = urlsplit(proxy.url)
    address = str(parts.hostname), int(parts.port or 0)
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address, BOUND_S)) for _ in range(count)]


def head(ask: Ask, *lines: str) -> bytes:
    own = [f"POST {ask.path} HTTP/1.1", "Host: x", f"Authorization: {KEY}", "Content-Type: application/json"]
    return "\r\n".join([*own, *lines]).encode() + b"\r\n\r\n"


def request(ask: Ask) -> bytes:
    data = json.dumps(ask.body()).encode()
    named = ("X-PrefixPilot-Conversation: leaves",) if ask.kind == "conversation" else ()
    return head(ask, f"Content-Length: {len(data)}", *named) + data


def answer(ask: Ask, client: socket.socket) -> Got:
    response = HTTPResponse(client)
    response.begin()
    return read_on(ask, "", response)


def reset(client: socket.socket) -> None:
    """Close it so that the other end gets a reset, not an end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


WAYS: dict[str, Callable[[socket.socket], None]] = {"closes": socket.socket.close, "resets": reset}


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_within_its_body(engine: SimulatedEngine, proxy: Watched, way: str) -> None:
    before, asked = proxy.mark(), len(engine.requests)
    with connections(proxy, len(ALL)) as clients:
        for ask, client in zip(ALL, clients, strict=True):
            client.sendall(request(ask)[:-7])
            WAYS[way](client)
        assert proxy.over(before, len(ALL))
    for line in proxy.check_over(before, len(ALL)).values():
        assert (line["status"], line["code"], line["outcome"]) == (0, "client_gone", None)
    assert len(engine.requests) == asked


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_while_the_engine_thinks(engine: SimulatedEngine, proxy: Watched, way: str) -> None:
    before, asked, gone = proxy.mark(), len(engine.requests), len(engine.disconnected)
    with connections(proxy, len(ALL)) as clients:
        engine.delay_s = 60.0
        try:
            for ask, client in zip(ALL, clients, strict=True):
                client.sendall(request(ask))
            assert engine.wait_for_requests(asked + len(ALL), BOUND_S)
            for client in clients:
                WAYS[way](client)
            assert engine.wait_for_disconnect(gone + len(ALL), BOUND_S)
        finally:
            engine.delay_s = 0.0
    for line in proxy.check_over(before, len(ALL)).values():
        assert (line["status"], line["code"]) == (0, "client_gone")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_a_stream(engine: SimulatedEngine, proxy: Watched, way: str) -> None:
    asks = [Ask(api, kind, True) for api in APIS for kind in KINDS]
    before, gone = proxy.mark(), len(engine.disconnected)
    kept, engine.reply = engine.reply, lambda body: "word " * 5000
    engine.chunk_delay_s = 0.02
    try:
        with connections(proxy, len(asks)) as clients:
            for ask, client in zip(asks, clients, strict=True):
                client.sendall(request(ask))
            for client in clients:
                received = b""
                while received.count(b"word") < 3:
                    received += client.recv(65536)
                WAYS[way](client)
        assert engine.wait_for_disconnect(gone + len(asks), BOUND_S), "each of them is told"
    finally:
        engine.chunk_delay_s, engine.reply = 0.0, kept
    for line in proxy.check_over(before, len(asks)).values():
        assert (line["status"], line["code"]) == (200, "client_gone")
        assert line["ttft_ms"] is not None


def test_a_client_that_stalls_within_its_body(engine: SimulatedEngine, proxy: Watched) -> None:
    before, asked = proxy.mark(), len(engine.requests)
    with connections(proxy, len(ALL)) as clients:
        for ask, client in zip(ALL, clients, strict=True):
            client.sendall(request(ask)[:-7])
        for ask, client in zip(ALL, clients, strict=True):
            got = answer(ask, client)
            assert (got.status, got.header("connection")) == (408, "close")
            assert got.error.get("code", "request_timeout") == "request_timeout"
    assert {line["code"] for line in proxy.check_over(before, len(ALL)).values()} == {"request_timeout"}
    assert len(engine.requests) == asked


UNREAD: list[tuple[str, Callable[[Ask], bytes], int, str]] = [
    ("chunks that are none", lambda a: head(a, "Transfer-Encoding: chunked") + b"1\r\n{" + SAYS, 400, "invalid_http"),
    ("a head too long", lambda a: head(a, "X-Long: " + CANARY * 9000), 431, "headers_too_large"),
    ("a head that is whole, and too long", lambda a: head(a, "X-Long: " + CANARY * 2800), 431, "headers_too_large"),
    ("a header that is none", lambda a: head(a, CANARY), 400, "invalid_http"),
    ("two lengths", lambda a: head(a, "Content-Length: 1", "Content-Length: 2"), 400, "invalid_http"),
    ("no HTTP", lambda a: SAYS + b"\r\n\r\n", 400, "invalid_http"),
    ("TLS", lambda a: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SAYS, 400, "invalid_http"),
    ("a head without end", lambda a: head(a)[:-4], 408, "request_timeout"),
]


@pytest.mark.parametrize(("data", "status", "code"), [case[1:] for case in UNREAD], ids=[case[0] for case in UNREAD])
def test_what_is_no_http_is_answered_counted_and_logged(
    engine: SimulatedEngine, proxy: Watched, data: Callable[[Ask], bytes], status: int, code: str
) -> None:
    before, asked = proxy.mark(), len(engine.requests)
    asks = [Ask(api, "bare") for api in APIS]
    with connections(proxy, len(asks)) as clients:
        for ask, client in zip(asks, clients, strict=True):
            with suppress(ConnectionError):
                client.sendall(data(ask))
        for ask, client in zip(asks, clients, strict=True):
            got = answer(ask, client)
            assert (got.status, got.header("connection")) == (status, "close")
            error = json.loads(got.body)["error"]
            assert error["message"]
            assert CANARY not in error["message"]
            if code != "invalid_http":
                assert got.error.get("code", code) == code, "in the shape of its API, where that can be known"
    for line in proxy.check_over(before, len(asks)).values():
        assert (line["status"], line["code"], line["outcome"]) == (status, code, "client_error")
    assert proxy.counted(before, "prefixpilot_refused_total", status=str(status)) == len(asks)
    assert proxy.counted(before, "prefixpilot_requests_total", outcome="client_error") == len(asks)
    assert len(engine.requests) == asked
