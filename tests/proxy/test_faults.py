"""Faults of the engine, one a test, in all APIs: with blocks, in a conversation and without either, streamed or not.

After each: what the client got is the engine's answer, or an error of ours in its API's shape; the same request works
again; the log has one line for it and nothing of what was said; it is counted; nothing is left of it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.testing import (
    BreakOff,
    CloseConnection,
    ErrorEvent,
    Fault,
    Garbage,
    HalfClose,
    Respond,
    SimulatedEngine,
    Stall,
)
from prefixpilot.testing.simulated_engine import WIRES
from prefixpilot.testing.wires import error_event

from .watched import ALL, BOUND_S, CANARY, EACH, Ask, Got, Watched, until, watched

SAYS = CANARY.encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
IDLE_S = 1.5
"""Of silence, on a quiet machine."""


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


@pytest.fixture(scope="module")
def idle_s(engine: SimulatedEngine) -> float:
    """Seconds of silence that are no engine at work: many times what all requests together take here and now."""
    with watched(ProxySettings(engine.base_url, port=0, drain_timeout=2)) as running:
        began = time.monotonic()
        running.begin(ALL)
        running.all(ALL)
        return min(BOUND_S / 2, max(IDLE_S, 3 * (time.monotonic() - began)))


@pytest.fixture(scope="module")
def proxy(engine: SimulatedEngine, idle_s: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    store = StoreSettings(state_dir=str(tmp_path_factory.mktemp("state")), disk_timeout=BOUND_S)
    settings = ProxySettings(engine.base_url, port=0, drain_timeout=2, idle_timeout=idle_s, store=store)
    with watched(settings) as running:
        yield running


@dataclass(frozen=True)
class Case:
    """A fault, what the client gets of it, and what the log says (``code`` of the access line)."""

    name: str
    fault: Fault
    check: Callable[[Got], None]
    code: str | None = None
    outcome: str | None = None

    @property
    def asks(self) -> list[Ask]:
        """Requests that meet it."""
        return ALL if isinstance(self.fault, BreakOff | ErrorEvent | Stall) else EACH


def ours(status: int, code: str) -> Callable[[Got], None]:
    def check(got: Got) -> None:
        assert (got.status, got.complete) == (status, True)
        assert got.error["message"]
        assert got.error.get("code", code) == code

    return check


def theirs(fault: Respond) -> Callable[[Got], None]:
    """The engine's answer, byte for byte."""

    def check(got: Got) -> None:
        assert (got.status, got.body, got.complete) == (fault.status, fault.body, True)
        assert got.header("content-type") == fault.content_type
        for name, value in fault.headers:
            assert got.header(name) == value

    return check


def cut_stream(pieces: int, told: Callable[[Got], None]) -> Callable[[Got], None]:
    """A stream that has begun and gets no end; of one document nothing goes out before its last piece has come."""

    def check(got: Got) -> None:
        if not got.ask.stream:
            told(got)
            return
        assert (got.status, got.complete) == (200, False)
        words = ["This", " is"]
        assert [f'"{word}"'.encode() in got.body for word in words] == [n < pieces for n in range(len(words))]

    return check


def error_of(fault: ErrorEvent) -> Callable[[Got], None]:
    def check(got: Got) -> None:
        error = WIRES[got.ask.path].error(fault.error)
        assert got.complete
        if got.ask.stream:
            assert got.status == 200
            assert got.body.endswith(error_event(error))
            assert (b'"This"' in got.body) == bool(fault.after_chunks)
        else:
            assert (got.status, got.body) == (500, json.dumps(error).encode())

    return check


def responds(name: str, fault: Respond) -> Case:
    return Case(name, fault, theirs(fault), None, "engine_error" if fault.status >= 400 else None)


def lost(name: str, fault: Fault) -> Case:
    return Case(name, fault, ours(502, "engine_unreachable"), "engine_unreachable", "engine_error")


HTML = b"<html><body>Busy with " + SAYS + b"</body></html>"
BROKEN = ours(502, "engine_broke_off")
CASES = [
    responds("429 as HTML", Respond(429, HTML, "text/html", (("retry-after", "7"),))),
    responds("500 as HTML", Respond(500, HTML, "text/html; charset=utf-8")),
    responds("503 without a body", Respond(503, b"", "text/plain")),
    responds("401", Respond(401, b'{"error": "no"}', headers=(("www-authenticate", "Bearer"),))),
    responds("307", Respond(307, b"", headers=(("location", f"http://127.0.0.1:9/{CANARY}"),))),
    responds("200 as HTML", Respond(200, HTML, "text/html")),
    responds("no UTF-8", Respond(200, b'{"choices": "\xff\xfe' + SAYS)),
    responds("no JSON", Respond(200, b"{" + SAYS)),
    responds("JSON of another kind", Respond(200, b'[null, {"choices": 1}]')),
    responds("deep JSON", Respond(200, b"[" * 200_000)),
    responds("no gzip", Respond(200, b"\x1f\x8b" + SAYS, headers=(("content-encoding", "gzip"),))),
    responds("gzip that is cut", Respond(200, gzip.compress(b"{}" * 99)[:20], headers=(("content-encoding", "gzip"),))),
    responds("events of nothing", Respond(200, b"data: \xff{" + SAYS + b"\n\nevent: x\n\n", "text/event-stream")),
    lost("closes", CloseConnection()),
    lost("half closes", HalfClose()),
    lost("no HTTP", Garbage(b"\x00\xff" + SAYS + b"\r\n\r\n")),
    lost("another protocol", Garbage(b"220 mail." + SAYS + b" ESMTP\r\n")),
    lost("half a head", Garbage(HEAD + b"X-Says: " + SAYS)),
    lost("half a head, half closed", HalfClose(HEAD)),
    lost("a head without bound", Garbage(HEAD + b"X-Long: " + SAYS * 20_000 + b"\r\n\r\n")),
    lost("heads without bound", Garbage(HEAD + b"X-Says: a\r\n" * 100_000)),
    lost("a header of controls", Garbage(HEAD + b"Content-Length: 2\r\nX-Says: a\x00" + SAYS + b"\r\n\r\nok")),
    lost("two lengths", Garbage(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nokk")),
    lost("a length of letters", Garbage(HEAD + b"Content-Length: " + SAYS + b"\r\n\r\nok")),
    lost("switches protocols", Garbage(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: " + SAYS + b"\r\n\r\n")),
    Case(
        "half a body",
        Garbage(HEAD + b"Content-Length: 90\r\n\r\n{" + SAYS),
        BROKEN,
        "engine_broke_off",
    ),
    Case(
        "half a body, half closed",
        HalfClose(HEAD + b"Content-Length: 90\r\n\r\n{" + SAYS),
        BROKEN,
        "engine_broke_off",
    ),
    Case(
        "chunks that are none",
        Garbage(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2]\r\n", later=SAYS + b"\r\n"),
        BROKEN,
        "engine_broke_off",
    ),
    Case("breaks off at once", BreakOff(0), cut_stream(0, BROKEN), "engine_broke_off"),
    Case("breaks off later", BreakOff(1), cut_stream(1, BROKEN), "engine_broke_off"),
    Case("an error event", ErrorEvent(0), error_of(ErrorEvent(0))),
    Case("an error event later", ErrorEvent(1), error_of(ErrorEvent(1))),
    Case("stalls at once", Stall(0), cut_stream(0, ours(504, "engine_timeout")), "engine_timeout"),
    Case("stalls later", Stall(1), cut_stream(1, ours(504, "engine_timeout")), "engine_timeout"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_client_is_told_and_the_service_goes_on(engine: SimulatedEngine, proxy: Watched, case: Case) -> None:
    asks = case.asks
    names = proxy.begin(asks)
    before = proxy.mark()
    engine.fault = case.fault
    try:
        answers = proxy.all(asks, names)
    finally:
        engine.fault = None
    for got in answers:
        case.check(got)
    lines = proxy.check_over(before, len(asks), [got.request_id for got in answers])
    for got in answers:
        line = lines[got.request_id]
        assert (line["status"], line["api"], line["code"]) == (got.status, got.ask.api, case.code)
        if case.outcome is not None:
            assert line["outcome"] == case.outcome
    refused = sum(got.status != 200 for got in answers) if case.code else 0
    assert proxy.counted(before, "prefixpilot_refused_total") == refused
    assert proxy.counted(before, "prefixpilot_requests_total") == len(asks)
    check_again(proxy, asks, names)


def check_again(proxy: Watched, asks: list[Ask], names: list[str]) -> None:
    """The same requests, answered; and earlier turns are restored as they were before the fault."""
    for got in proxy.all(asks, names):
        assert (got.status, got.complete) == (200, True)
        assert b"simul" in got.body
        plan: Any = json.loads(got.header("x-prefixpilot-plan") or "{}")
        assert plan.get("restored", 0) == got.ask.restored


def test_an_engine_that_says_nothing_is_given_up(engine: SimulatedEngine, proxy: Watched) -> None:
    names = proxy.begin(ALL)
    before, gone = proxy.mark(), len(engine.disconnected)
    engine.delay_s = 60.0
    try:
        answers = proxy.all(ALL, names)
    finally:
        engine.delay_s = 0.0
    for got in answers:
        ours(504, "engine_timeout")(got)
    proxy.check_over(before, len(ALL), [got.request_id for got in answers])
    assert proxy.counted(before, "prefixpilot_refused_total", status="504") == len(ALL)
    assert engine.wait_for_disconnect(gone + len(ALL)), "it need not go on"
    check_again(proxy, ALL, names)


def test_an_engine_that_is_slow_is_waited_for(engine: SimulatedEngine, proxy: Watched, idle_s: float) -> None:
    names = proxy.begin(ALL)
    before = proxy.mark()
    engine.delay_s, engine.chunk_delay_s = idle_s / 5, idle_s / 10
    try:
        check_again(proxy, ALL, names)
    finally:
        engine.delay_s = engine.chunk_delay_s = 0.0
    proxy.check_over(before, len(ALL))


class BrokenApp(ProxyApp):
    """Fails where nothing is expected to."""

    async def _plan_and_relay(self, *args: Any) -> None:
        raise KeyError(CANARY)


def test_an_error_of_ours_that_nobody_expects_is_a_500_in_the_apis_shape(engine: SimulatedEngine) -> None:
    with watched(ProxySettings(engine.base_url, port=0, drain_timeout=1), BrokenApp) as proxy:
        before = proxy.mark()
        for got in proxy.all(EACH):
            ours(500, "proxy_error")(got)
            assert "KeyError" in got.error["message"]
        assert proxy.over(before, len(EACH))

        def failures() -> list[bool]:
            return [line["error"].startswith("KeyError < ") for line in proxy.lines(before) if line["level"] == "error"]

        assert until(lambda: failures() == [True] * len(EACH)), failures()
        assert proxy.counted(before, "prefixpilot_fail_opens_total", step="serve") == len(EACH)
        proxy.check_log()
