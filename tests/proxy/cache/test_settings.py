"""Settings of how the engine's cache is known."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.cache.publishers import Publishers
from prefixpilot.proxy.cache.settings import CacheSettings

NAMED = "tcp://*:5557"


def test_all_of_it_is_off_by_default() -> None:
    settings = CacheSettings()
    assert not settings.on
    assert (settings.endpoints, settings.tokens_from) == ((), "off")


@pytest.mark.parametrize(
    ("given", "tokens_from"),
    [
        ({"events": "auto"}, "engine"),
        ({"events": NAMED}, "engine"),
        ({"events": NAMED, "tokenizer": "/models/m"}, "local"),
        ({"events": NAMED, "token_ids": "off"}, "off"),
        ({"token_ids": "engine"}, "engine"),
        ({"tokenizer": "/models/m"}, "local"),
    ],
)
def test_where_token_ids_come_from(given: dict[str, Any], tokens_from: str) -> None:
    settings = CacheSettings(**given)
    assert settings.on and settings.tokens_from == tokens_from


def test_endpoints_and_replays_are_parallel() -> None:
    settings = CacheSettings(events="tcp://a:1, tcp://b:1", replay="tcp://a:2,ipc:///tmp/r")
    assert settings.endpoints == ("tcp://a:1", "tcp://b:1")
    assert settings.replay_endpoints == ("tcp://a:2", "ipc:///tmp/r")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"events": "http://a"}, "events"),
        ({"events": ""}, "events"),
        ({"events": "tcp://h:99999"}, "events"),
        ({"events": "tcp://h:0"}, "events"),
        ({"events": "tcp://h"}, "events"),
        ({"events": "tcp://:5557"}, "events"),
        ({"events": "inproc://a"}, "events"),
        ({"events": "ipc:///tmp/e", "ranks": 2}, "events"),
        ({"events": "tcp://h:65535", "ranks": 2}, "events"),
        ({"events": NAMED, "replay": "tcp://h:65536"}, "replay"),
        ({"events": NAMED, "ranks": "two"}, "ranks"),
        ({"events": NAMED, "replay": "5558"}, "replay"),
        ({"events": NAMED, "replay": "tcp://a:1,tcp://a:2"}, "replay"),
        ({"replay": "nothing"}, "replay"),
        ({"token_ids": "guess"}, "token_ids"),
        ({"token_ids": "local"}, "token_ids"),
        ({"page_size": 0}, "page_size"),
        ({"ranks": 0}, "ranks"),
        ({"max_requests": 0}, "max_requests"),
        ({"tokenize_concurrency": True}, "tokenize_concurrency"),
        ({"tokenize_timeout": 0.0}, "tokenize_timeout"),
        ({"tokenize_timeout": float("nan")}, "tokenize_timeout"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CacheSettings(**given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [("tcp://h:99999", "no number from 1 to 65535"), ("http://h:1", "no ZeroMQ endpoint"), ("tcp://h", "no port")],
)
def test_an_endpoint_that_cannot_be_comes_with_the_reason_and_the_remedy(endpoint: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CacheSettings(events=endpoint)
    assert endpoint in caught.value.reason and reason in caught.value.reason
    assert "--kv-events-config" in caught.value.remedy and "auto" in caught.value.remedy


def test_replays_are_unused_where_no_endpoint_is_named() -> None:
    """With auto the engine lists its own: it starts."""
    cache = CacheSettings(events="auto", replay="tcp://*:5558")
    assert cache.replay_endpoints == ()
    assert Publishers(cache, "http://127.0.0.1:8000").waiting() == ""
    assert CacheSettings(replay="tcp://*:5558").replay_endpoints == ()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"events": "tcp://*:1,tcp://*:1", "replay": "tcp://*:3,tcp://*:4"}, "cache.events"),
        ({"events": "tcp://*:1,tcp://*:2", "replay": "tcp://*:3,tcp://*:3"}, "cache.replay"),
        ({"events": "tcp://*:1,tcp://*:2", "ranks": 2}, "cache.events"),
    ],
)
def test_an_endpoint_that_is_named_twice_for_one_engine_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match="twice for one engine") as caught:
        ProxySettings("http://e:1", cache=CacheSettings(**given))
    assert caught.value.field == field


def test_engines_on_several_hosts_may_name_the_same_wildcard() -> None:
    cache = CacheSettings(events="tcp://*:1,tcp://*:1", replay="tcp://*:2,tcp://*:2")
    settings = ProxySettings("http://a:1", engines=("http://a:1", "http://b:1"), cache=cache)
    assert settings.of_engine(1).cache.endpoints == ("tcp://*:1",)


def test_a_replay_that_cannot_be_is_not_advised_to_be_auto() -> None:
    with pytest.raises(ConfigError) as caught:
        CacheSettings(events=NAMED, replay="auto")
    assert "auto" not in caught.value.remedy and "replay_endpoint" in caught.value.remedy
