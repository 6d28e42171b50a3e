"""Requests whose pages must have been told of while nothing was told at all: the state says so, and nothing else is
taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixpilot.engines import kv_events
from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.engines.kv_events import PATIENCE
from prefixpilot.proxy.cache import tracker
from prefixpilot.proxy.cache.silence import Silence
from prefixpilot.testing.faults import Respond

from ..support import chat, fetch, post_chat, user
from .support import SYSTEM, Followed, followed, texts, until
from .test_view import SIZE, TOKENS, Desk, stored


def test_waits_that_overlap_count_as_one() -> None:
    silence = Silence()
    for since, now, waits in ((0, 3, 1), (1, 3.1, 1), (2.9, 5, 1), (3, 6, 2), (5.9, 8, 2), (7, 9, 3)):
        silence.waited(since, now)
        assert silence.waits == waits
    silence.heard()
    assert silence.waits == 0
    silence.waited(8, 10)
    assert silence.waits == 1


# -- which requests count


class Answered:
    """A request that was answered, and of whose prompt nothing was told in time."""

    def __init__(self, desk: Desk, tokens: list[int], cached: int | None, *, sent_at: float = 0.0) -> None:
        self.desk = desk
        self.watch = desk.sent(tokens)
        self.watch.prompt_tokens, self.watch.cached_tokens, self.watch.sent_at = len(tokens), cached, sent_at

    def waited(self, now: float = 2.0) -> int:
        self.desk.view.unheard(self.watch, now)
        return self.desk.view.silence


OTHERS = [7, 7, 7, 7, 8, 8, 8, 8, 9, 9]


def told(*tokens: list[int]) -> Desk:
    desk = Desk()
    desk.batch(*map(stored, tokens))
    return desk


@pytest.mark.parametrize(
    ("tokens", "cached", "counts"),
    [
        (OTHERS, 0, True),
        (OTHERS, 4, True),
        (OTHERS, 8, False),  # all of it was cached
        (OTHERS[:8], 4, False),  # its last page is computed anew always, and told again by some engines only
        (OTHERS[:3], 0, False),  # it fills no page
        (OTHERS, None, False),  # the engine did not say
        (TOKENS, 0, False),  # it has told of all these pages: some engines keep one copy, and tell of none
        ([*TOKENS, 1, 2, 3], 12, True),
    ],
)
def test_a_request_counts_only_if_it_must_have_filled_a_page_that_was_never_told(
    tokens: list[int], cached: int | None, counts: bool
) -> None:
    assert Answered(told(TOKENS), tokens, cached).waited() == counts


def test_a_request_behind_which_anything_came_does_not_count() -> None:
    desk = told(TOKENS)
    early = Answered(desk, OTHERS, 0)
    desk.batch(stored([1, 2, 3, 4]))
    assert early.waited() == 0
    assert Answered(desk, OTHERS, 0).waited() == 1
    desk.batch()
    assert desk.view.silence == 0


def test_an_engine_that_was_said_to_hold_nothing_must_tell_of_its_first_pages_too() -> None:
    desk = Desk()
    desk.view.note(SourceStatus("tcp://e", 0, Continuity.WHOLE, -1, 0, 0, 0, 0, 0, 0, 0, ""))
    desk.view.sized(SIZE, None, bound=None, anew=False)
    assert Answered(desk, OTHERS, 0).waited() == 1
    assert Answered(desk, OTHERS[:3], 0, sent_at=3.0).waited(6.0) == 1


def test_the_pages_may_be_held_by_any_rank() -> None:
    desk = told(TOKENS)
    desk.batch(stored(OTHERS), rank=1)
    assert Answered(desk, OTHERS, 0).waited() == 0
    assert Answered(desk, [*OTHERS, 1, 2], 0).waited() == 1


# -- over real sockets


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "HOLD_S", 0.1)
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.3)


def ask(setup: Followed, blocks: list[str], question: str) -> int:
    """Without waiting for events."""
    setup.asked += 1
    return post_chat(setup.url, chat([SYSTEM, user(question)], blocks)).status


def asks_until(setup: Followed, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """New prompts, one after the other, until the figures are so."""
    for number in range(60):
        assert ask(setup, texts(3, 40, seed=1000 + number), f"And {number}?") == 200
        stats = setup.settled()
        if holds(stats):
            return stats
    raise AssertionError(stats)


@pytest.mark.parametrize("replay", [True, False])
def test_a_publisher_that_tells_no_more_and_does_not_answer_degrades_the_state_until_it_does(replay: bool) -> None:
    with followed(600, replay=replay) as setup:
        assert setup.publisher is not None
        setup.ask(texts(3, 40))
        setup.in_state("EXACT")
        setup.publisher.drop, setup.publisher.mute_replay = lambda number: True, True
        stats = asks_until(setup, lambda stats: stats["state"] == "DEGRADED")
        assert setup.asked >= PATIENCE + 1
        assert "told nothing of them" in stats["reason"] and "its publisher of events still runs" in stats["reason"]
        assert ("--cache-replay" in stats["reason"]) == (not replay)
        plan = post_chat(setup.url, chat([user("Now?")], texts(3, 40))).header("x-prefixpilot-plan")
        assert plan is not None and '"cache":"degraded"' in plan
        ready = fetch(setup.url, "GET", "/readyz")
        assert ready.status == 200 and "what the engine holds is known as DEGRADED" in ready.json()["degraded"][0]
        if replay:  # it is asked again and again, and keeps what it did not publish to us
            setup.publisher.mute_replay = False
            assert setup.in_state("EXACT")["pages"] == setup.pool.named_pages
            assert fetch(setup.url, "GET", "/readyz").json()["degraded"] == []


def test_what_the_engine_says_it_has_not_told_is_asked_for_and_the_state_is_exact_again() -> None:
    with followed(600) as setup:
        assert setup.publisher is not None
        setup.ask(texts(3, 40))
        setup.in_state("EXACT")
        setup.publisher.drop = lambda number: True
        asks_until(setup, lambda stats: stats["sources"][0]["replayed"] > 1)
        assert setup.in_state("EXACT")["sources"][0]["lost"] == 0


def test_no_alarm_for_what_need_not_be_told() -> None:
    """Prompts that are cached, short ones, errors, streams without usage, and time in which nobody asks."""
    with followed(600) as setup:
        assert setup.publisher is not None
        blocks = texts(3, 40)
        setup.ask(blocks, "The same?")
        setup.in_state("EXACT")
        setup.ask(blocks, "The same?")
        setup.publisher.drop, setup.publisher.mute_replay = lambda number: True, True
        for _ in range(2 * PATIENCE):
            assert ask(setup, blocks, "The same?") == 200
            assert post_chat(setup.url, {"model": "m", "messages": [user("?")]}).status == 200
            setup.engine.fault = Respond(500, b"{}")
            assert ask(setup, texts(3, 40, seed=5), "Fails?") == 500
            setup.engine.fault = None
            assert post_chat(setup.url, chat([user("Streams?")], texts(3, 40, seed=6), stream=True)).status == 200
            setup.settled(0)
        until(setup.stats, lambda stats: not stats["waiting"])
        following = setup.proxy.app._engines.all[0].cache
        assert following is not None and following.unheard() == 0
        assert setup.stats()["state"] == "EXACT"
