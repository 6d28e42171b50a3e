"""Our own model of the cache, with what was generated: against a cache that holds the real answers."""

from __future__ import annotations

import random
from array import array
from typing import NamedTuple

import pytest

from prefixpilot.prefix_cache import PagedPrefixCache
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import Facts
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.estimated import token_segments

SIZE = 16
FACTS = Facts("m")


class Outcome(NamedTuple):
    """Of predictions for later turns: how many, and how many were the engine's number."""

    turns: int
    right: int


def talked(*, told: bool, comes_back: float, pages: int = 2000, capacity: bool = True) -> Outcome:
    """20 conversations of six turns side by side, on an engine that holds prompts and answers.

    ``comes_back``: share of the answers that make the same tokens again when they are sent with the next turn.
    """
    rng = random.Random(3)
    engine, model = PagedPrefixCache(pages * SIZE, SIZE), OwnModel(SIZE, pages * SIZE if capacity else None)
    talks = [[7] * 40 for _ in range(20)]
    turns = right = 0
    for turn in range(6):
        for talk in talks:
            talk += [rng.randrange(9_000) for _ in range(rng.randrange(5, 60))]
            prompt = EnginePrompt(array("I", talk))
            predicted = model.predict(prompt, FACTS).tokens
            answer = [rng.randrange(9_000) for _ in range(rng.randrange(2, 150))]
            cached = engine.access(token_segments([*talk, *answer[:-1]], SIZE)).cached_tokens
            reported = reported_tokens(cached, len(talk), SIZE)
            model.observe(prompt, FACTS, reported, predicted, len(answer) if told else None)
            turns += turn > 0
            right += turn > 0 and predicted == reported
            talk += answer if rng.random() < comes_back else [answer[0] + 1, *answer[1:]]
    return Outcome(turns, right)


def test_answers_that_come_back_are_predicted_to_the_page() -> None:
    known, unknown = talked(told=True, comes_back=1.0), talked(told=False, comes_back=1.0)
    assert known == Outcome(100, 100)
    assert unknown.right < 0.3 * unknown.turns


@pytest.mark.parametrize("capacity", [True, False])
def test_answers_that_never_come_back_are_not_believed_for_long(capacity: bool) -> None:
    known = talked(told=True, comes_back=0.0, capacity=capacity)
    unknown = talked(told=False, comes_back=0.0, capacity=capacity)
    assert known.right >= 0.9 * unknown.right


def test_some_that_do_not_come_back_cost_only_themselves() -> None:
    assert talked(told=True, comes_back=0.9).right >= 85


def test_with_evictions_it_stays_right() -> None:
    known = talked(told=True, comes_back=1.0, pages=300)
    assert known.right >= 90


def test_another_model_or_salt_has_answers_of_its_own() -> None:
    model = OwnModel(SIZE, 4000)
    first, later = (EnginePrompt(array("I", range(n))) for n in (20, 80))
    model.observe(first, FACTS, 0, 0, 50)
    assert model.predict(later, FACTS).tokens == 64
    assert model.predict(later, Facts("other")).tokens == 0
    assert model.predict(later, Facts("m", "salt")).tokens == 0


def test_no_count_or_a_single_token_adds_nothing() -> None:
    for count in (None, 0, 1):
        model = OwnModel(SIZE, 4000)
        model.observe(EnginePrompt(array("I", range(20))), FACTS, 0, 0, count)
        assert model.predict(EnginePrompt(array("I", range(80))), FACTS).tokens == 16
