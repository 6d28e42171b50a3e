"""A proxy that follows the cache of a simulated engine with few pages, over real sockets."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool
from prefixpilot.workloads.synthetic import zipf

from ..support import Answer, chat, fetch, post_chat, user

PAGE = 16
SYSTEM = {"role": "system", "content": "Answer from the documents, and name the one that you used."}
WORDS = (
    "pool",
    "opens",
    "library",
    "closes",
    "tram",
    "stops",
    "museum",
    "market",
    "ticket",
    "river",
    "bridge",
    "tower",
)


def texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Distinct documents."""
    rng = random.Random(seed)
    return [f"Document {n}: " + " ".join(rng.choices(WORDS, k=words)) for n in range(count)]


def contexts(requests: int, k: int, blocks: int, words: int = 30, seed: int = 0) -> list[list[str]]:
    """The documents of each request, popular ones in many."""
    documents = texts(blocks, words, seed)
    return [[documents[b] for b in context] for context in zipf(requests, k, blocks, seed=seed).contexts]


@dataclass
class Followed:
    """An engine, its publisher, and a proxy that follows both."""

    engine: SimulatedEngine
    pool: PagePool
    publisher: EventPublisher | None
    proxy: RunningProxy
    asked: int = field(default=0)

    @property
    def url(self) -> str:
        return self.proxy.url

    def ask(self, blocks: Sequence[str], question: str | None = None, **headers: str) -> Answer:
        """One request; its answer is there, and its events have come, unless they were held back."""
        self.asked += 1
        question = f"Question {self.asked}: which of them?" if question is None else question
        answer = post_chat(self.url, chat([SYSTEM, user(question)], list(blocks)), **headers)
        assert answer.status == 200, answer.body
        if self.publisher is not None:
            assert self.publisher.wait_sent(self.publisher.published - 1)
            self._wait_for_events(self.publisher.published - 1)
        return answer

    def _wait_for_events(self, number: int) -> None:
        """The client thinks for a moment; how late events may be is another question than whether they are right."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            sources = self.stats().get("sources") or ()
            if all(source["sequence"] >= number or source["continuity"] != "whole" for source in sources):
                return
            time.sleep(0.002)

    def stats(self) -> dict[str, Any]:
        return dict(fetch(self.url, "GET", "/stats").json()["engine_cache"])

    def settled(self, requests: int | None = None) -> dict[str, Any]:
        """The figures, once as many requests are in them."""
        wanted = self.asked if requests is None else requests
        return until(
            self.stats,
            lambda stats: not stats["waiting"] and sum(route["requests"] for route in stats["routes"]) >= wanted,
        )

    def in_state(self, state: str) -> dict[str, Any]:
        """The figures, once the cache is known so."""
        return until(self.stats, lambda stats: stats["state"] == state)

    def plan(self, request_id: str) -> dict[str, Any]:
        return dict(fetch(self.url, "GET", f"/plans/{request_id}").json())


def until(
    look: Callable[[], dict[str, Any]], holds: Callable[[dict[str, Any]], bool], bound_s: float = 20.0
) -> dict[str, Any]:
    """What ``look`` sees once it ``holds``."""
    deadline = time.monotonic() + bound_s
    while not holds(seen := look()):
        assert time.monotonic() < deadline, json.dumps(seen, indent=1)
        time.sleep(0.01)
    return seen


@contextmanager
def followed(
    pages: int, *, events: str = "named", replay: bool = True, publisher: EventPublisher | None = None, **settings: Any
) -> Iterator[Followed]:
    """``settings`` with the names of :class:`CacheSettings` go there, others to the proxy."""
    pool = PagePool(pages, PAGE)
    if events != "off" and publisher is None:
        publisher = EventPublisher(replay=replay)
    with SimulatedEngine(pages=pool, events=publisher) as engine:
        names = CacheSettings.__dataclass_fields__
        cache = {name: settings.pop(name) for name in list(settings) if name in names}
        if events == "named" and publisher is not None:
            cache |= {"events": publisher.endpoint, "replay": publisher.replay_endpoint}
        else:
            cache["events"] = events
        made = ProxySettings(engine.base_url, port=0, drain_timeout=2, cache=CacheSettings(**cache), **settings)
        with serve_in_thread(made) as proxy:
            yield Followed(engine, pool, publisher, proxy)


def share(stats: dict[str, Any], basis: str, verdict: str = "exact") -> float:
    """Of the predictions of a kind, how many came out so."""
    verdicts = stats["predictions"][basis]["verdicts"]
    return float(verdicts.get(verdict, 0) / sum(verdicts.values()))
