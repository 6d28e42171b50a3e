"""A simulated engine, and the official client in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from prefixpilot.testing import SimulatedEngine


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as running:
        yield running


@pytest.fixture
def client(engine: SimulatedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0, timeout=10) as made:
        yield made
