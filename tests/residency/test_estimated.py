"""The model of a silent cache, one behaviour a test."""

from __future__ import annotations

import pytest

from prefixpilot.errors import ConfigError, InvalidRequestError, InvariantError
from prefixpilot.prefix_cache import LFU, Segment
from prefixpilot.residency.estimated import EstimatedCache, Verdict, token_segments

HEAD = list(range(32))


def prompt(*numbers: int) -> list[Segment]:
    """A head of two pages and pages of these numbers."""
    return token_segments(HEAD + [n for number in numbers for n in [number] * 16], 16)


def test_a_prompt_is_whole_pages_and_a_rest() -> None:
    segments = token_segments([*range(20)], 16)
    assert [segment.tokens for segment in segments] == [16, 4]
    assert token_segments([*range(16)], 16) == segments[:1]


def test_what_was_sent_is_predicted_but_for_the_last_token() -> None:
    model = EstimatedCache(16)
    assert model.predict(prompt(1)) == 0
    assert model.observe(prompt(1), 0) is Verdict.RIGHT
    assert (model.predict(prompt(1)), model.predict(prompt(1, 2)), model.predict(prompt(2))) == (32, 48, 32)
    assert model.capacity_tokens is None


def test_a_miss_tells_the_capacity() -> None:
    """Five pages were used since the one that is missing, so there is room for five at most."""
    model = EstimatedCache(16)
    model.observe(prompt(1), 0)
    model.observe(prompt(2), 32)
    model.observe(prompt(3, 4), 32)
    assert model.used_tokens == 6 * 16
    assert model.observe(prompt(1, 5), 32) is Verdict.LESS
    assert model.capacity_tokens == 5 * 16
    assert model.used_tokens == 5 * 16


def test_more_than_believed_raises_a_learnt_capacity_only() -> None:
    model = EstimatedCache(16)
    assert (model.observe(prompt(1), 32), model.capacity_tokens) == (Verdict.MORE, None)
    model.observe(prompt(2), 32)
    model.observe(prompt(1), 16)
    learnt = model.capacity_tokens
    assert learnt is not None
    assert model.observe(prompt(8, 9), 48) is Verdict.MORE
    assert model.capacity_tokens == learnt + 16
    given = EstimatedCache(16, 160)
    given.observe(prompt(1), 32)
    assert given.capacity_tokens == 160


def test_a_given_capacity_stays_and_what_is_older_than_the_miss_goes() -> None:
    model = EstimatedCache(16, 1600)
    for number in (1, 2, 3):
        model.observe(prompt(number), 0 if number == 1 else 32)
    assert model.observe(prompt(2, 7), 32) is Verdict.LESS
    assert model.capacity_tokens == 1600
    assert [model.predict(prompt(n, 0)) for n in (1, 2, 3)] == [32, 48, 48]


def test_a_cache_that_was_emptied_is_not_taken_for_a_small_one() -> None:
    model = EstimatedCache(16)
    for number in range(40):
        model.observe(prompt(number), 32 if number else 0)
    for number in range(40):
        model.observe(prompt(number, 100), 48)
    assert model.observe(prompt(39, 100, 1), 0) is Verdict.LESS
    assert model.capacity_tokens is None or model.capacity_tokens > 20 * 16
    assert model.used_tokens == 5 * 16


def test_without_lru_only_the_path_is_corrected() -> None:
    model = EstimatedCache(16, policy=LFU)
    model.observe(prompt(1), 0)
    model.observe(prompt(2), 32)
    assert model.observe(prompt(1, 2), 16) is Verdict.LESS
    assert model.capacity_tokens is None
    assert model.predict(prompt(2, 3)) == 32


def test_what_came_in_after_the_prediction_says_nothing() -> None:
    model = EstimatedCache(16)
    predicted = model.predict(prompt(1, 2))
    model.observe(prompt(1), 0)
    assert model.observe(prompt(1, 2), 0, predicted=predicted) is Verdict.RIGHT


def test_answers_take_room() -> None:
    model = EstimatedCache(16)
    model.observe(token_segments(list(range(20)), 16), 0, generated_tokens=30)
    assert model.used_tokens == 48


def test_estimated_lengths_are_scaled_and_forgiven() -> None:
    model = EstimatedCache(16, tolerance=0.1)
    documents = [Segment("a", 100), Segment("b", 100)]
    model.observe(documents, 0, prompt_tokens=400)
    assert model.predict([*documents, Segment("c", 50)]) == 384
    assert model.observe([*documents, Segment("c", 50)], 352, prompt_tokens=500) is Verdict.RIGHT
    assert model.observe([*documents, Segment("d", 50)], 200, prompt_tokens=500) is Verdict.LESS


def test_clearing_keeps_what_was_learnt() -> None:
    model = EstimatedCache(16)
    model.observe(prompt(1), 0)
    model.observe(prompt(2), 32)
    model.observe(prompt(1, 1), 16)
    learnt = model.capacity_tokens
    model.clear()
    assert (model.capacity_tokens, model.used_tokens, model.predict(prompt(1))) == (learnt, 0, 0)


def test_wrong_values_are_named() -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        EstimatedCache(16, tolerance=-1.0)
    with pytest.raises(ConfigError, match="page_size"):
        EstimatedCache(0)
    model = EstimatedCache(16)
    with pytest.raises(InvalidRequestError, match="cached_tokens"):
        model.observe(prompt(1), -1)
    with pytest.raises(InvalidRequestError, match="generated_tokens"):
        model.observe(prompt(1), 0, generated_tokens=-1)
    assert model.used_tokens == 0


def test_invariants_are_seen_to_break() -> None:
    model = EstimatedCache(16)
    model._scale = 0.0
    with pytest.raises(InvariantError, match="scale"):
        model.check_invariants()
