"""What is known of several caches, added up: numbers add, and what no engine has told stays unknown."""

from __future__ import annotations

from collections import Counter

from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.routes import RouteFigures
from prefixpilot.proxy.cache.sums import CacheSums, together
from prefixpilot.proxy.control.controller import Route

CHAT, OTHER = Route("default", "chat", "m"), Route("default", "chat", "n")
SOURCE = SourceStatus("tcp://*:1", 0, Continuity.WHOLE, 9, 42, 0, 0, 0, 0, 0, 0, "")


def figures(requests: int, prompt: int, cached: int, **causes: int) -> RouteFigures:
    made = RouteFigures(requests, prompt, cached, causes=Counter(causes))
    made.add_comparison(cached, cached + 1, "off")
    return made


def test_numbers_add_and_a_route_of_both_is_one() -> None:
    one = CacheSums(
        1, 100, 5, 2, {"events": figures(0, 0, 7)}, Counter(evicted=2), (SOURCE,), {CHAT: figures(90, 800, 500)}
    )
    less = {OTHER: figures(1, 10, 5), CHAT: figures(10, 200, 100, salt=2)}
    other = CacheSums(0, 20, 1, 0, {"events": figures(0, 0, 3)}, Counter(evicted=1, salt=1), (SOURCE,), less)
    shown = (one + other).shown()
    assert (shown["waiting"], shown["pages"], shown["contexts"], shown["contexts_shortened"]) == (1, 120, 6, 2)
    predicted = {"compared": 2, "predicted_tokens": 10, "reported_tokens": 12, "behind": 0, "verdicts": {"off": 2}}
    assert shown["predictions"] == {"events": predicted}
    assert shown["causes"] == {"evicted": 3, "salt": 1}
    assert [source["continuity"] for source in shown["sources"]] == ["whole", "whole"]
    chat, last = shown["routes"]
    assert (chat["model"], chat["requests"], chat["hit_rate"], chat["causes"]) == ("m", 100, 0.6, {"salt": 2})
    assert (last["model"], last["requests"]) == ("n", 1)


def test_nothing_that_was_added_is_changed() -> None:
    one = CacheSums(routes={CHAT: figures(1, 10, 5, salt=1)}, causes=Counter(salt=1))
    before = one.shown()
    both = together([one, one])
    both.routes[CHAT].causes["salt"] += 1
    assert one.shown() == before
    assert both.routes[CHAT].requests == 2


def test_what_no_engine_has_told_stays_unknown_in_the_sum() -> None:
    silent = CacheSums(routes={CHAT: RouteFigures(requests=2)})
    (route,) = together([silent, silent]).shown()["routes"]
    assert (route["requests"], route["hit_rate"], route["prompt_tokens"], route["predicted_tokens"]) == (
        4,
        None,
        None,
        None,
    )
    assert together([]).shown()["routes"] == []
