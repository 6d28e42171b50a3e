"""An engine whose batches come late, in pieces and behind answers: what it reports is what the picture says it held."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot.cache_events import CacheEvent
from prefixpilot.proxy.cache.holding import Held
from prefixpilot.proxy.cache.view import CacheView
from prefixpilot.proxy.cache.watch import Watch
from prefixpilot.testing.page_pool import PagePool

from .test_looks import Line

SIZE = 4


class LateEngine:
    """A pool of pages, one request after the other; its batches wait to be told.

    Args:
        part: tokens that are computed in one step.
    """

    def __init__(self, pages: int, part: int) -> None:
        self.pool = PagePool(pages, SIZE)
        self.part = part
        self.untold: list[tuple[CacheEvent, ...]] = []

    def ask(self, tokens: list[int], answer: list[int]) -> int:
        """Cached tokens. What is computed in parts is told of in as many batches."""
        hit = self.pool.match(tokens)
        first = max(hit + self.part, SIZE)
        allocation = self.pool.begin(tokens[:first])
        assert allocation is not None and allocation.cached_tokens in (hit, hit - SIZE)
        self._note()
        for start in range(first, len(tokens), self.part):
            assert self.pool.extend(allocation, tokens[start : start + self.part])
            self._note()
        for token in answer:
            assert self.pool.extend(allocation, [token])
            self._note()
        self.pool.end(allocation)
        return allocation.cached_tokens

    def _note(self) -> None:
        events = tuple(self.pool.take_events())
        if events:
            self.untold.append(events)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(14, 40), st.sampled_from([4, 8, 1000]), st.floats(0.05, 0.9))
def test_every_comparison_is_exact_however_late_the_events_are(seed: int, pages: int, part: int, lag: float) -> None:
    rng = random.Random(seed)
    line, engine = Line(), LateEngine(pages, part)
    settled: list[Watch] = []
    view: CacheView = line.desk.view

    def done(watch: Watch) -> None:
        settled.append(watch)
        view.settle(watch)

    held = Held(view, done)

    def tell(batches: int) -> None:
        for _ in range(min(batches, len(engine.untold))):
            line.desk.batch(*engine.untold.pop(0))
            came = view.came()
            if came:
                held.resume(came)

    engine.ask([1, 2, 3, 4, 5], [])
    tell(9)
    texts = [[rng.randrange(3, 2000) for _ in range(rng.randrange(3, 14))] for _ in range(6)]
    for number in range(40):
        prompt = [7] * 5 + [token for text in rng.choices(texts, k=2) for token in text]
        prompt += [] if rng.random() < 0.2 else [5000 + number] * rng.randrange(1, 6)
        watch = line.sent(prompt)
        reported = engine.ask(prompt, [9000 + number] * rng.randrange(0, 7))
        while rng.random() > lag:
            tell(1)
        held.add(line.ended(watch, reported))
    tell(10_000)
    assert len(held) == 0 and len(settled) == 40
    for watch in settled:
        assert watch.look is not None
        assert watch.look.tokens == watch.cached_tokens


def test_it_is_late_indeed() -> None:
    """Else the test above would say nothing."""
    engine = LateEngine(20, 4)
    assert engine.ask([1] * 20, [2] * 5) == 0
    assert len(engine.untold) == 6
    assert engine.ask([1] * 20, []) == 16
