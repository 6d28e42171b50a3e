"""What keeps the cache from being known better is said in words that name the setting, and logged once a change."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from prefixpilot.cache_events import CacheCleared
from prefixpilot.cli import main
from prefixpilot.engines.base import Continuity, EventListener, EventSource, SourceStatus
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.cache import listening, standing
from prefixpilot.proxy.cache.publishers import Publishers
from prefixpilot.proxy.cache.remedies import NOT_LISTED
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.proxy.cache.standing import Standing
from prefixpilot.residency.state import CacheState
from prefixpilot.testing import Respond, SimulatedEngine
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool

from ..support import fetch
from .support import PAGE, contexts, followed, texts, until

WHOLE, ASKING, BROKEN = Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN
SILENT = SourceStatus("tcp://*:1", 0, ASKING, -1, 0, 0, 0, 0, 0, 0, 0, "nothing has come", connected=False)


class Picture:
    """A picture in any state."""

    def __init__(self) -> None:
        self.state = CacheState.UNKNOWN
        self.said = ""

    def why(self) -> str:
        return self.said


class Named:
    """Publishers that have something to say."""

    def __init__(self, waiting: str = "") -> None:
        self._waiting = waiting

    async def source(self, listener: EventListener) -> EventSource:
        raise NotImplementedError

    async def look(self, statuses: Sequence[SourceStatus]) -> bool:
        raise NotImplementedError

    def remedy(self, status: SourceStatus) -> str:
        return "" if status.connected else "see --cache-events"

    def waiting(self) -> str:
        return self._waiting


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if r.name == standing.__name__]


def test_one_line_for_each_change_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    picture = Picture()
    told = Standing(picture, Named())
    told.note(SILENT)
    assert logged(caplog) == []  # it has only begun
    for _ in range(3):
        told.silent([SILENT])
    picture.state = CacheState.EXACT
    for _ in range(3):
        told.changed()
        told.silent([SILENT])
    picture.state = CacheState.DEGRADED
    for _ in range(3):
        told.note(SILENT._replace(batches=3, reason="3 are lost", connected=True))
    assert logged(caplog) == [
        ("WARNING", "the engine's cache is known as UNKNOWN: nothing has come: see --cache-events"),
        ("INFO", "the engine's cache is known as EXACT"),
        ("WARNING", "the engine's cache is known as DEGRADED: 3 are lost"),
    ]


def test_a_reason_of_another_kind_is_logged_once_and_not_at_each_look(caplog: pytest.LogCaptureFixture) -> None:
    picture = Picture()
    told = Standing(picture, Named())
    picture.state = CacheState.DEGRADED
    begun = SILENT._replace(batches=1, continuity=BROKEN, reason="not known what was before", connected=True)
    told.note(begun)
    for lost in range(1, 5):
        told.silent([begun])
        told.silent([begun, begun._replace(rank=1)])
        told.silent([begun._replace(lost=lost, reason=f"{lost} are lost")])
    picture.said = "it may have begun anew"
    told.silent([begun])
    told.silent([begun])
    assert [line.partition("DEGRADED: ")[2] for _, line in logged(caplog)] == [
        "not known what was before",
        "1 are lost",
        "it may have begun anew; not known what was before",
    ]
    caplog.clear()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        picture.said = f"because of {letter}"
        told.silent([begun])
    assert 8 < len(logged(caplog)) <= standing.MOST_LINES


def test_the_first_batch_is_not_logged_as_nothing_has_come(caplog: pytest.LogCaptureFixture) -> None:
    """Without a replay its number tells that there were others before."""
    with EventPublisher(replay=False) as publisher:
        for _ in range(3):
            publisher.publish([CacheCleared()])
        assert publisher.wait_sent(2)
        with followed(100, publisher=None, events=publisher.endpoint) as setup, publisher_of(setup.engine, publisher):
            until(setup.stats, lambda stats: stats["sources"] and stats["sources"][0]["connected"])
            setup.ask(texts(3, 30))
            setup.in_state("DEGRADED")
    (line,) = [message for _, message in logged(caplog) if "DEGRADED" in message]
    assert "nothing has come" not in line and "batches of" in line


def test_reasons_are_put_together_and_bounded() -> None:
    picture = Picture()
    picture.said = "1 of 9 ranks heard"
    sources = [SILENT._replace(reason=f"no {number}", connected=True) for number in (1, 1, 2, 3, 4, 5)]
    told = Standing(picture, Named("the engine is asked")).reason([*sources, SILENT._replace(reason="")])
    assert told == "the engine is asked; 1 of 9 ranks heard; no 1; no 2; no 3; and 2 sources more"
    assert Standing(Picture()).reason([]) == "events are off: what is held is estimated"
    picture.state = CacheState.EXACT
    assert Standing(picture, Named("x")).reason([SILENT]) == ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def follows(events: str, replay: str | None = None, publisher: EventPublisher | None = None) -> Iterator[str]:
    """The URL of a proxy that follows these events of an engine that holds nothing."""
    with SimulatedEngine(pages=PagePool(100, PAGE), events=publisher) as engine:
        cache = CacheSettings(events=events, replay=replay)
        with serve_in_thread(ProxySettings(engine.base_url, port=0, cache=cache)) as proxy:
            yield proxy.url


def reason(url: str, holds: Callable[[str], bool]) -> str:
    """What it says of itself, once that holds; the state is UNKNOWN."""

    def seen() -> dict[str, str]:
        return dict(fetch(url, "GET", "/stats").json()["engine_cache"])

    stats = until(seen, lambda stats: holds(stats["reason"]))
    assert stats["state"] == "UNKNOWN"
    return str(stats["reason"])


def test_a_wrong_endpoint_is_named_with_the_setting_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listening, "SILENCE_S", 0.05)
    port = free_port()
    with follows(f"tcp://*:{port}", f"tcp://*:{port}") as url:
        said = reason(url, lambda text: "nobody answers" in text)
        assert f"nothing has come from tcp://127.0.0.1:{port}: nobody answers there" in said
        assert f"cache.events (--cache-events tcp://*:{port})" in said and "lost" not in said
        until(lambda: {"lines": logged(caplog)}, lambda seen: bool(seen["lines"]))
        monkeypatch.setenv("COLUMNS", "90")
        assert main(["top", url, "--once"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "cache UNKNOWN because nothing has come" in shown and "--kv-events-config" in shown
    lines = logged(caplog)
    assert [level for level, _ in lines] == ["WARNING"] and f"tcp://127.0.0.1:{port}" in lines[0][1]


def test_a_host_that_cannot_be_resolved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that names a host is bound here: no engine can connect to a name that nobody knows."""
    monkeypatch.setattr(listening, "SILENCE_S", 0.05)
    with follows("tcp://no-such-host.invalid:5557") as url:
        said = reason(url, bool)
        assert "the host 'no-such-host.invalid' cannot be resolved" in said and "write tcp://*:PORT" in said


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 70 + ".invalid"])
def test_the_engines_own_host_that_cannot_be_resolved_is_named(name: str) -> None:
    made = Publishers(CacheSettings(events="tcp://*:5557"), f"http://{name}:8000")
    silent = SILENT._replace(source="tcp://*:5557")
    asyncio.run(made.look([silent]))
    assert f"the host '{name}' cannot be resolved" in made.remedy(silent) and "--cache-events" in made.remedy(silent)
    asyncio.run(made.look([silent._replace(connected=True)]))
    assert "resolved" not in made.remedy(silent)


def test_what_helps_is_named_by_its_setting() -> None:
    named, auto = (
        Publishers(CacheSettings(events="tcp://*:1"), "http://e"),
        Publishers(CacheSettings("auto"), "http://e"),
    )
    assert "cache.events (--cache-events tcp://*:1)" in named.remedy(SILENT)
    assert "open its port" in auto.remedy(SILENT) and "--cache-events auto" in auto.remedy(SILENT)
    assert "--cache-replay" in named.remedy(SILENT._replace(connected=True, unanswered=2))
    replayed = Publishers(CacheSettings(events="tcp://*:1", replay="tcp://*:2"), "http://e")
    assert replayed.remedy(SILENT._replace(connected=True, batches=2)) == ""
    assert named.waiting() == ""


def test_what_helps_once_something_has_come() -> None:
    named, replayed = (Publishers(CacheSettings("tcp://*:1", replay), "http://e") for replay in (None, "tcp://*:2"))
    gone = replayed.remedy(SILENT._replace(batches=2))
    assert "see that the engine runs" in gone and "cache.events (--cache-events tcp://*:1)" in gone
    missing = named.remedy(SILENT._replace(connected=True, batches=2))
    assert "cache.replay (--cache-replay" in missing and '"replay_endpoint"' in missing
    garbage = replayed.remedy(SILENT._replace(connected=True, batches=2, lost=2, unreadable=2))
    assert "nothing but the engine publishes" in garbage and "--cache-events tcp://*:1" in garbage


def test_an_engine_that_is_listed_without_a_replay_endpoint_is_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With auto there is no setting for it."""
    monkeypatch.setattr(listening, "SILENCE_S", 0.05)
    with follows("auto", publisher=EventPublisher(replay=False)) as url:
        said = reason(url, lambda text: "without a replay endpoint" in text)
        assert 'give the engine "replay_endpoint"' in said and "--cache-events auto" in said


def test_an_endpoint_that_cannot_be_bound_names_the_setting() -> None:
    """Not the subscriber's own word for it."""
    with follows("tcp://192.0.2.1:5557") as url:
        said = reason(url, bool)
        assert "cache.events (--cache-events tcp://192.0.2.1:5557): " in said and "cannot be bound here" in said
        assert "events.endpoint" not in said


def test_what_is_no_list_of_publishers_is_said_in_words() -> None:
    with SimulatedEngine(fault=Respond(200, b'{"method": "GET", "path": "/kv_event_sources"}')) as engine:
        settings = ProxySettings(engine.base_url, port=0, cache=CacheSettings("auto"))
        with serve_in_thread(settings) as proxy:
            said = reason(proxy.url, bool)
    assert "Error(" not in said and "no JSON object of publishers by rank" in said and '"method"' in said
    assert "name its endpoint: --cache-events tcp://*:5557" in said


def test_auto_says_so_where_the_engine_lists_nothing() -> None:
    with follows("auto") as url:
        said = reason(url, bool)
        assert said == NOT_LISTED and "llama.cpp publishes none" in said


def test_events_that_are_off_are_told_too() -> None:
    with followed(100, events="off", token_ids="engine", page_size=PAGE) as setup:
        assert setup.stats()["reason"] == "events are off: what is held is estimated"


def test_ranks_that_have_told_nothing_yet_are_counted_and_what_the_others_hold_is_known() -> None:
    """One of two publishers never publishes, and cannot be asked."""
    with EventPublisher(replay=False) as quiet, EventPublisher() as publisher:
        both = f"{publisher.endpoint},{quiet.endpoint}"
        with followed(200, publisher=None, events=both) as setup, publisher_of(setup.engine, publisher):
            for blocks in contexts(20, 5, 30):
                assert setup.ask(blocks).status == 200
            stats = setup.in_state("DEGRADED")
            assert "1 of 2 ranks heard" in stats["reason"]
            stats = setup.settled()
            assert stats["predictions"]["events"]["verdicts"].get("exact", 0) >= 18


@contextmanager
def publisher_of(engine: SimulatedEngine, publisher: EventPublisher) -> Iterator[None]:
    assert engine.pages is not None
    engine.pages.publisher, before = publisher, engine.pages.publisher
    try:
        yield
    finally:
        engine.pages.publisher = before


def test_after_a_restart_nothing_is_held_before_the_first_batch_and_the_state_says_how_it_is_known() -> None:
    with followed(400) as setup:
        setup.in_state("EXACT")
        setup.ask(texts(5, 30))
        assert setup.settled()["pages"] > 0
        assert setup.publisher is not None and setup.engine.pages is not None
        assert setup.engine.pages.begin_anew()
        setup.publisher.restart()
        stats = until(setup.stats, lambda stats: stats["pages"] == 0 and stats["state"] == "EXACT")
        assert stats["sources"][0]["restarts"] == 1
        setup.ask(texts(5, 30))
        stats = setup.settled()
        assert stats["predictions"]["events"]["verdicts"] == {"exact": 2} and stats["causes"] == {}
