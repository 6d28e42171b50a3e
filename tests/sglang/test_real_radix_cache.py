"""SGLang's own RadixCache, event recorder and ZeroMQ publisher, followed over sockets, against what the cache matches.

Run by ``make test-sglang``; skipped without an interpreter that has torch, and SGLang beside it. Its server is not run.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import pytest
from tests.engines.listening import Mirror, Remembers
from tests.sglang.process import PATH_VARIABLE, PYTHON_VARIABLE, RadixCacheProcess
from tests.vllm.server import free_port

from prefixpilot import ContextPilot
from prefixpilot.cache_events import CacheCleared, EventBatch
from prefixpilot.core import Plan, Request, RequestId
from prefixpilot.engines.base import Continuity
from prefixpilot.engines.endpoints import EventEndpoint
from prefixpilot.engines.kv_events import KvEventSubscriber
from prefixpilot.proxy.cache.rank import RankView
from prefixpilot.residency.contexts import Shortened
from prefixpilot.workloads.synthetic import zipf

PYTHON, PATH = os.environ.get(PYTHON_VARIABLE), os.environ.get(PATH_VARIABLE)
PAGE = 16
HEAD = (1, 40)
"""Token ids that every prompt begins with: the first, and how many."""
Prompt = list[tuple[int, int]]

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(
        PYTHON is None or PATH is None, reason=f"{PYTHON_VARIABLE} and {PATH_VARIABLE}: run `make test-sglang`"
    ),
]


class Following(Remembers):
    """Keeps the view of a rank, and what it said of contexts since it was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self.view = RankView(10_000)
        self._shortened: list[Shortened] = []

    def on_batch(self, batch: EventBatch) -> None:
        self._shortened += self.view.apply(batch)
        super().on_batch(batch)

    def shortened(self) -> list[Shortened]:
        said, self._shortened = self._shortened, []
        return said


@pytest.fixture(scope="module")
def process() -> Iterator[RadixCacheProcess]:
    assert PYTHON is not None and PATH is not None
    with RadixCacheProcess(PYTHON, PATH) as process:
        yield process


class Published:
    """A cache of the real kind that publishes, and where."""

    def __init__(self, process: RadixCacheProcess, capacity: int | None) -> None:
        self.process = process
        publish, replay = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
        events = {"publisher": "zmq", "endpoint": publish, "replay_endpoint": replay, "bind": True, "topic": "kv"}
        process.do("open", page=PAGE, capacity=capacity, events=events)
        self.endpoint = EventEndpoint(publish, replay, "kv", connect=True)
        self.batches = 0

    def take(self, prompt: Prompt, salt: str | None = None) -> int:
        """What it had of a prompt that it holds from now on."""
        (cached,) = self.process.do("take", prompts=[prompt], salt=salt)
        self.batches += self.process.do("publish") > 0
        return int(cached)

    def held(self, prompts: Sequence[Prompt], salt: str | None = None) -> list[int]:
        return list(self.process.do("held", prompts=prompts, salt=salt))


@pytest.fixture
def small(process: RadixCacheProcess) -> Iterator[Published]:
    yield Published(process, 200 * PAGE)
    process.do("close")


def ids(prompt: Prompt) -> list[int]:
    return list(chain.from_iterable(range(first, first + count) for first, count in prompt))


def prompt_of(plan: Plan, request: Request, number: int) -> tuple[Prompt, list[int]]:
    """A prompt of the planned blocks between head and question; and where each block ends in it."""
    blocks = [request.blocks[b.position] for b in plan.blocks if b.location_annotation is None]
    runs = [(1_000_000 + 2_000 * int(str(block.id)), block.tokens or 1) for block in blocks]
    ends = list(accumulate((count for _, count in runs), initial=HEAD[1]))[1:]
    return [HEAD, *runs, (900_000_000 + 100 * number, 23)], ends


def test_residency_is_what_the_cache_matches_page_by_page(process: RadixCacheProcess) -> None:
    """300 planned requests in a cache of some six of them: each hit is predicted, and every few requests all prompts so
    far are held as far as the picture says. The plans follow what is evicted."""
    workload = zipf(300, k=6, blocks=60, seed=3).workload()
    engine, following, pilot = Published(process, 6 * 6 * 700), Following(), ContextPilot()
    sent: list[tuple[RequestId, Prompt, list[int]]] = []
    hits = lost = 0
    try:
        with KvEventSubscriber([engine.endpoint], following):
            for number, entry in enumerate(workload.requests):
                plan = pilot.optimize(entry.request)
                prompt, ends = prompt_of(plan, entry.request, number)
                predicted = following.view.table.match(ids(prompt)).tokens
                assert engine.take(prompt) == predicted, number
                hits += predicted
                assert following.wait_batches(engine.batches)
                lost += forget(pilot, following.shortened())
                pages, contexts = following.view.table.match(ids(prompt)).pages, following.view.contexts
                assert contexts is not None
                assert contexts.attach(plan.request_id, pages, ends) == len(ends)
                sent.append((plan.request_id, prompt, ends))
                if number % 25 == 24:
                    compare(engine, following, sent)
    finally:
        process.do("close")
    following.view.table.check_invariants()
    assert lost > 100
    assert hits > 100 * PAGE


def forget(pilot: ContextPilot, shortened: Sequence[Shortened]) -> int:
    """Tell the index; how many contexts it was told of."""
    for request_id, blocks in shortened:
        if blocks:
            pilot.shorten(request_id, blocks)
        else:
            pilot.evict([request_id])
    return len(shortened)


def compare(engine: Published, following: Following, sent: Sequence[tuple[RequestId, Prompt, list[int]]]) -> None:
    table, contexts = following.view.table, following.view.contexts
    held = engine.held([prompt for _, prompt, _ in sent])
    assert [table.match(ids(prompt)).tokens for _, prompt, _ in sent] == held
    assert len(table) == engine.process.do("pages")
    assert contexts is not None
    for (request_id, _, ends), tokens in zip(sent, held, strict=True):
        # What was evicted and came back with another prompt belongs to that one.
        assert contexts.usable(request_id) <= bisect_right(ends, tokens)
    contexts.check_invariants()


def test_a_salt_is_a_cache_of_its_own(small: Published) -> None:
    prompt = [(1000, 100)]
    mirror = Mirror()
    with KvEventSubscriber([small.endpoint], mirror):
        assert [small.take(prompt), small.take(prompt, "a"), small.take(prompt, "b")] == [0, 0, 0]
        assert mirror.wait_batches(small.batches)
    found = [mirror.table.match(ids(prompt), extra_keys=keys).tokens for keys in ((), (("a",),), (("b",),), (("c",),))]
    assert found == [96, 96, 96, 0]
    assert [small.held([prompt], salt) for salt in (None, "a", "b", "c")] == [[each] for each in found]


def test_a_flush_is_told(small: Published) -> None:
    mirror = Mirror()
    with KvEventSubscriber([small.endpoint], mirror):
        small.take([(1000, 100)])
        small.process.do("reset")
        small.take([(2000, 100)])
        assert mirror.wait_batches(small.batches)
    assert [isinstance(event, CacheCleared) for event in mirror.batches[-1].events[:2]] == [True, False]
    assert [mirror.table.match(ids([(first, 100)])).tokens for first in (1000, 2000)] == [0, 96]


def test_a_late_subscriber_is_told_all_that_was(small: Published) -> None:
    prompts = [[HEAD, (1000 * number, 600)] for number in range(1, 9)]
    for prompt in prompts:
        small.take(prompt)
    mirror = Mirror()
    with KvEventSubscriber([small.endpoint], mirror):
        assert mirror.wait_batches(small.batches) and mirror.wait_continuity(Continuity.WHOLE)
    assert mirror.sequences == list(range(small.batches))
    held = small.held(prompts)
    assert [mirror.table.match(ids(prompt)).tokens for prompt in prompts] == held
    assert {32, 640} <= set(held)
