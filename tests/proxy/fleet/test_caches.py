"""What is said of the caches of several engines together: in ``/stats``, in the log, and by ``prefixpilot top``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache import standing
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.proxy.fleet.engines import _reasons
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool

from ..support import chat, fetch, metric, post_chat, user
from ..watched import until

BLOCKS = [[f"Document {n} of {c}: the library opens at nine on weekdays." * 3 for n in range(3)] for c in "ab"]


@contextmanager
def two_followed() -> Iterator[tuple[RunningProxy, list[EventPublisher]]]:
    with ExitStack() as stack:
        publishers = [EventPublisher() for _ in range(2)]
        fleet = [stack.enter_context(SimulatedEngine(pages=PagePool(400, 16), events=each)) for each in publishers]
        urls = tuple(engine.base_url for engine in fleet)
        settings = ProxySettings(urls[0], engines=urls, port=0, drain_timeout=2, cache=CacheSettings(events="auto"))
        yield stack.enter_context(serve_in_thread(settings)), publishers


def stats(running: RunningProxy) -> dict[str, Any]:
    return dict(fetch(running.url, "GET", "/stats").json())


def caches(running: RunningProxy) -> list[dict[str, Any]]:
    return [engine["engine_cache"] for engine in stats(running)["engines"]]


def pages(running: RunningProxy) -> int:
    return int(stats(running)["engine_cache"]["pages"])


def compared(cache: Mapping[str, Any]) -> int:
    return int(cache["predictions"].get("events", {"compared": 0})["compared"])


def test_top_has_all_of_them_and_says_which_is_known_no_better_and_why(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    caplog.set_level(logging.INFO)
    with two_followed() as (running, publishers):
        assert until(lambda: stats(running)["engine_cache"]["state"] == "EXACT")
        unused = stats(running)["engine_cache"]
        assert unused.items() >= {"state": "EXACT", "reason": "", "followed": True, "pages": 0, "routes": []}.items()
        for n in range(8):
            assert post_chat(running.url, chat([user(f"Question {n}?")], BLOCKS[n % 2])).status == 200
        assert until(lambda: compared(stats(running)["engine_cache"]) == 8)
        assert until(lambda: 0 < pages(running) == sum(cache["pages"] for cache in caches(running)))
        assert sorted(map(compared, caches(running))) == [4, 4]
        assert [route["requests"] for route in stats(running)["engine_cache"]["routes"]] == [8]
        shown = fetch(running.url, "GET", "/metrics").body.decode()
        assert metric(shown, "prefixpilot_engine_pages") == pages(running)
        publishers[1].stop()
        assert until(lambda: stats(running)["engine_cache"]["state"] == "DEGRADED")
        assert until(lambda: stats(running)["engine_cache"]["reason"].startswith("engine 1: "))
        assert main(["top", running.url, "--once"]) == 0
    frame = capsys.readouterr().out
    assert "cache DEGRADED\nbecause engine 1: " in frame
    assert "by events: 8 compared: " in frame
    assert "default chat" in frame and "no route" not in frame
    assert "events     " in frame and "events     none" not in frame
    logged = [record.getMessage() for record in caplog.records if record.name == standing.__name__]
    assert {line.partition(" is known as ")[0] for line in logged} == {"engine 0's cache", "engine 1's cache"}
    assert any(line.startswith("engine 1's cache is known as DEGRADED: ") for line in logged)


def test_equal_reasons_are_said_once_with_all_engines() -> None:
    assert _reasons(["", ""]) == ""
    assert _reasons(["", "off", "lost", "off"]) == "engine 1, 3: off; engine 2: lost"
