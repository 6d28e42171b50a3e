"""Our model of a silent cache against a real one of unknown capacity."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.prefix_cache import FIFO, LFU, LRU, PagedPrefixCache, Segment
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.estimated import EstimatedCache, Verdict, token_segments

SIZE = 4
DOCUMENTS = [tuple(range(n * 100, n * 100 + length)) for n, length in enumerate((3, 4, 8, 9, 17, 2))]


class EstimatedMachine(RuleBasedStateMachine):
    """Whatever is sent: the verdict is what the report says, and a right one changes no belief."""

    @initialize(pages=st.integers(2, 30), policy=st.sampled_from([LRU, LFU, FIFO]), given=st.booleans())
    def start(self, pages: int, policy: object, given: bool) -> None:
        self.engine = PagedPrefixCache(pages * SIZE, SIZE, policy)  # type: ignore[arg-type]
        self.model = EstimatedCache(
            SIZE,
            pages * SIZE if given else None,
            policy=policy,  # type: ignore[arg-type]
            max_tokens=400,
        )
        self.right = given

    @rule(order=st.lists(st.integers(0, len(DOCUMENTS) - 1), min_size=1, max_size=5, unique=True))
    def send(self, order: list[int]) -> None:
        tokens = [token for number in order for token in DOCUMENTS[number]]
        prompt = token_segments(tokens, SIZE)
        predicted, before = self.model.predict(prompt), self.model.capacity_tokens
        reported = reported_tokens(self.engine.access(prompt).cached_tokens, len(tokens), SIZE)
        verdict = self.model.observe(prompt, reported)
        expected = Verdict.RIGHT if predicted == reported else Verdict.LESS if reported < predicted else Verdict.MORE
        assert verdict is expected
        assert not self.right or verdict is Verdict.RIGHT
        if verdict is Verdict.RIGHT:
            assert self.model.capacity_tokens == before

    @rule()
    def a_known_loss_of_all(self) -> None:
        self.engine.clear()
        self.model.clear()
        assert self.model.used_tokens == 0

    @rule()
    def a_loss_of_all_that_nobody_tells(self) -> None:
        self.engine.clear()
        self.right = False

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "model"):
            self.model.check_invariants()
            assert self.model.used_tokens <= 400


TestEstimated = EstimatedMachine.TestCase
TestEstimated.settings = settings(max_examples=60, stateful_step_count=30)


def shared_workload(seed: int, requests: int, documents: int, z: float) -> list[list[int]]:
    """Prompts with one head, some documents drawn by a Zipf law, in a fixed order, and a question of their own."""
    rng = random.Random(seed)
    texts = [[rng.randrange(50_000) for _ in range(rng.randrange(20, 200))] for _ in range(documents)]
    weights = [1 / (rank + 1) ** z for rank in range(documents)]
    prompts = []
    for _ in range(requests):
        chosen = sorted(set(rng.choices(range(documents), weights, k=5)))
        question = [rng.randrange(50_000) for _ in range(30)]
        prompts.append([7] * 40 + [token for number in chosen for token in texts[number]] + question)
    return prompts


@pytest.mark.no_cover
@pytest.mark.parametrize("pages", [60, 300, 1000])
@pytest.mark.parametrize("z", [0.7, 1.1])
@pytest.mark.parametrize("answer", [0, 37])
def test_after_a_while_nine_of_ten_predictions_are_right_to_the_page(pages: int, z: float, answer: int) -> None:
    """Capacity unknown, eviction all the time; in fact all but a few are right, and the capacity is found."""
    engine, model = PagedPrefixCache(pages * 16, 16), EstimatedCache(16)
    right = hits = 0
    prompts = shared_workload(1, 900, 150, z)
    for number, tokens in enumerate(prompts):
        prompt = token_segments(tokens, 16)
        predicted = model.predict(prompt)
        tail = [Segment(("answer of the engine", number), answer)] if answer else []
        cached = engine.access([*prompt, *tail]).cached_tokens
        reported = reported_tokens(cached, len(tokens), 16)
        model.observe(prompt, reported, generated_tokens=answer)
        if number >= 300:
            right += predicted == reported
            hits += reported > 48
    assert right >= 0.97 * 600
    assert hits > 200
    assert model.capacity_tokens is not None
    assert abs(model.capacity_tokens - pages * 16) <= 0.05 * pages * 16


def test_what_others_send_is_corrected() -> None:
    """Half of the traffic does not come by us; still more than half of the predictions are right, to the page."""
    engine, model = PagedPrefixCache(400 * 16, 16), EstimatedCache(16, 400 * 16)
    right = 0
    prompts = shared_workload(2, 1000, 100, 1.0)
    for number, tokens in enumerate(prompts):
        prompt = token_segments(tokens, 16)
        reported = reported_tokens(engine.access(prompt).cached_tokens, len(tokens), 16)
        if number % 2:
            right += model.predict(prompt) == reported
            model.observe(prompt, reported)
    assert right >= 250
