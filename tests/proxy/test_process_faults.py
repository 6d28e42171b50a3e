"""``prefixpilot serve`` as a process, under load: told to end, killed, on a full disk. In all four APIs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy.memory.database import FILE
from prefixpilot.testing import Garbage, SimulatedEngine

from .support import fetch, metric
from .watched import APIS, BOUND_S, CANARY, KEY, KINDS, Ask, until

DRAIN_S = 1


@contextmanager
def serving(engine: SimulatedEngine, state: Path) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """Its URL, its process, and the file that its log goes to."""
    log = state.with_suffix(".log")
    options = ["--port", "0", "--engine", engine.base_url, "--state-dir", str(state), "--drain-timeout", str(DRAIN_S)]
    options += ["--store-disk-timeout", str(BOUND_S)]  # a busy disk is another test's
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--log-format", "json", *options]
    with (
        log.open("a") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            url = next(word for line in lines for word in line.split() if word.startswith("http://"))
            yield url.removesuffix("/v1"), process, log
        finally:
            watchdog.cancel()
            process.kill()


def lines_of(log: Path) -> list[dict[str, Any]]:
    """All of the log is JSON, and says nothing that a client said."""
    text = log.read_text()
    assert CANARY not in text
    return [json.loads(line) for line in text.splitlines()]


def begin(url: str, ask: Ask, conversation: str, turn: int, request_id: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=BOUND_S)
    headers = {"Content-Type": "application/json", "Authorization": KEY, "X-Request-Id": request_id}
    if ask.kind == "conversation":
        headers["X-PrefixPilot-Conversation"] = conversation
    connection.request("POST", ask.path, json.dumps(ask.body(turn)), headers)
    return connection


def whole(connection: http.client.HTTPConnection) -> tuple[int, bool, Any]:
    """Status, whether the answer came to its end, and the plan; a status of 0 if there was no answer."""
    try:
        response = connection.getresponse()
        plan = json.loads(response.headers.get("X-PrefixPilot-Plan") or "{}")
    except (http.client.HTTPException, ConnectionError):
        connection.close()
        return 0, False, {}
    try:
        response.read()
        return response.status, True, plan
    except (http.client.HTTPException, ConnectionError):
        return response.status, False, plan
    finally:
        connection.close()


@pytest.mark.parametrize("slow", [False, True])
def test_sigterm_under_load_drains_within_its_bound(engine: SimulatedEngine, tmp_path: Path, slow: bool) -> None:
    """What ends in time is whole. What does not is broken off, or told so; its engine is told, too."""
    asks = [Ask(api, kind, stream) for api in APIS for kind in KINDS for stream in (False, True)]
    engine.reply = lambda body: "word " * (2000 if slow else 10)
    endless = [ask for ask in asks if slow and ask.stream and ask.api != "messages"]  # which has its max_tokens
    engine.delay_s = 0.2
    engine.chunk_delay_s = 0.05 if slow else 0.01
    with serving(engine, tmp_path / "state") as (url, process, log):
        open_ = [begin(url, ask, f"c{n}", 1, f"r{n}") for n, ask in enumerate(asks)]
        assert engine.wait_for_requests(len(asks), BOUND_S)
        if slow:
            assert until(lambda: fetch(url, "GET", "/stats").json()["sizes"]["in_flight"] == len(endless))
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        answers = [whole(connection) for connection in open_]
        assert process.wait(BOUND_S) == 0
        assert time.monotonic() - began < DRAIN_S + 10, "a bound that is meant for a machine under load"
    for ask, (status, complete, _) in zip(asks, answers, strict=True):
        assert (status, complete) == (200, ask not in endless)
    if endless:
        assert engine.wait_for_disconnect(len(endless), BOUND_S)
    lines = [line for line in lines_of(log) if line.get("api") in APIS]
    assert sorted(line["request_id"] for line in lines) == sorted(f"r{n}" for n in range(len(asks)))
    assert {line["code"] for line in lines} == ({None, "ending"} if slow else {None})
    with pytest.raises(ConnectionError):
        fetch(url, "GET", "/healthz")


def test_kill_9_amid_streams_loses_no_turn_that_a_client_saw_begin(engine: SimulatedEngine, tmp_path: Path) -> None:
    asks = [Ask(api, "conversation", True) for api in APIS] * 3
    engine.reply = lambda body: "word " * 2000
    engine.chunk_delay_s = 0.05
    with serving(engine, tmp_path / "state") as (url, process, _):
        open_ = [begin(url, ask, f"c{n}", 1, f"r{n}") for n, ask in enumerate(asks)]
        for connection in open_:
            response = connection.getresponse()
            seen = b""
            while b"word" not in seen:
                piece = response.read1()
                assert piece, "the stream ends before the reply begins"
                seen += piece
        process.kill()
        assert process.wait(BOUND_S) == -signal.SIGKILL
        for connection in open_:
            connection.close()
    assert engine.wait_for_disconnect(len(asks), BOUND_S)
    engine.chunk_delay_s, engine.reply = 0.0, lambda body: "word"
    with serving(engine, tmp_path / "state") as (url, _, log):
        for n, ask in enumerate(asks):
            status, complete, plan = whole(begin(url, ask, f"c{n}", 2, f"s{n}"))
            assert (status, complete, plan.get("restored", 0)) == (200, True, ask.restored)
    lines_of(log)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_disk_that_is_full_and_then_is_not(engine: SimulatedEngine, tmp_path: Path) -> None:
    """Files of the process cannot grow, as on a full disk: requests go on, it is told once and counted, and turns get
    there when there is room again."""
    asks = [Ask(api, "conversation", stream) for api in APIS for stream in (False, True)]
    state = tmp_path / "state"
    with serving(engine, state) as (url, process, log):
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        full = max(file.stat().st_size for file in state.iterdir())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (min(full, 8192), limits[1]))
        for n, ask in enumerate(asks):
            assert whole(begin(url, ask, f"c{n}", 1, f"r{n}"))[:2] == (200, True)
        assert metric(fetch(url, "GET", "/metrics").body.decode(), "prefixpilot_unsaved_turns_total") > 0
        ready = fetch(url, "GET", "/readyz")
        assert (ready.status, len(ready.json()["degraded"])) == (200, 1)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
        for n, ask in enumerate(asks):
            status, complete, plan = whole(begin(url, ask, f"c{n}", 2, f"s{n}"))
            assert (status, complete, plan.get("restored", 0)) == (200, True, ask.restored)
        assert until(lambda: fetch(url, "GET", "/readyz").json()["degraded"] == [])
        os.kill(process.pid, signal.SIGKILL)
    with serving(engine, state) as (url, _, log):
        for n, ask in enumerate(asks):
            assert whole(begin(url, ask, f"c{n}", 2, f"t{n}"))[2].get("restored", 0) == ask.restored
    lines_of(log)


@pytest.mark.parametrize("apart", [False, True])
def test_an_answer_that_waits_for_the_disk_when_time_is_up_is_told_so(
    engine: SimulatedEngine, tmp_path: Path, apart: bool
) -> None:
    """It has come whole, in one piece or its head ahead, and none of it has gone out: the client gets an answer, and
    no closed connection."""
    if apart:
        body = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        engine.fault = Garbage(head, later=body)
    with serving(engine, tmp_path / "state") as (url, process, log):
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / FILE, isolation_level=None)) as busy:
            busy.execute("BEGIN IMMEDIATE")
            open_ = begin(url, Ask("chat", "conversation", False), "c1", 1, "r1")
            assert engine.wait_for_requests(1, BOUND_S)
            process.send_signal(signal.SIGTERM)
            assert whole(open_)[:2] == (503, True)
            busy.execute("ROLLBACK")
        assert process.wait(BOUND_S) == 0
    (line,) = [line for line in lines_of(log) if line.get("api") == "chat"]
    assert (line["status"], line["code"]) == (503, "ending")
