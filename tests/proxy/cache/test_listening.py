"""A source that cannot be opened is tried again, and one that has moved is followed to where it is."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.cache import listening
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool

from ..support import fetch
from .support import PAGE, Followed, followed, texts, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "OPEN_AGAIN_S", (0.05,))
    monkeypatch.setattr(listening, "SILENCE_S", 0.1)


def test_a_port_that_is_taken_is_tried_again_until_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with SimulatedEngine(pages=PagePool(100, PAGE), events=EventPublisher(endpoint)) as engine:
            made = ProxySettings(engine.base_url, port=0, cache=CacheSettings(events=endpoint))
            with serve_in_thread(made) as proxy:
                setup = Followed(engine, engine.pages.pool, None, proxy)  # type: ignore[union-attr]
                stats = until(setup.stats, lambda stats: "cannot be bound here" in stats["reason"])
                assert stats["state"] == "UNKNOWN" and "it is tried again" in stats["reason"]
                assert f"cache.events (--cache-events {endpoint})" in stats["reason"]
                until(setup.stats, lambda stats: len(caplog.records) > 0)
                taken.close()
                until(setup.stats, lambda stats: bool(stats["sources"]) and stats["sources"][0]["connected"])
                for number in range(50):
                    setup.ask(texts(2, 30, seed=number))
                    if setup.stats()["pages"]:
                        break
                assert "tried again" not in setup.stats()["reason"] and setup.stats()["pages"] > 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and errors[0].name == listening.__name__


def move(setup: Followed, publisher: EventPublisher | None) -> None:
    """The engine starts again, and publishes elsewhere, or nowhere."""
    assert setup.engine.pages is not None and setup.publisher is not None
    setup.publisher.stop()
    assert setup.engine.pages.begin_anew()
    setup.engine.pages.publisher = setup.publisher = publisher


@pytest.fixture
def elsewhere() -> Iterator[EventPublisher]:
    with EventPublisher() as publisher:
        yield publisher


def test_a_publisher_that_has_moved_is_found_where_the_engine_lists_it(elsewhere: EventPublisher) -> None:
    with followed(200, events="auto") as setup:
        setup.in_state("EXACT")
        for _ in range(3):
            setup.ask(texts(4, 30), "The same?")
        assert setup.settled()["contexts"] > 0
        move(setup, elsewhere)
        stats = until(setup.stats, lambda stats: [s["source"] for s in stats["sources"]] == [elsewhere.endpoint])
        assert (stats["pages"], stats["contexts"]) == (0, 0)
        stats = setup.in_state("EXACT")
        assert stats["reason"] == "" and fetch(setup.url, "GET", "/stats").json()["sizes"]["live_requests"] == 0
        before = stats["predictions"]["events"]["compared"]
        for _ in range(3):
            setup.ask(texts(4, 30), "The same?")
        stats = setup.settled()
        assert stats["predictions"]["events"]["compared"] == before + 3
        assert stats["predictions"]["events"]["verdicts"] == {"exact": before + 3}
        assert stats["pages"] == setup.pool.named_pages


def test_a_listener_that_has_ended_is_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    """Its thread, by an error of ours: nobody would tell of anything any more."""
    with followed(200) as setup:
        setup.in_state("EXACT")
        setup.ask(texts(4, 30))
        following = setup.proxy.app._engines.all[0].cache
        assert following is not None and following._listening is not None
        ended = following._listening._source
        assert ended is not None
        ended.stop()
        until(setup.stats, lambda stats: following._listening._source not in (None, ended))  # type: ignore[union-attr]
        setup.ask(texts(4, 30, seed=1))
        assert setup.in_state("EXACT")["pages"] == setup.pool.named_pages
    assert any("followed anew" in record.getMessage() for record in caplog.records)


def test_an_engine_that_lists_nothing_any_more_is_told_so(elsewhere: EventPublisher) -> None:
    with followed(200, events="auto") as setup:
        setup.in_state("EXACT")
        setup.ask(texts(4, 30))
        move(setup, None)
        stats = until(setup.stats, lambda stats: "lists no publisher of events" in stats["reason"])
        assert stats["state"] in ("DEGRADED", "UNKNOWN") and "no connection" in stats["reason"]
        assert "see that the engine runs" not in stats["reason"]
        assert setup.engine.pages is not None
        setup.engine.pages.publisher = setup.publisher = elsewhere
        until(setup.stats, lambda stats: [s["source"] for s in stats["sources"]] == [elsewhere.endpoint])
        assert setup.in_state("EXACT")["reason"] == ""


def test_one_that_is_only_away_is_waited_for(elsewhere: EventPublisher) -> None:
    """The engine lists the same as before, or does not answer at all."""
    with followed(200, events="auto") as setup:
        setup.in_state("EXACT")
        setup.ask(texts(4, 30))
        assert setup.publisher is not None
        setup.publisher.stop()
        setup.in_state("DEGRADED")
        lists = [request.path for request in setup.engine.requests].count("/kv_event_sources")

        def asked() -> dict[str, int]:
            return {"times": [request.path for request in setup.engine.requests].count("/kv_event_sources")}

        until(asked, lambda seen: seen["times"] > lists + 1)
        assert setup.stats()["pages"] > 0
        setup.publisher.start()
        assert setup.in_state("EXACT")["pages"] == setup.pool.named_pages
