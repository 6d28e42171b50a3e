"""Why an engine reused less than was to be expected, on pictures where the reason is known."""

from __future__ import annotations

import pytest

from prefixpilot import ContextPilot, Request
from prefixpilot.cache_events import CacheCleared, PagesRemoved
from prefixpilot.prompts import render_blocks
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.places import places_of
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import Facts, Prediction, Watch

from .test_prompts import TEXTS, prompt_of
from .test_view import NO_FACTS, SIZE, TOKENS, Desk, names, removed, stored

LONG = list(range(200, 226))  # six full pages and two tokens


def cause(
    desk: Desk, reported: int, *, tokens: list[int] = TOKENS, facts: Facts = NO_FACTS, counted: int = 0
) -> object:
    return desk.answered(desk.sent(tokens, facts=facts), len(tokens), reported)["cause"]


def test_as_predicted() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    assert cause(desk, 12) == "none"


def test_more_than_was_known_of() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS[:4]))
    assert cause(desk, 12) == "more-than-known"


def test_nothing_is_said_where_nothing_was_reported() -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    watch = desk.sent(TOKENS)
    assert desk.answered(watch, len(TOKENS), None)["cause"] is None


def test_evicted_between_the_prediction_and_the_engine() -> None:
    desk = Desk()
    desk.batch(stored(LONG))
    watch = desk.sent(LONG)
    desk.batch(removed(LONG, 5, 4, 3, 2))
    desk.batch(stored(LONG, 2))
    assert desk.answered(watch, len(LONG), 8)["cause"] == "evicted"


def test_a_picture_that_is_wrong_without_a_reason() -> None:
    desk = Desk()
    desk.batch(stored(LONG), stored(LONG, salt="s"))
    assert cause(desk, 8, tokens=LONG) == "unknown"


def test_another_rank_has_answered() -> None:
    desk = Desk()
    desk.batch(stored(LONG), rank=0)
    desk.batch(stored(LONG[:8]), rank=1)
    assert cause(desk, 8, tokens=LONG) == "routed-elsewhere"


def test_the_own_model_knows_of_evictions_only() -> None:
    desk = Desk(OwnModel(SIZE, 400))
    cause(desk, 0)
    assert cause(desk, 12) == "none"
    assert cause(desk, 4) == "evicted"


def test_what_the_plan_was_made_for_is_expected_too() -> None:
    """The index takes two blocks to be cached; the engine's pages of them have gone."""
    pilot = ContextPilot()
    first = pilot.optimize(Request.from_texts("r0", TEXTS[:2]))
    plan = pilot.optimize(Request.from_texts("r1", [TEXTS[2], TEXTS[1], TEXTS[0]]))
    assert plan.prefix_len == 2
    desk = Desk()
    before, prompt = (prompt_of("head " + render_blocks(each) + "\n\nQ?", 1) for each in (first, plan))
    desk.batch(stored(list(before.token_ids)))
    desk.batch(PagesRemoved(tuple(names(list(before.token_ids), "NoneNone")[2:])))
    shared = next(i for i, (a, b) in enumerate(zip(before.pieces, prompt.pieces, strict=False)) if a != b)
    watch = desk.sent(list(prompt.token_ids), (plan,), known=False)
    watch.prompt = prompt
    watch.prediction = desk.view.predict(watch)
    found = desk.answered(watch, prompt.tokens, 8)
    assert (found["cause"], found["verdict"]) == ("evicted", "exact")
    missed = found["missed_tokens"]
    assert isinstance(missed, int) and missed >= shared // SIZE * SIZE - 4 * SIZE


def test_the_same_text_is_cached_for_another_tenant() -> None:
    pilot = ContextPilot()
    first = pilot.optimize(Request.from_texts("r0", TEXTS[:2]))
    plan = pilot.optimize(Request.from_texts("r1", [TEXTS[2], TEXTS[1], TEXTS[0]]))
    desk = Desk()
    before, prompt = (prompt_of("head " + render_blocks(each) + "\n\nQ?", 1) for each in (first, plan))
    desk.batch(stored(list(before.token_ids), salt="tenant-a"))
    watch = desk.sent(list(prompt.token_ids), (plan,), facts=Facts("", "tenant-b"), known=False)
    watch.prompt = prompt
    watch.prediction = desk.view.predict(watch)
    found = desk.answered(watch, prompt.tokens, 0)
    assert (found["predicted"], found["cause"]) == (0, "salt-or-adapter")


@pytest.mark.parametrize(("predicted", "expected"), [(12, "unknown"), (3, "below-page-size")])
def test_a_hit_that_ends_in_front_of_the_blocks_is_no_proof_of_volatile_text(predicted: int, expected: str) -> None:
    desk = Desk()
    plan = ContextPilot().optimize(Request.from_texts("r1", TEXTS))
    head = "a head of forty bytes, more or less.... " if predicted > SIZE else ""
    prompt = prompt_of(head + render_blocks(plan) + "\n\nQ?", 1)
    desk.batch(stored(list(prompt.token_ids[:16])))
    watch = desk.sent(list(prompt.token_ids), (plan,), known=False)
    watch.prompt = prompt
    watch.prediction = Prediction(predicted, "events", SIZE)
    assert desk.answered(watch, prompt.tokens, 0)["cause"] == expected


@pytest.mark.parametrize(("reported", "expected"), [(0, "template"), (12, "none"), (None, "none")])
def test_a_template_of_the_engine_that_is_another(reported: int | None, expected: str) -> None:
    desk = Desk()
    desk.batch(stored(TOKENS))
    found = desk.answered(desk.sent(TOKENS), len(TOKENS) + 7, reported)
    assert (found["mismatched"], found["verdict"], found["predicted"]) == (True, None, None)
    assert found["cause"] == expected


def promised(desk: Desk) -> tuple[Watch, EnginePrompt]:
    """A request whose plan counts on two blocks, of which the picture knows nothing."""
    pilot = ContextPilot()
    pilot.optimize(Request.from_texts("r0", TEXTS[:2]))
    plan = pilot.optimize(Request.from_texts("r1", [TEXTS[2], TEXTS[1], TEXTS[0]]))
    prompt = prompt_of("head " + render_blocks(plan) + "\n\nQ?", 1)
    watch = desk.sent(list(prompt.token_ids), (plan,), known=False)
    watch.prompt = prompt
    watch.prediction = desk.view.predict(watch)
    return watch, prompt


def test_just_what_the_plan_was_made_for_and_more_than_was_known() -> None:
    desk = Desk()
    desk.batch(stored(LONG))
    watch, prompt = promised(desk)
    counted_on = places_of(watch.plans, prompt, prompt.tokens)[0].promised // SIZE * SIZE
    found = desk.answered(watch, prompt.tokens, counted_on)
    assert (found["verdict"], found["cause"], found["missed_tokens"]) == ("off", "more-than-known", 0)


@pytest.mark.parametrize("other", ["template", "none of ours"])
def test_a_template_that_makes_as_many_other_tokens(other: str) -> None:
    """The engine tells of a prompt as long as ours, and never of ours."""
    desk = Desk()
    desk.batch(stored(LONG))
    watch, prompt = promised(desk)
    watch.alone = True
    theirs = [token + 1000 for token in prompt.token_ids]
    desk.batch(stored(theirs if other == "template" else theirs[:-SIZE]))
    watch.prompt_tokens, watch.cached_tokens = prompt.tokens, 8
    assert desk.view.look(watch, last_time=True)
    found = desk.answered(watch, prompt.tokens, 8)
    assert (found["verdict"], found["mismatched"]) == ("off", False)
    assert found["cause"] == ("template" if other == "template" else "events-late")


@pytest.mark.parametrize(("salt", "adapter"), [("theirs", None), (None, "lora")])
def test_the_same_tokens_under_a_salt_or_an_adapter_are_no_other_template(
    salt: str | None, adapter: str | None
) -> None:
    desk = Desk()
    desk.batch(stored(LONG))
    watch, prompt = promised(desk)
    watch.alone = True
    desk.batch(stored(list(prompt.token_ids), salt=salt, adapter=adapter))
    watch.prompt_tokens, watch.cached_tokens = prompt.tokens, 0
    assert desk.view.look(watch, last_time=True)
    assert desk.answered(watch, prompt.tokens, 0)["cause"] == "salt-or-adapter"


def test_what_fits_the_report_between_sending_and_answer_was_the_look() -> None:
    """All of it was there, so nothing is told of the request itself; before its answer ends, it is evicted."""
    desk = Desk()
    desk.batch(stored(TOKENS[:12]))
    watch = desk.sent(TOKENS)
    desk.batch(removed(TOKENS, 2, 1))
    watch.prompt_tokens, watch.cached_tokens, watch.marks_then = len(TOKENS), 12, desk.view.marks
    assert desk.view.look(watch)
    found = desk.answered(watch, len(TOKENS), 12)
    assert (found["predicted"], found["verdict"], found["cause"]) == (12, "exact", "none")


def test_a_plan_made_before_the_engine_began_anew() -> None:
    """The picture knew of it in time, the plan did not."""
    desk = Desk()
    desk.batch(stored(LONG))
    watch, prompt = promised(desk)
    desk.batch(CacheCleared(), stored(TOKENS), sequence=0)
    watch.prediction = desk.view.predict(watch)
    found = desk.answered(watch, prompt.tokens, 0)
    assert (found["predicted"], found["cause"]) == (0, "restarted")


def test_a_plan_made_before_the_cache_was_cleared() -> None:
    desk = Desk()
    desk.batch(stored(LONG))
    watch, prompt = promised(desk)
    desk.batch(CacheCleared())
    assert desk.answered(watch, prompt.tokens, 0)["cause"] == "evicted"
