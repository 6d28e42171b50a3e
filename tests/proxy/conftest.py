"""A simulated engine and a proxy before it, on real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.testing import SimulatedEngine


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


@pytest.fixture
def proxy(engine: SimulatedEngine) -> Iterator[RunningProxy]:
    with serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2)) as running:
        yield running
