"""A proxy that is watched from all sides: what its clients get, what it logs and counts, and what it leaves behind."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, product
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.logs import PACKAGE, JsonFormatter, configure_logs
from prefixpilot.proxy.settings import LogSettings

from . import dialects
from .support import fetch, metric

CANARY = "c4n4ry"
"""Stands in every key, prompt, block and answer of these tests, and must not stand in any line of the log."""
KEY = f"Bearer sk-{CANARY}"
BLOCKS = [f"Document {n} of {CANARY} says {n}." for n in (1, 2)]
APIS = ("chat", "completions", "responses", "messages")
KINDS = ("blocks", "conversation", "bare")
BOUND_S = 20.0

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Of a conversation it is the second turn, and carries no blocks; the first one does."""

    api: str
    kind: str
    stream: bool = False

    @property
    def path(self) -> str:
        return API_OF_NAME[self.api].paths[0].decode()

    def body(self, turn: int = 2) -> dict[str, Any]:
        words = [f"First {CANARY}?", "This is a simulated answer.", f"Second {CANARY}?"]
        with_blocks = self.kind == "blocks" or (self.kind == "conversation" and turn == 1)
        more = {"stream": True} if self.stream else {}
        turns = words if self.kind == "conversation" and turn == 2 else words[:1]
        return dialects.body(self.api, turns, BLOCKS if with_blocks else None, **more)

    @property
    def restored(self) -> int:
        """Earlier turns that the second one gets back. A prompt that is one string has none."""
        return int(self.kind == "conversation" and self.api != "completions")


ALL = [Ask(*each) for each in product(APIS, KINDS, (False, True))]
EACH = [Ask(api, kind, (a + k) % 2 == 1) for a, api in enumerate(APIS) for k, kind in enumerate(KINDS)]
"""Each API with each kind, streamed by turns: for faults that do not depend on whether a stream was asked for."""


class Got(NamedTuple):
    """What a client got. ``status`` is 0 if no head came; ``complete`` is false of a body without its proper end."""

    ask: Ask
    request_id: str
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    complete: bool

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def error(self) -> dict[str, Any]:
        """Of an answer that is an error in its API's own shape."""
        document: dict[str, Any] = json.loads(self.body)
        if self.ask.api == "messages":
            assert (set(document), document["type"]) == ({"type", "error"}, "error")
            assert set(document["error"]) == {"type", "message"}
        else:
            assert set(document) == {"error"}
            assert set(document["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = document["error"]
        return error


class Left(NamedTuple):
    """What must be as before once all requests are over."""

    in_flight: int
    tasks: int
    clients: int
    engine: int


class Mark(NamedTuple):
    """Log and metrics at some time."""

    log: int
    metrics: str


class Watched:
    """See the module. Conversations are named after the request, so that none is shared by two tests."""

    def __init__(self, proxy: RunningProxy, app: ProxyApp, ours: io.StringIO, others: io.StringIO) -> None:
        self.proxy = proxy
        self.url = proxy.url
        self._app = app
        self._ours = ours
        self._others = others
        self.settled = self.left()

    # -- asking

    def all(self, asks: Iterable[Ask], conversations: Sequence[str] = (), turn: int = 2) -> list[Got]:
        """Send all of them at once; the answers in the order of the requests."""
        asks = list(asks)
        names = conversations or [f"c{next(_numbers)}" for _ in asks]
        with ThreadPoolExecutor(len(asks)) as pool:
            return list(pool.map(lambda ask, name: self.one(ask, name, turn), asks, names))

    def one(self, ask: Ask, conversation: str, turn: int = 2) -> Got:
        data = json.dumps(ask.body(turn)).encode()
        return self.send(ask, data, {"Content-Type": "application/json"}, conversation)

    def send(self, ask: Ask, data: bytes, headers: dict[str, str], conversation: str) -> Got:
        request_id = f"r{next(_numbers)}"
        named = {**headers, "Authorization": KEY, "X-Request-Id": request_id, "Connection": "close"}
        if ask.kind == "conversation":
            named["X-PrefixPilot-Conversation"] = conversation
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=BOUND_S)) as connection:
            try:
                connection.request("POST", ask.path, data, named)
                response = connection.getresponse()
            except (http.client.HTTPException, ConnectionError):
                return Got(ask, request_id, 0, (), b"", False)
            return read_on(ask, request_id, response)

    def begin(self, asks: Iterable[Ask]) -> list[str]:
        """The first turns of what are conversations; a name for each request."""
        asks = list(asks)
        names = [f"c{next(_numbers)}" for _ in asks]
        pairs = [(ask, name) for ask, name in zip(asks, names, strict=True) if ask.kind == "conversation"]
        for got in self.all([ask for ask, _ in pairs], [name for _, name in pairs], turn=1):
            assert (got.status, got.complete) == (200, True)
        return names

    # -- looking

    def mark(self) -> Mark:
        assert until(lambda: self.left() == self.settled), (self.left(), self.settled)
        return Mark(len(self._ours.getvalue()), fetch(self.url, "GET", "/metrics").body.decode())

    def counted(self, before: Mark, name: str, **labels: str) -> float:
        """By how much a sample, or the sum of its labels, has grown."""
        now = fetch(self.url, "GET", "/metrics").body.decode()
        if labels:
            return metric(now, name, **labels) - metric(before.metrics, name, **labels)
        return total(now, name) - total(before.metrics, name)

    def left(self) -> Left:
        loop, upstream = self._app.loop, self._app._engines.all[0].upstream
        assert loop is not None and upstream._pooled is not None and upstream._fresh is not None
        return Left(
            len(self._app._front._in_flight),
            len(asyncio.all_tasks(loop)),
            len(self.proxy._server.server_state.connections),
            sum(len(connector._acquired) for connector in (upstream._pooled, upstream._fresh)),
        )

    def lines(self, before: Mark) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._ours.getvalue()[before.log :].splitlines()]

    def over(self, before: Mark, count: int) -> bool:
        """Wait until that many requests have their line."""
        return until(lambda: sum(line.get("api", "own") != "own" for line in self.lines(before)) >= count)

    def check_over(self, before: Mark, count: int, ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """All requests since ``before`` are over: nothing is left of them, each has one line and is counted once, and
        nothing of what they said is in the log. Returns the lines by request id."""
        assert until(lambda: self.left() == self.settled), (self.left(), self.settled)
        lines = [line for line in self.lines(before) if line["logger"] == "prefixpilot.access"]
        mine = [line for line in lines if line["api"] != "own"]
        assert len(mine) == count, mine
        by_id = {line["request_id"]: line for line in mine}
        assert len(by_id) == count, "one line for each"
        if ids is not None:
            assert set(by_id) == set(ids)
        assert self.counted(before, "prefixpilot_request_seconds_count") == count
        assert self.counted(before, "prefixpilot_fail_opens_total") == 0
        self.check_log()
        return by_id

    def check_log(self) -> None:
        """Nothing that a client or the engine said is in it, and no other library had anything to say."""
        leaks = [line for line in self._ours.getvalue().splitlines() if CANARY in line]
        assert not leaks, leaks
        assert not self._others.getvalue(), self._others.getvalue()


def read_on(ask: Ask, request_id: str, response: http.client.HTTPResponse) -> Got:
    """The rest of an answer, as far as it comes."""
    try:
        body, complete = response.read(), True
    except http.client.IncompleteRead as error:
        body, complete = error.partial, False
    return Got(ask, request_id, response.status, response.getheaders(), body, complete)


def total(text: str, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = [line for line in text.split("\n") if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def until(holds: Any, bound_s: float = BOUND_S) -> bool:
    deadline = time.monotonic() + bound_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def watched(settings: ProxySettings, make: type[ProxyApp] = ProxyApp) -> Iterator[Watched]:
    """The log is JSON, on its most talkative level; what other libraries log from a warning on is kept apart."""
    ours, others = io.StringIO(), io.StringIO()
    package, root = logging.getLogger(PACKAGE), logging.getLogger()
    before = package.handlers[:], package.level, package.propagate
    configure_logs(LogSettings("json", "debug"), logging.StreamHandler(ours))
    foreign = logging.StreamHandler(others)
    foreign.setLevel(logging.WARNING)
    foreign.setFormatter(JsonFormatter(details=True))
    foreign.addFilter(lambda record: record.name != "uvicorn.error")  # the simulated engine's server
    root.addHandler(foreign)
    app = make(settings)
    threads = threading.active_count()
    try:
        with serve_in_thread(settings, app=app) as proxy:
            assert fetch(proxy.url, "GET", "/healthz").status == 200
            assert until(lambda: not proxy._server.server_state.connections)
            yield Watched(proxy, app, ours, others)
        assert until(lambda: threading.active_count() < threads + 1)
        assert CANARY not in ours.getvalue()
    finally:
        root.removeHandler(foreign)
        package.handlers[:], package.level, package.propagate = before
