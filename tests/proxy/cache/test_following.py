"""The proxy follows a real stream of events over ZeroMQ: what it predicts is what the engine reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.cache import tracker
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.testing.event_publisher import EventPublisher

from ..support import Answer, chat, fetch, metric, post_chat, user
from .support import PAGE, SYSTEM, contexts, followed, share, texts, until

WORKLOAD = contexts(250, 6, 60)
POOL = 120
"""Pages: a few prompts of this workload."""


@contextmanager
def followed_too(engine: str, cache: CacheSettings) -> Iterator[str]:
    """Another proxy of the same engine."""
    with serve_in_thread(ProxySettings(engine, port=0, drain_timeout=2, cache=cache)) as proxy:
        yield proxy.url


def plan_of(answer: Answer) -> dict[str, object]:
    header = answer.header("x-prefixpilot-plan")
    assert header is not None
    return dict(json.loads(header))


def test_with_events_nearly_every_prediction_is_exact_though_pages_are_evicted() -> None:
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        for blocks in WORKLOAD:
            setup.ask(blocks)
        stats = setup.settled()
        assert stats["predictions"]["events"]["compared"] == len(WORKLOAD)
        assert share(stats, "events") >= 0.98
        assert stats["state"] == "EXACT"
        assert stats["pages"] == setup.pool.named_pages <= POOL
        assert stats["predictions"]["events"]["reported_tokens"] > 0


def test_the_first_request_is_predicted_by_events_also_where_its_own_come_last() -> None:
    """Its tokens are there before anything was told of the cache. Nothing of it is cached, and that is known."""
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        assert setup.publisher is not None
        setup.publisher.held = True
        assert post_chat(setup.url, chat([SYSTEM, user("Which of them?")], list(WORKLOAD[0]))).status == 200
        until(setup.stats, lambda stats: stats["waiting"] == 1)
        setup.publisher.held = False
        stats = setup.settled(1)
        assert stats["predictions"].keys() == {"events"}
        assert stats["predictions"]["events"]["verdicts"] == {"exact": 1}


def test_events_that_come_late_are_waited_for_by_the_comparison_and_by_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests are answered before any of their events comes."""
    monkeypatch.setattr(tracker, "HOLD_S", 60.0)
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        setup.ask(WORKLOAD[-1])
        until(setup.stats, lambda stats: stats["pages"] > 0 and not stats["waiting"])
        assert setup.publisher is not None
        setup.publisher.held = True
        for number, blocks in enumerate(WORKLOAD[:30]):
            body = chat([SYSTEM, user(f"Question {number}: which of them?")], list(blocks))
            assert post_chat(setup.url, body).status == 200
        until(setup.stats, lambda stats: stats["waiting"] == 30)
        setup.publisher.held = False
        stats = setup.settled(31)
        assert stats["predictions"]["events"]["compared"] >= 30
        assert share(stats, "events") == 1.0
        assert stats["predictions"]["events"]["behind"] > 0
        assert "picture-wrong" not in stats["causes"] and stats["causes"]["events-late"] > 0


def test_events_that_come_faster_than_they_are_looked_at_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are applied before the first request is compared; the same documents come again among them."""
    monkeypatch.setattr(tracker, "HOLD_S", 60.0)
    gate, waited = Event(), list[bool]()
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        setup.ask(WORKLOAD[-1])
        until(setup.stats, lambda stats: stats["pages"] > 0 and not stats["waiting"])
        following = setup.proxy.app._engines.all[0].cache
        assert following is not None
        following._later(lambda: waited.append(gate.wait(60)))
        for blocks in WORKLOAD[:30]:
            assert post_chat(setup.url, chat([SYSTEM, user("Which of them?")], list(blocks))).status == 200
        until(setup.stats, lambda stats: stats["sources"][0]["batches"] >= 30)
        gate.set()
        stats = setup.settled(31)
        assert waited == [True]
        assert stats["predictions"]["events"]["compared"] >= 30
        assert share(stats, "events") == 1.0


def test_events_that_never_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "HOLD_S", 0.05)
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        setup.ask(WORKLOAD[-1])
        until(setup.stats, lambda stats: stats["pages"] > 0 and not stats["waiting"])
        assert setup.publisher is not None
        setup.publisher.held = True
        assert post_chat(setup.url, chat([SYSTEM, user("Which of them?")], list(WORKLOAD[0]))).status == 200
        assert setup.settled(2)["waiting"] == 0
        setup.publisher.held = False


def test_without_events_the_own_model_predicts_most() -> None:
    with followed(POOL, events="off", token_ids="engine", page_size=PAGE, cache_tokens=POOL * PAGE) as setup:
        for blocks in WORKLOAD:
            setup.ask(blocks)
        stats = setup.settled()
        assert stats["state"] == "UNKNOWN"
        assert stats["predictions"]["model"]["compared"] == len(WORKLOAD)
        assert share(stats, "model") >= 0.90


def test_answers_are_in_the_own_model_too() -> None:
    """Conversations whose turns go on from the answers: what was generated is hit, and predicted."""
    reply = "The library closes at six, " + "and the tram stops there every ten minutes, " * 12
    with followed(600, events="off", token_ids="engine") as setup:
        setup.engine.reply = lambda body: f"{body['messages'][-1]['content']} {reply}"
        talks: list[list[dict[str, str]]] = [[SYSTEM] for _ in range(6)]
        for turn in range(5):
            for number, talk in enumerate(talks):
                talk.append(user(f"Visitor {number} asks {turn}: when does it close?"))
                answer = post_chat(setup.url, {"model": "m", "messages": talk}).json()
                talk.append(answer["choices"][0]["message"])
        predictions = setup.settled(30)["predictions"]["model"]
        assert predictions["verdicts"] == {"exact": 30}
        assert predictions["reported_tokens"] > 24 * 10 * PAGE


def test_auto_finds_where_the_engine_publishes() -> None:
    with followed(POOL, events="auto") as setup:
        (source,) = setup.in_state("EXACT")["sources"]
        assert setup.publisher is not None and source["source"] == setup.publisher.endpoint
        assert "/kv_event_sources" in {request.path for request in setup.engine.requests}


def test_a_plan_says_how_the_cache_was_known_and_later_what_came_of_it() -> None:
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        for _ in range(2):
            answer = setup.ask(texts(5, 30), X_Request_Id="named")
        plan = plan_of(answer)
        assert plan["cache"] == "exact" and plan["request_id"] == "named"
        setup.settled()
        seen = setup.plan("named")["engine"]
        assert seen["predicted"] == seen["reported"] > 0
        assert (seen["basis"], seen["verdict"], seen["state"]) == ("events", "exact", "EXACT")
        assert setup.engine.chats[-1].header("x-request-id") == "named"


def test_off_it_says_unknown_and_asks_for_nothing() -> None:
    with followed(POOL, events="off") as setup:
        plan = plan_of(setup.ask(texts(5, 30)))
        assert plan["cache"] == "unknown"
        assert setup.stats() == {"state": "UNKNOWN", "followed": False}
        assert {request.path for request in setup.engine.requests} == {"/v1/chat/completions"}


def test_pages_that_go_shorten_what_is_planned_with() -> None:
    """The index has no bound of its own here: it forgets only what the engine tells."""
    with followed(40) as setup:
        setup.in_state("EXACT")
        for blocks in contexts(60, 6, 300):
            setup.ask(blocks)
        stats = setup.settled()
        text = fetch(setup.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_contexts_shortened_total") == stats["contexts_shortened"] > 0
        live = fetch(setup.url, "GET", "/stats").json()["sizes"]["live_requests"]
        assert live < 20  # 40 pages hold four prompts


def test_a_cleared_cache_empties_the_index() -> None:
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        for blocks in WORKLOAD[:20]:
            setup.ask(blocks)
        setup.settled()
        assert fetch(setup.engine.base_url, "POST", "/reset_prefix_cache", {}).status == 200
        setup.ask(["Nothing like the others. " * 10])
        setup.settled()
        until(
            lambda: dict(fetch(setup.url, "GET", "/stats").json()["sizes"]), lambda sizes: sizes["live_requests"] <= 1
        )
        assert share(setup.stats(), "events") >= 0.95


def test_a_late_subscriber_learns_what_is_there() -> None:
    publisher = EventPublisher()
    with followed(POOL, publisher=publisher) as first:
        first.in_state("EXACT")
        for blocks in WORKLOAD[:30]:
            first.ask(blocks)
        pages = first.settled()["pages"]
        cache = first.proxy.app.settings.cache
        with followed_too(first.engine.base_url, cache) as url:
            stats = until(
                lambda: dict(fetch(url, "GET", "/stats").json()["engine_cache"]), lambda s: s["pages"] == pages
            )
            assert stats["state"] in ("EXACT", "DEGRADED")
            again = post_chat(url, chat([SYSTEM, user("Again?")], list(WORKLOAD[29])))
            assert again.status == 200
            shown = until(
                lambda: dict(fetch(url, "GET", "/stats").json()["engine_cache"]),
                lambda s: bool(s["predictions"].get("events")),
            )
            assert share(shown, "events") == 1.0


def test_a_gap_is_filled_by_a_replay() -> None:
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        assert setup.publisher is not None
        setup.publisher.drop = {20, 21, 40}.__contains__
        for blocks in WORKLOAD[:60]:
            setup.ask(blocks)
        stats = setup.in_state("EXACT")
        (source,) = stats["sources"]
        assert source["gaps"] >= 1 and source["lost"] == 0
        assert setup.settled()["pages"] == setup.pool.named_pages


def test_without_a_replay_a_gap_degrades_until_the_cache_is_cleared() -> None:
    with followed(POOL, replay=False) as setup:
        assert setup.publisher is not None
        setup.ask(WORKLOAD[0])
        setup.in_state("EXACT")  # that was batch 0: there was none before
        setup.publisher.drop = lambda sequence: True
        setup.ask(WORKLOAD[1])
        setup.publisher.drop = lambda sequence: False
        setup.ask(WORKLOAD[2])
        setup.in_state("DEGRADED")
        assert plan_of(setup.ask(WORKLOAD[3]))["cache"] == "degraded"
        assert setup.settled()["sources"][0]["lost"] >= 1
        fetch(setup.engine.base_url, "POST", "/reset_prefix_cache", {})
        setup.ask(WORKLOAD[4])
        setup.in_state("EXACT")
        assert setup.stats()["pages"] == setup.pool.named_pages


def test_an_engine_without_tokenize_still_corrects_the_index() -> None:
    with followed(40, token_ids="off") as setup:
        setup.in_state("EXACT")
        for blocks in contexts(60, 6, 300):
            setup.ask(blocks)
        stats = setup.settled()
        assert stats["predictions"] == {}
        assert stats["contexts"] > 0
        text = fetch(setup.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_contexts_shortened_total") > 0
        assert "/tokenize" not in {request.path for request in setup.engine.requests}
        assert fetch(setup.url, "GET", "/stats").json()["sizes"]["live_requests"] < 40


def test_no_plan_counts_on_more_than_its_prompt_can_have_cached() -> None:
    """The index estimates lengths, and long words of this engine's tokenizer are shorter than it takes them to be."""
    with followed(POOL) as setup:
        setup.in_state("EXACT")
        blocks = ["Umweltverträglichkeitsprüfungsverfahren " * 12 + str(number) for number in range(4)]
        for _ in range(2):
            answer = setup.ask(blocks, X_Request_Id="named")
        setup.settled()
        seen, prompt = setup.plan("named"), answer.json()["usage"]["prompt_tokens"]
        usable = (prompt - 1) // PAGE * PAGE
        assert seen["engine"]["usable"] == usable and 0 < seen["predicted_cached_tokens"] <= usable
        assert int(str(plan_of(answer)["predicted_cached_tokens"])) > 0
