"""What is followed is bounded, in order, and never costs a request anything; what came of it is shown by route."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefixpilot.cache_events import EventBatch
from prefixpilot.proxy.cache import tracker as tracker_module
from prefixpilot.proxy.cache.routes import RouteFigures, Routes
from prefixpilot.proxy.cache.view import CacheView
from prefixpilot.proxy.control.controller import Route
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.faults import BreakOff, Respond

from ..support import chat, fetch, metric, post_chat, user
from .support import PAGE, SYSTEM, contexts, followed, share, texts, until

BLOCKS = texts(5, 30)


def test_requests_side_by_side_are_all_followed() -> None:
    with followed(400, mode="on") as setup:
        setup.in_state("EXACT")
        workload = contexts(80, 5, 30)
        with ThreadPoolExecutor(8) as clients:
            answers = list(
                clients.map(lambda blocks: post_chat(setup.url, chat([SYSTEM, user("Q?")], blocks)), workload)
            )
        assert {answer.status for answer in answers} == {200}
        stats = setup.settled(80)
        assert stats["predictions"]["events"]["compared"] == 80
        assert stats["pages"] == setup.pool.named_pages


def test_more_than_may_be_followed_are_served_all_the_same() -> None:
    with followed(200, max_requests=1) as setup:
        setup.engine.delay_s = 0.3
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda n: post_chat(setup.url, chat([user(f"{n}?")], BLOCKS)), range(4)))
        assert [answer.status for answer in answers] == [200] * 4
        text = fetch(setup.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_unfollowed_total") == 3


def test_an_engine_that_does_not_tokenize_is_asked_once_and_predicted_not_at_all() -> None:
    with followed(200, events="off", token_ids="engine") as setup:
        setup.engine.pages = None  # any other path is echoed now: 200, and no tokens
        for _ in range(3):
            setup.ask(BLOCKS)
        stats = setup.settled()
        assert stats["predictions"] == {}
        assert stats["routes"][0]["cached_tokens"] is not None


def test_an_error_of_the_engine_is_no_request_that_it_has_cached() -> None:
    with followed(200) as setup:
        setup.in_state("EXACT")
        setup.engine.fault = Respond(500, b"{}")
        assert post_chat(setup.url, chat([user("Q?")], BLOCKS)).status == 500
        setup.engine.fault = BreakOff(0)
        with pytest.raises((http.client.HTTPException, OSError)):
            post_chat(setup.url, chat([user("Q?")], BLOCKS, stream=True))
        setup.engine.fault = None
        setup.ask(BLOCKS)
        assert setup.settled()["routes"][0]["requests"] == 1


def test_errors_of_ours_are_counted_and_reach_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: CacheView, batch: EventBatch) -> int:
        raise RuntimeError("injected")

    monkeypatch.setattr(CacheView, "apply", broken)
    with followed(200) as setup:
        assert setup.ask(BLOCKS).status == 200
        text = until(
            lambda: {"text": fetch(setup.url, "GET", "/metrics").body.decode()},
            lambda seen: metric(seen["text"], "prefixpilot_fail_opens_total", step="cache_events") > 0,
        )
        assert text


def test_a_request_without_blocks_that_did_not_come_out_as_predicted_has_a_cause_too() -> None:
    """Where `top` says that predictions were off, it says why."""
    with followed(600, events="off", token_ids="engine", page_size=PAGE, cache_tokens=600 * PAGE) as setup:
        body = {"model": "m", "messages": [SYSTEM, user("Past the proxy, " * 40)]}
        assert post_chat(setup.engine.base_url, body).status == 200
        assert post_chat(setup.url, body).status == 200
        stats = setup.settled(1)
        assert stats["predictions"]["model"]["verdicts"] == {"off": 1}
        assert stats["causes"] == stats["routes"][0]["causes"] == {"more-than-known": 1}


def test_findings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MAX_FINDINGS", 2)
    with followed(200) as setup:
        setup.in_state("EXACT")
        for name in "abc":
            setup.ask(BLOCKS, X_Request_Id=name)
        setup.settled()
        assert "engine" not in setup.plan("a")
        assert "engine" in setup.plan("b") and "engine" in setup.plan("c")


def test_engine_ids_are_evicted_and_a_reset_forgets_contexts() -> None:
    with followed(200) as setup:
        setup.in_state("EXACT")
        for name in "ab":
            setup.ask([f"{name} " + text for text in BLOCKS], X_Request_Id=name)
        assert setup.settled()["contexts"] == 2
        told = fetch(setup.url, "POST", "/evict", {"request_ids": ["chatcmpl-a-0123abcd"]}).json()
        assert told == {"evicted": 1}
        until(setup.stats, lambda stats: stats["contexts"] == 1)
        assert fetch(setup.url, "POST", "/reset", {}).status == 200
        until(setup.stats, lambda stats: stats["contexts"] == 0)
        assert setup.stats()["pages"] == setup.pool.named_pages  # the engine still has it


def test_what_is_passed_through_is_followed_too() -> None:
    """Else the own model would not know what pushes prompts out."""
    with followed(200, events="off", token_ids="engine", page_size=PAGE, cache_tokens=200 * PAGE) as setup:
        long = " ".join(BLOCKS)
        for _ in range(2):
            body = {"model": "m", "prompt": long}
            assert fetch(setup.url, "POST", "/v1/completions", body).status == 200
        stats = setup.settled(2)
        assert share(stats, "model") == 1.0
        assert stats["predictions"]["model"]["reported_tokens"] > 0
        assert stats["routes"][0]["api"] == "completions"
        completions = [r for r in setup.engine.requests if r.path == "/v1/completions"]
        assert all(r.header("x-request-id") for r in completions)


def test_salts_are_told_apart() -> None:
    with followed(400) as setup:
        setup.in_state("EXACT")
        for salt in ("one", "two", "one"):
            body = chat([SYSTEM, user("The same question?")], BLOCKS, cache_salt=salt)
            assert post_chat(setup.url, body).status == 200
            setup.asked += 1
            assert setup.publisher is not None and setup.publisher.wait_sent(setup.publisher.published - 1)
        stats = setup.settled()
        assert share(stats, "events") == 1.0
        assert stats["predictions"]["events"]["reported_tokens"] > 0


def test_streams_that_tell_no_usage_are_followed_and_not_compared() -> None:
    with followed(200) as setup:
        setup.in_state("EXACT")
        post_chat(setup.url, chat([user("Q?")], BLOCKS, stream=True))
        stats = setup.settled(1)
        assert stats["predictions"] == {}
        assert stats["contexts"] == 1
        (route,) = stats["routes"]
        assert route["hit_rate"] is None and route["reported_tokens"] is None


def test_it_ends_while_the_engine_is_not_there() -> None:
    with followed(200, publisher=EventPublisher()) as setup:
        setup.engine.stop()
        assert setup.stats()["state"] in ("UNKNOWN", "DEGRADED", "EXACT")


# -- figures by route


def test_routes_are_bounded_and_the_latest_come_first() -> None:
    routes = Routes(2)
    for model in ("a", "b", "c", "b"):
        routes.of(Route("t", "chat", model)).add_usage(10, 5)
    assert [(route.model, each.requests) for route, each in routes.copied().items()] == [("b", 2), ("c", 1)]
    assert len(routes) == 2


def test_what_is_unknown_of_a_route_is_none() -> None:
    figures = RouteFigures()
    figures.add_usage(None, None)
    assert json.dumps(figures.shown())
    assert figures.shown()["hit_rate"] is None and figures.shown()["predicted_tokens"] is None
    figures.add_comparison(4, 0, "off")
    assert figures.shown()["predicted_tokens"] == 4 and figures.shown()["reported_tokens"] == 0
