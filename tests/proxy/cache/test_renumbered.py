"""A publisher whose numbers begin anew while the engine keeps its pages: what the engine reuses gives it away."""

from __future__ import annotations

import pytest

from prefixpilot.cache_events import CacheCleared, PagesStored

from .support import followed, texts, until
from .test_view import SIZE, TOKENS, Desk, names, stored

OTHERS = [7, 7, 7, 7, 8, 8, 8, 8, 9, 9]


def begun_anew(*, told: bool) -> Desk:
    """It had told of three pages before; ``told``: by its first batch, or by its silence."""
    desk = Desk()
    desk.view.sized(SIZE, None, bound=None, anew=False)
    desk.batch(stored(TOKENS))
    desk.batch(CacheCleared(), *([stored(OTHERS)] if told else []), sequence=0 if told else -1)
    assert desk.view.state.name == "EXACT" and desk.predicted(TOKENS) == 0
    return desk


def asked(desk: Desk, tokens: list[int], cached: int, *more: PagesStored, alone: bool = True) -> str:
    """The state after a request of which the engine reused so much, and told of the rest."""
    watch = desk.sent(tokens)
    watch.prompt_tokens, watch.cached_tokens, watch.alone, watch.sent, watch.ended = len(tokens), cached, alone, 8, 9
    desk.view.awaits(watch)
    if more:
        desk.batch(*more)
    watch.marks_then = desk.view.marks
    assert desk.view.look(watch, last_time=bool(more))
    desk.view.settle(watch)
    return desk.view.state.name


@pytest.mark.parametrize("told", [True, False])
def test_a_hit_on_pages_of_before_degrades_the_state_until_the_cache_is_cleared(told: bool) -> None:
    desk = begun_anew(told=told)
    assert asked(desk, TOKENS, 12) == "DEGRADED"
    assert "reuses pages of before" in desk.view.why()
    desk.batch(CacheCleared())
    assert (desk.view.state.name, desk.view.why()) == ("EXACT", "")


def test_a_part_that_was_kept_shows_too_also_where_others_are_under_way() -> None:
    """The pages that it stores follow others of which nothing is known."""
    longer = [*TOKENS[:12], 50, 51, 52, 53, 54]
    rest = stored(longer, 3)
    assert rest.parent == names(longer, "NoneNone")[2]
    assert asked(begun_anew(told=True), longer, 12, rest, alone=False) == "DEGRADED"


def test_what_a_new_engine_has_told_of_is_no_page_of_before() -> None:
    assert asked(begun_anew(told=True), OTHERS, 8) == "EXACT"
    assert asked(begun_anew(told=True), TOKENS, 0, stored(TOKENS)) == "EXACT"


def test_what_others_under_way_may_have_stored_is_none_either() -> None:
    assert asked(begun_anew(told=True), TOKENS, 12, alone=False) == "EXACT"


def test_what_lies_in_a_lower_tier_is_none_either() -> None:
    desk = begun_anew(told=True)
    desk.batch(stored(TOKENS)._replace(medium="CPU"))
    assert asked(desk, TOKENS, 12) == "EXACT"


def test_more_than_is_known_of_an_engine_that_never_began_anew_is_no_such_thing() -> None:
    desk = Desk()
    desk.batch(stored(OTHERS))
    assert asked(desk, TOKENS, 12) == "EXACT"


def test_a_request_that_went_out_before_says_nothing() -> None:
    desk = Desk()
    desk.view.sized(SIZE, None, bound=None, anew=False)
    desk.batch(stored(TOKENS))
    watch = desk.sent(TOKENS)
    watch.prompt_tokens, watch.cached_tokens, watch.alone = len(TOKENS), 12, True
    desk.view.awaits(watch)
    watch.marks_then = desk.view.marks
    desk.batch(CacheCleared(), sequence=-1)
    assert desk.view.look(watch)
    desk.view.settle(watch)
    assert desk.view.state.name == "EXACT"


def test_over_sockets_a_publisher_that_begins_anew_beside_its_engine_is_not_known_exactly() -> None:
    with followed(400) as setup:
        setup.in_state("EXACT")
        assert setup.publisher is not None
        setup.ask(texts(5, 30), "The same?")
        setup.ask(texts(5, 30), "The same?")
        setup.publisher.restart()
        until(setup.stats, lambda stats: stats["pages"] == 0 and stats["state"] == "EXACT")
        setup.ask(texts(5, 30), "The same?")
        assert setup.settled()["state"] == "DEGRADED"
        assert "reuses pages of before" in setup.stats()["reason"]
        assert setup.pool.reset()
        setup.ask(texts(5, 30), "The same?")
        assert setup.in_state("EXACT")["reason"] == ""
