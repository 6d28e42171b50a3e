"""The engine is asked how large its cache is, and asked again: pages, capacity, restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from prefixpilot.engines.doctor.facts import Answer
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.cache.sizes import PATHS, CacheSize, SizeAsker, read_size
from prefixpilot.proxy.wire.upstream import Upstream
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.page_pool import PagePool

from ..support import fetch
from .support import PAGE, contexts, followed, share, until

WORKLOAD = contexts(120, 6, 60)
POOL = 120
INFO = 'vllm:cache_config_info{block_size="32",engine="%d",num_gpu_blocks="341"} 1.0'


def answer(text: str, status: int = 200) -> Answer:
    return Answer(status, {}, text.encode())


@pytest.mark.parametrize(
    ("metrics", "size"),
    [
        (INFO % 0, CacheSize(32, 340 * 32, 1, (INFO % 0,))),
        (f"{INFO % 0}\n{INFO % 1}\n", CacheSize(32, 340 * 32, 2, (INFO % 0, INFO % 1))),
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0', None),
        ('vllm:cache_config_info{block_size="x"} 1.0', None),
        ("", None),
    ],
)
def test_vllm(metrics: str, size: CacheSize | None) -> None:
    found = read_size({"/metrics": answer(metrics)})
    assert (found is None or found._replace(life=()).capacity_tokens is None) if size is None else found == size


def test_sglang() -> None:
    said = {"page_size": 16, "max_total_num_tokens": 5000, "disable_radix_cache": False, "dp_size": 2, "random_seed": 7}
    found = read_size({"/metrics": answer("", 404), "/get_server_info": answer(json.dumps(said))})
    assert found == CacheSize(16, 5000, 2, ("7",))
    assert read_size({"/metrics": answer("", 404), "/get_server_info": answer("[]")}) is None


def test_without_settings_the_own_model_has_the_pages_and_the_capacity_of_the_engine() -> None:
    with followed(POOL, events="off", token_ids="engine") as setup:
        until(setup.stats, lambda stats: stats["page_size"] == PAGE and stats["capacity_tokens"] == POOL * PAGE)
        for blocks in WORKLOAD:
            setup.ask(blocks)
        stats = setup.settled()
        assert stats["state"] == "UNKNOWN"
        assert share(stats, "model") >= 0.95
        assert stats["predictions"]["model"]["reported_tokens"] > 0


def test_settings_go_before_what_the_engine_tells() -> None:
    with followed(POOL, events="off", token_ids="engine", page_size=8, cache_tokens=4000) as setup:
        setup.ask(WORKLOAD[0])
        until(
            lambda: {"asked": [request.path for request in setup.engine.requests]},
            lambda seen: "/metrics" in seen["asked"],
        )
        stats = setup.settled()
        assert (stats["page_size"], stats["capacity_tokens"]) == (8, 4000)


def test_a_restart_without_events_is_noticed() -> None:
    """The index and the model forget what the engine no longer holds."""
    with followed(POOL, events="off", token_ids="engine") as setup:
        until(setup.stats, lambda stats: stats["capacity_tokens"] is not None)
        for blocks in WORKLOAD[:10]:
            setup.ask(blocks)
        setup.settled()
        assert fetch(setup.url, "GET", "/stats").json()["sizes"]["live_requests"] > 0
        assert setup.engine.pages is not None and setup.engine.pages.begin_anew()
        tracker = setup.proxy.app._engines.all[0].cache
        assert tracker is not None and tracker._sizes is not None and setup.proxy.app.loop is not None
        setup.proxy.app.loop.call_soon_threadsafe(tracker._sizes.ask_now)
        until(
            lambda: dict(fetch(setup.url, "GET", "/stats").json()["sizes"]), lambda sizes: sizes["live_requests"] == 0
        )
        setup.ask(WORKLOAD[0])
        assert share(setup.settled(), "model") == 1.0


class Teller:
    """Notes what is told, and says when there is so much."""

    def __init__(self, enough: int) -> None:
        self.told: list[tuple[int, int | None, bool]] = []
        self._enough = enough
        self.done = asyncio.Event()

    def __call__(self, size: CacheSize, anew: bool) -> None:
        self.told.append((size.page_size, size.capacity_tokens, anew))
        if len(self.told) >= self._enough:
            self.done.set()


@asynccontextmanager
async def asking(engine: SimulatedEngine, teller: Teller) -> AsyncIterator[SizeAsker]:
    upstream = Upstream(ProxySettings(engine.base_url, port=0))
    await upstream.start()
    asker = SizeAsker(upstream, every_s=0.01)
    asker.start(teller)
    yield asker
    asker.close()
    await upstream.close()


def test_it_asks_again_and_tells_only_what_is_new() -> None:
    async def run(engine: SimulatedEngine) -> Teller:
        teller = Teller(3)
        async with asking(engine, teller):
            for wanted in (3, 6):
                assert await asyncio.to_thread(engine.wait_for_requests, wanted, 10)
                assert engine.pages is not None
                engine.pages.begin_anew()
            await teller.done.wait()
        return teller

    with SimulatedEngine(pages=PagePool(10, 16)) as engine:
        teller = asyncio.run(asyncio.wait_for(run(engine), 20))
    assert teller.told == [(16, 160, False), (16, 160, True), (16, 160, True)]


def test_an_engine_that_does_not_tell_is_let_be() -> None:
    async def run(engine: SimulatedEngine) -> Teller:
        teller = Teller(1)
        async with asking(engine, teller):
            assert await asyncio.to_thread(engine.wait_for_requests, 3, 10)
            assert not await asyncio.to_thread(engine.wait_for_requests, 4, 0.2)
        return teller

    with SimulatedEngine() as engine:
        teller = asyncio.run(asyncio.wait_for(run(engine), 20))
        assert [request.path for request in engine.requests] == list(PATHS)
    assert teller.told == []
