"""The admission window: alone with a clock of its own, and before an engine on real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.proxy.support import Answer, InjectedError, chat, fetch, metric, post_chat, user

from prefixpilot import ContextPilot, PlannedRequest, Request
from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.admission import AdmissionWindow
from prefixpilot.testing import SimulatedEngine


class Clock:
    """Timers that ring when told."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], object]] = []
        self.delays: list[float] = []

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Clock.Timer:
        self.delays.append(delay)
        self.timers.append(callback)
        return Clock.Timer(self, callback)

    class Timer:
        def __init__(self, clock: Clock, callback: Callable[[], object]) -> None:
            self._clock, self._callback = clock, callback

        def cancel(self) -> None:
            if self._callback in self._clock.timers:
                self._clock.timers.remove(self._callback)

    def ring(self) -> None:
        for callback in list(self.timers):
            callback()


class Bench:
    """A window whose plan reverses the order of arrival, and what has come of it."""

    def __init__(self, max_held: int = 10, window_s: float = 1.0) -> None:
        self.clock = Clock()
        self.batches: list[list[str]] = []
        self.gone: list[tuple[str, int | None]] = []
        self.broken = False
        self.window: AdmissionWindow[str, int] = AdmissionWindow(window_s, max_held, self.plan, self.clock.call_later)

    def plan(self, items: Sequence[str]) -> list[tuple[str, int | None]]:
        self.batches.append(list(items))
        if self.broken:
            raise InjectedError
        return [(item, len(items)) for item in reversed(items)]

    async def request(self, name: str) -> None:
        with self.window.under_way():
            self.gone.append((name, await self.window.admit(name)))
            await asyncio.sleep(3600)

    async def arrive(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.request(name)) for name in names]
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Any]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 10)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(bounded())


def test_one_alone_is_not_held_and_those_beside_it_go_in_the_planned_order() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.arrive("a", "b", "c", "d")
        assert bench.gone == [("a", None)]
        assert bench.window.held == 3
        bench.clock.ring()
        await settle()
        assert bench.gone[1:] == [("d", 3), ("c", 3), ("b", 3)]
        assert bench.window.held == 0

    run(scenario)


def test_the_window_does_not_move_with_later_arrivals() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.arrive("a", "b")
        await bench.arrive("c")
        assert bench.clock.delays == [1.0]
        bench.clock.ring()
        await bench.arrive("d")
        assert [name for name, _ in bench.gone] == ["a", "c", "b"]
        assert bench.clock.delays == [1.0, 1.0]

    run(scenario)


def test_a_full_window_closes_at_once() -> None:
    async def scenario() -> None:
        bench = Bench(max_held=2)
        await bench.arrive("a", "b", "c", "d")
        assert bench.batches == [["b", "c"]]
        assert bench.window.held == 1 and len(bench.clock.timers) == 1

    run(scenario)


def test_who_gives_up_leaves_the_batch() -> None:
    async def scenario() -> None:
        bench = Bench()
        tasks = await bench.arrive("a", "b", "c", "d")
        tasks[2].cancel()
        await settle()
        bench.clock.ring()
        await settle()
        assert bench.batches == [["b", "d"]]

    run(scenario)


def test_giving_up_at_the_last_moment_harms_nobody() -> None:
    async def scenario() -> None:
        bench = Bench()
        tasks = await bench.arrive("a", "b", "c", "d")
        tasks[3].cancel()
        bench.clock.ring()
        await settle()
        assert [name for name, _ in bench.gone] == ["a", "c", "b"]

    run(scenario)


def test_a_batch_of_one_is_planned_alone() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.arrive("a", "b")
        bench.clock.ring()
        await settle()
        assert (bench.batches, bench.gone) == ([], [("a", None), ("b", None)])

    run(scenario)


def test_a_plan_that_raises_holds_nobody() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.broken = True
        await bench.arrive("a", "b", "c")
        with pytest.raises(InjectedError):
            bench.clock.ring()
        await settle()
        assert sorted(bench.gone) == [("a", None), ("b", None), ("c", None)]

    run(scenario)


def test_off_holds_nobody() -> None:
    async def scenario() -> None:
        bench = Bench(window_s=0)
        await bench.arrive("a", "b", "c")
        assert [name for name, _ in bench.gone] == ["a", "b", "c"]

    run(scenario)


@pytest.mark.parametrize("ms", [-1.0, 1001.0, float("nan")])
def test_windows_that_cannot_be_used(ms: float) -> None:
    with pytest.raises(ConfigError, match="admission_window_ms"):
        ProxySettings("http://x", admission_window_ms=ms)


# -- on real sockets


class BrokenPilot(ContextPilot):
    def propose_batch(self, requests: Sequence[Request]) -> list[PlannedRequest]:
        raise InjectedError


class Traffic:
    """A proxy with a window, one slow request at its engine, and clients that come beside it."""

    def __init__(self, engine: SimulatedEngine, proxy: RunningProxy, pool: ThreadPoolExecutor) -> None:
        self.engine, self.proxy, self._pool = engine, proxy, pool

    def send(self, blocks: Sequence[str], **headers: str) -> Future[Answer]:
        return self._pool.submit(post_chat, self.proxy.url, chat([user("Q?")], list(blocks)), **headers)

    def metric(self, name: str, **labels: str) -> float:
        return metric(fetch(self.proxy.url, "GET", "/metrics").body.decode(), name, **labels)


@contextmanager
def traffic(ms: float, held: int, pilot: ContextPilot | None = None) -> Any:
    with SimulatedEngine() as engine, ThreadPoolExecutor(20) as pool:
        engine.delay_s = 1.0
        settings = ProxySettings(engine.base_url, port=0, drain_timeout=5, admission_window_ms=ms, max_held=held)
        with serve_in_thread(settings, pilot=pilot) as proxy:
            here = Traffic(engine, proxy, pool)
            slow = here.send(["slow"])
            assert engine.wait_for_requests(1)
            yield here
            assert slow.result(10).status == 200


def plan_of(answer: Answer) -> dict[str, Any]:
    return dict(json.loads(answer.header("X-PrefixPilot-Plan") or ""))


def test_requests_that_come_together_are_planned_together() -> None:
    """Nothing is cached when they come; each but the first of a group inherits from those before it."""
    with traffic(1000, held=6) as here:
        contexts = [[f"{topic}{n}", "b", topic, "a"] for n in range(3) for topic in ("x", "y")]
        answers = [future.result(10) for future in [here.send(blocks) for blocks in contexts]]
        assert [answer.status for answer in answers] == [200] * 6
        assert here.metric("prefixpilot_held_requests_total") == 6
        prefixes = sorted(plan_of(answer)["prefix_len"] for answer in answers)
        assert prefixes == [0, 2, 3, 3, 3, 3]
        for received in here.engine.chats[1:]:
            content = received.json()["messages"][-1]["content"]
            blocks = [p.split("\n")[1] for p in content.split("\n\n") if p.startswith("[Doc")]
            assert sorted(blocks) in [sorted(c) for c in contexts]
            assert set(blocks[:2]) == {"a", "b"}


def test_each_answer_goes_to_its_own_client() -> None:
    with traffic(1000, held=4) as here:
        here.engine.reply = lambda body: body["messages"][-1]["content"]
        futures = [here.send([f"only {n}", "shared"], X_Request_Id=f"id-{n}") for n in range(4)]
        for n, future in enumerate(futures):
            answer = future.result(10)
            assert f"only {n}\n" in answer.json()["choices"][0]["message"]["content"]
            assert plan_of(answer)["request_id"] == f"id-{n}"


def test_equal_request_ids_are_not_mixed_up() -> None:
    with traffic(1000, held=3) as here:
        here.engine.reply = lambda body: body["messages"][-1]["content"]
        futures = [here.send([f"only {n}", "shared"], X_Request_Id="same") for n in range(3)]
        for n, future in enumerate(futures):
            assert f"only {n}\n" in future.result(10).json()["choices"][0]["message"]["content"]


def test_one_after_the_other_is_never_held() -> None:
    with SimulatedEngine() as engine:
        settings = ProxySettings(engine.base_url, port=0, admission_window_ms=1000)
        with serve_in_thread(settings) as proxy:
            for n in range(3):
                assert post_chat(proxy.url, chat([user("Q?")], [f"b{n}", "c"])).status == 200
            text = fetch(proxy.url, "GET", "/metrics").body.decode()
    assert metric(text, "prefixpilot_held_requests_total") == 0


def test_what_is_not_to_be_ordered_is_not_held() -> None:
    """With room for one more only, the window would close for any of them."""
    with traffic(1000, held=2) as here:
        first = here.send(["a"])
        off = here.send(["b"], X_PrefixPilot_Mode="off").result(10)
        bare = post_chat(here.proxy.url, chat([user("Q?")]))
        assert (off.status, bare.status) == (200, 200)
        second = here.send(["c"])
        assert (first.result(10).status, second.result(10).status) == (200, 200)
        assert here.metric("prefixpilot_held_requests_total") in (0, 2)


def test_the_window_closes_by_itself() -> None:
    with traffic(50, held=64) as here:
        answers = [future.result(10) for future in [here.send([f"b{n}", "c"]) for n in range(3)]]
        assert [answer.status for answer in answers] == [200] * 3


def test_a_planner_that_fails_on_the_batch_plans_each_alone() -> None:
    with traffic(1000, held=3, pilot=BrokenPilot()) as here:
        answers = [future.result(10) for future in [here.send([f"b{n}", "c"]) for n in range(3)]]
        assert [answer.status for answer in answers] == [200] * 3
        assert all("fallback" not in plan_of(answer) for answer in answers)
        assert here.metric("prefixpilot_fail_opens_total", step="plan_together") == 1


def test_a_client_that_goes_away_while_held_is_not_sent_on() -> None:
    with traffic(500, held=64) as here:
        body = json.dumps(chat([user("Q?")], ["of the gone one"])).encode()
        gone = threading.Thread(target=hang_up_after, args=(here.proxy.url, body))
        gone.start()
        gone.join(10)
        stays = [here.send([f"b{n}", "c"]) for n in range(2)]
        assert [future.result(10).status for future in stays] == [200, 200]
        sent = b"".join(request.body for request in here.engine.requests)
        assert b"of the gone one" not in sent and b"b0" in sent and b"b1" in sent


def hang_up_after(url: str, body: bytes) -> None:
    """Send a whole chat request and close the connection at once."""
    import socket

    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(head + body)
