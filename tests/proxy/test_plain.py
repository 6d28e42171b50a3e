"""What llhttp reads in place of h11 is read, and answered, as h11 does it; all else is h11's."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from prefixpilot.proxy.wire.client import WIRE, ClientProtocol, Refusal, client_protocol
from prefixpilot.proxy.wire.plain import PlainProtocol, plain_protocol

MAX_HEAD = 2000
HEAD_TIMEOUT_S = 50
Protocol = ClientProtocol | PlainProtocol


class Transport(asyncio.Transport):
    """Keeps what is written, and what it is told."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        self.protocol: Any = protocol
        self.writes: list[bytes] = []
        self.closed = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.writes.append(bytes(data))

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


ANSWERS: dict[str, tuple[int, list[tuple[bytes, bytes]], list[bytes]]] = {
    "/length": (200, [(b"content-length", b"4"), (b"x-a", b"b")], [b"ok", b"ok"]),
    "/chunks": (200, [(b"content-type", b"text/plain")], [b"one", b"", b"two"]),
    "/empty": (200, [], []),
    "/204": (204, [], []),
    "/304": (304, [(b"content-length", b"9")], []),
    "/odd": (299, [(b"content-length", b"0")], []),
    "/close": (400, [(b"connection", b"close"), (b"content-length", b"2")], [b"no"]),
    "/early": (413, [(b"content-length", b"2")], [b"no"]),
    "/short": (200, [(b"content-length", b"9")], [b"ok"]),
    "/break": (200, [(b"content-length", b"9")], []),
}


@dataclass
class App:
    """Reads a request and answers by its path; notes the request."""

    seen: list[Any] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wire = scope[WIRE]
        kept = {key: value for key, value in scope.items() if key != WIRE}
        request = [kept, wire.target, b"", ""]
        self.seen.append(request)
        status, headers, pieces = ANSWERS.get(scope["path"], ANSWERS["/length"])
        more = scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                request[3] = "gone"
                return
            request[2] += message["body"]
            more = message["more_body"]
        request[3] = f"read {wire.body_read}"
        wire.reason = b"As You Like" if scope["query_string"] == b"r" else None
        wire.waits = bool(pieces)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["path"] == "/break":
            return
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def refuse(self, refusal: Refusal) -> bytes:
        self.refused.append(refusal)
        return json.dumps([refusal.status, refusal.code]).encode()


@dataclass
class Talk:
    """What came of a connection."""

    seen: list[Any]
    refused: list[Refusal]
    written: bytes
    closed: bool
    open_connections: int
    reader: type[Any]
    writes: list[bytes]

    def same(self) -> tuple[Any, ...]:
        return self.seen, self.refused, self.written, self.closed, self.open_connections


class Server:
    """One connection to an :class:`App`; with ``plain`` llhttp may read it."""

    def __init__(self, *, plain: bool) -> None:
        self.app = App()
        made = plain_protocol if plain else client_protocol
        config = uvicorn.Config(
            self.app,
            http=made(HEAD_TIMEOUT_S, self.app.refuse),
            h11_max_incomplete_event_size=MAX_HEAD,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        config.load()
        self.state = ServerState()
        made_by: Any = config.http_protocol_class
        self.transport = Transport(made_by(config=config, server_state=self.state, app_state={}))
        self.protocol.connection_made(self.transport)

    @property
    def protocol(self) -> Any:
        return self.transport.protocol

    async def send(self, pieces: list[bytes], together: int = 1) -> None:
        """As much as it reads; ``together`` pieces before anything else runs."""
        for number, piece in enumerate(pieces):
            if number % together == 0 or self.transport.paused:
                await settled()
            if not self.transport.closed and not self.transport.paused:
                self.protocol.data_received(piece)
        await settled()

    async def lose(self) -> None:
        """The client goes."""
        self.protocol.connection_lost(None)
        await settled()
        assert not self.state.connections
        assert not self.state.tasks


async def talk(pieces: list[bytes], together: int, *, plain: bool) -> Talk:
    """Send pieces, then leave."""
    server = Server(plain=plain)
    await server.send(pieces, together)
    reader = ClientProtocol if isinstance(server.protocol, ClientProtocol) else PlainProtocol
    writes, closed = server.transport.writes, server.transport.closed
    connections = len(server.state.connections)
    await server.lose()
    return Talk(server.app.seen, server.app.refused, same_case(writes), closed, connections, reader, writes)


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def same_case(writes: list[bytes]) -> bytes:
    """Names of headers that are the server's own are written in one case by one and in another by the other."""
    return re.sub(rb"(?i)\r\n(transfer-encoding|connection):", lambda found: found[0].lower(), b"".join(writes))


def check_same(pieces: list[bytes], together: int = 1) -> Talk:
    async def both() -> tuple[Talk, Talk]:
        return await talk(pieces, together, plain=True), await talk(pieces, together, plain=False)

    fast, exact = asyncio.run(both())
    assert fast.same() == exact.same()
    return fast


PLAIN_HEADERS = (
    *(b"x-a: 1", b"X-A: two  words", b"x-a: caf\xe9", b"Connection: keep-alive", b"connection: Keep-Alive"),
    *(b"x-long: " + b"l" * 900, b"x-long: " + b"l l" * 300, b"Keep-Alive: timeout=5", b"TE: trailers", b"Trailer: x"),
)
ODD_HEADERS = (
    *(b"x-empty:", b"x-empty: ", b"x-tab: a\tb", b"x-end: a ", b"Connection: close", b"Connection: upgrade, close"),
    *(b"Upgrade: h2c", b"Upgrade: websocket", b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"x:a"),
    *(
        b"transfer-encoding: gzip, chunked",
        b"X-B:  two",
        b"Proxy-Connection: close",
        b"Content-Length: 3",
        b"Content-Length: -0",
    ),
    *(b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: 5 ", b"Host: other", b" folded", b"none"),
    *(
        b"x a: b",
        b"x-a : b",
        b"x-\xe9: b",
        b"x-c: \x01",
        b"x-nul: \x00",
        b"x: a\nb: c",
        b"Content-Length: " + b"9" * 18,
    ),
    b"x-long: " + b"l" * 1990,
)
PLAIN_TARGETS = (
    *(path.encode() for path in ANSWERS),
    b"/x?r",
    b"/chunks?r",
    b"/%zz?%",
    b"//e/x",
    b'/"<>\\^`{|}',
    b"/a#b",
)
ODD_TARGETS = (b"*", b"http://h/x?q", b"foo", b"/\xe9", b"/a b", b"")
ODD_METHODS = (b"PUT", b"HEAD", b"get", b"PROPFIND", b"CONNECT", b"OPTIONS")
BODIES = (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: y\r\n\r\n")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request: plain, or odd in one way."""
    odd = draw(
        st.sampled_from(["", "", "", "", "", "", "method", "target", "version", "header", "header", "host", "framing"])
    )
    method = draw(st.sampled_from(ODD_METHODS if odd == "method" else (b"GET", b"POST")))
    target = draw(st.sampled_from(ODD_TARGETS if odd == "target" else PLAIN_TARGETS))
    version = draw(st.sampled_from([b"1.0", b"1.2", b"2.0"])) if odd == "version" else b"1.1"
    body = draw(st.sampled_from(BODIES))
    lines = draw(st.lists(st.sampled_from(PLAIN_HEADERS), max_size=2))
    if odd == "header":
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(ODD_HEADERS)))
    if body and odd != "framing":
        lines.insert(draw(st.integers(0, len(lines))), b"Content-Length: %d" % len(body))
    host = draw(st.sampled_from([[], [b"Host: h", b"Host: h"]])) if odd == "host" else [b"Host: h"]
    return (
        b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version), *host, b"accept: */*", *lines]) + b"\r\n\r\n" + body
    )


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Requests one after the other, perhaps with one byte changed, in any pieces."""
    data = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    if draw(st.sampled_from([True, False, False])):
        at = draw(st.integers(0, len(data) - 1))
        put = draw(
            st.sampled_from([b"", b" ", b"\r", b"\n", b"\r\n", b":", b"\t", b"\x00", b"\x7f", b"a", b"\xff", b"1"])
        )
        data = data[:at] + put + data[at + draw(st.integers(0, 1)) :]
    heads = [found.end() for found in re.finditer(rb"\r\n\r\n", data)]
    places = st.integers(0, len(data)) if draw(st.sampled_from([True, False, False])) else st.sampled_from([0, *heads])
    cuts = sorted(draw(st.lists(places, max_size=3)))
    ends = zip([0, *cuts], [*cuts, len(data)], strict=True)
    return [data[start:end] for start, end in ends if start < end]


@given(streams(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_every_stream_is_read_as_h11_reads_it(pieces: list[bytes], together: int) -> None:
    check_same(pieces, together)


def plain(target: bytes, body: bytes = b"", method: bytes = b"POST", *lines: bytes) -> bytes:
    length = (b"Content-Length: %d" % len(body),) if body else ()
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), b"Host: h", *lines, *length]) + b"\r\n\r\n" + body


@pytest.mark.parametrize("target", PLAIN_TARGETS)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_plain_request_is_read_by_llhttp(target: bytes, method: bytes) -> None:
    for header in PLAIN_HEADERS:
        data = plain(target, b"hello", method, header)
        for pieces in ([data], [data[:-5], data[-5:]], [data[:-3], data[-3:-1], data[-1:]]):
            came = check_same(pieces)
            assert came.reader is PlainProtocol
            assert (came.seen[0][1], came.seen[0][2]) == (target, b"" if target == b"/early" else b"hello")


@pytest.mark.parametrize("header", ODD_HEADERS)
def test_an_odd_header_is_h11s(header: bytes) -> None:
    data = plain(b"/x", b"hello", b"POST", header)
    for pieces in ([data], [plain(b"/x"), data], [plain(b"/x") + data]):
        assert check_same(pieces).reader is ClientProtocol


@pytest.mark.parametrize(
    "data",
    [
        *(plain(target) for target in ODD_TARGETS),
        *(plain(b"/x", b"", method) for method in ODD_METHODS),
        plain(b"/x").replace(b"HTTP/1.1", b"HTTP/1.0"),
        plain(b"/x").replace(b"Host: h\r\n", b""),
        plain(b"/x", b"", b"GET", b"Host: h"),
        plain(b"/x", b"hello", b"GET", b"Content-Length: 5"),
        plain(b"/x", b"", b"POST", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n",
        b"\r\n" + plain(b"/x"),
        b"\x16\x03\x01 TLS",
    ],
)
def test_an_odd_request_is_h11s(data: bytes) -> None:
    assert check_same([data]).reader is ClientProtocol
    assert check_same([data[:9], data[9:]]).reader is ClientProtocol


def test_requests_that_come_before_their_turn_wait() -> None:
    first, second, third = plain(b"/chunks", b"hello"), plain(b"/x?r"), plain(b"/length", b"x" * 9)
    for pieces in (
        [first + second + third],
        [first + second[:7], second[7:] + third],
        [first[:-2], first[-2:] + second],
    ):
        came = check_same(pieces, together=3)
        assert came.seen[0][1] == b"/chunks"
        assert all(request[3] == "read True" for request in came.seen)
    assert check_same([first + second + third]).reader is PlainProtocol


def test_what_comes_although_reading_has_paused_is_kept() -> None:
    async def case() -> None:
        server = Server(plain=True)
        second = plain(b"/x?r")
        for piece in (plain(b"/x") + second[:7], second[7:9], second[9:]):
            server.protocol.data_received(piece)
        await settled()
        assert [request[1] for request in server.app.seen] == [b"/x", b"/x?r"]
        await server.lose()

    asyncio.run(case())


def test_a_body_counts_as_read_when_its_end_has_come() -> None:
    async def case() -> None:
        server = Server(plain=True)
        for _ in range(2):  # the second one, too: it is then that a client which stalls is waited for within a bound
            data = plain(b"/x", b"hello")
            await server.send([data[:-1]])
            assert not server.protocol._wire.body_read
            await server.send([data[-1:]])
            assert server.protocol._wire.body_read
        await server.lose()

    asyncio.run(case())


def test_a_request_after_a_body_that_nobody_read() -> None:
    unread, then = plain(b"/early", b"x" * 90_000), plain(b"/x", b"hello")
    came = check_same([unread[:500], unread[500:40_000], unread[40_000:] + then])
    assert [request[1] for request in came.seen] == [b"/early", b"/x"]
    assert came.reader is PlainProtocol


def test_a_body_in_many_pieces_keeps_its_bytes() -> None:
    body = bytes(range(256)) * 600
    data = plain(b"/x", body)
    for step in (999, 70_000):
        pieces = [data[:200], *(data[start : start + step] for start in range(200, len(data), step))]
        assert check_same(pieces, together=2).seen[0][2] == body


def test_a_head_goes_out_with_the_first_piece_of_its_body() -> None:
    came = check_same([plain(b"/length?r")])
    assert came.writes == [b"HTTP/1.1 200 As You Like\r\ncontent-length: 4\r\nx-a: b\r\n\r\nok", b"ok"]


def the_deadline(server: Server) -> float:
    """Of the head that is waited for."""
    at: float = server.protocol._head_timer.when()
    return at


def test_a_head_that_goes_on_at_h11_keeps_its_bound() -> None:
    async def case() -> None:
        server = Server(plain=True)
        server.protocol.pause_writing()
        deadline = the_deadline(server)
        await server.send([b"POST /x HT"])
        assert isinstance(server.protocol, ClientProtocol)
        assert the_deadline(server) == deadline
        assert server.protocol.flow.write_paused
        await server.lose()

    asyncio.run(case())


def test_a_client_that_leaves_ends_what_is_done_for_it() -> None:
    ended: list[str] = []

    async def case() -> None:
        server = Server(plain=True)
        await server.send([plain(b"/x", b"hello")[:-1]])
        (task,) = server.state.tasks
        server.protocol._wire.bind(task)
        task.add_done_callback(lambda done: ended.append("cancelled" if done.cancelled() else "ended"))
        await server.lose()
        assert server.protocol._wire.gone
        assert not server.protocol._wire.unbind(task)

    asyncio.run(case())
    assert len(ended) == 1


def test_without_httptools_h11_reads_all() -> None:
    program = "import sys; sys.modules['httptools'] = None; from prefixpilot.proxy import server; " + (
        "print(server._protocol(1, bytes).__mro__[1].__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "ClientProtocol"


@pytest.mark.parametrize("plain_first", [True, False])
def test_a_server_that_ends_closes_a_connection_after_its_answer(plain_first: bool) -> None:
    async def case() -> None:
        idle, busy = Server(plain=plain_first), Server(plain=plain_first)
        data = plain(b"/x", b"hello")
        await busy.send([data[:-1]])
        for server in (idle, busy):
            server.protocol.shutdown()
        assert (idle.transport.closed, busy.transport.closed) == (True, False)
        await busy.send([data[-1:]])
        assert busy.transport.closed
        assert b"".join(busy.transport.writes).endswith(b"okok")
        for server in (idle, busy):
            await server.lose()

    asyncio.run(case())
