"""Which side binds, where ranks are, and what an engine says of its publishers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.engines.endpoints import (
    EventEndpoint,
    check_endpoint,
    discover,
    engine_binds,
    rank_address,
    read_sources,
    seen_from_here,
)
from prefixpilot.errors import ConfigError, EngineError
from prefixpilot.testing import Respond, SimulatedEngine


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://[::1]:5557", True),
        ("ipc:///run/kv", True),
        ("inproc://kv", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://proxy:5557", False),
    ],
)
def test_the_engines_rule(endpoint: str, binds: bool) -> None:
    assert engine_binds(endpoint) is binds
    assert EventEndpoint(endpoint).we_connect is binds
    assert EventEndpoint(endpoint, connect=not binds).we_connect is not binds


def test_a_rank_is_a_port_further_on() -> None:
    assert rank_address("tcp://*:5557", 0) == "tcp://*:5557"
    assert rank_address("tcp://*:5557", 3) == "tcp://*:5560"


def test_a_wildcard_is_seen_at_the_engines_host() -> None:
    assert seen_from_here("tcp://*:5557", "gpu-1") == "tcp://gpu-1:5557"
    assert seen_from_here("tcp://[::]:5557", "fe80::1") == "tcp://[fe80::1]:5557"
    assert seen_from_here("tcp://10.0.0.4:5557", "gpu-1") == "tcp://10.0.0.4:5557"
    assert seen_from_here("ipc:///run/kv", "gpu-1") == "ipc:///run/kv"


@pytest.mark.parametrize(
    "wrong",
    [
        EventEndpoint("localhost:5557"),
        EventEndpoint("inproc://kv"),
        EventEndpoint("tcp://localhost"),
        EventEndpoint("tcp://localhost:x"),
        EventEndpoint("tcp://localhost:0"),
        EventEndpoint("tcp://localhost:65536"),
        EventEndpoint("tcp://localhost:65535", ranks=2),
        EventEndpoint("tcp://:5557"),
        EventEndpoint("tcp://*:5557", replay="5558"),
        EventEndpoint("tcp://*:5557", ranks=0),
        EventEndpoint("ipc:///run/kv", ranks=2),
    ],
)
def test_what_cannot_be_used_is_named(wrong: EventEndpoint) -> None:
    with pytest.raises(ConfigError, match=r"events\.(endpoint|replay|ranks)"):
        check_endpoint(wrong)


def test_what_can_be_used_passes() -> None:
    for endpoint in (EventEndpoint("tcp://*:5557", "tcp://*:6557", ranks=8), EventEndpoint("ipc:///run/kv")):
        assert check_endpoint(endpoint) is endpoint


def sources(**more: Any) -> dict[str, Any]:
    return {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv", **more}


def test_an_engine_names_a_publisher_for_each_rank() -> None:
    body = {"10": sources(endpoint="tcp://*:5567", replay_endpoint=None), "2": sources(), "3": {"publisher": "null"}}
    assert read_sources(json.dumps({k: {**sources(), **v} for k, v in body.items()}).encode(), "gpu-1") == (
        EventEndpoint("tcp://*:5557", "tcp://*:5558", "kv", host="gpu-1"),
        EventEndpoint("tcp://*:5567", None, "kv", host="gpu-1"),
    )
    assert read_sources(b"{}", "gpu-1") == ()


@pytest.mark.parametrize(
    "body",
    [b"", b"[1]", b'{"a": {}}', b'{"0": 1}', b'{"0": {}}', b"[" * 100_000, b'{"0": {"endpoint": "x"}}']
    + [json.dumps({"0": sources(**{key: 1})}).encode() for key in ("endpoint", "replay_endpoint", "topic")],
)
def test_another_answer_is_an_engine_error(body: bytes) -> None:
    with pytest.raises(EngineError, match="kv_event_sources"):
        read_sources(body, "gpu-1")


def test_an_engine_that_does_not_know_the_question_has_none() -> None:
    with SimulatedEngine(fault=Respond(404, b"{}")) as engine:
        assert discover(engine.base_url + "/v1") == ()
        assert [r.path for r in engine.requests] == ["/kv_event_sources"]


def test_no_engine_is_an_engine_error() -> None:
    with SimulatedEngine() as engine:
        url = engine.base_url
    with pytest.raises(EngineError, match="kv_event_sources"):
        discover(url, timeout_s=1.0)
