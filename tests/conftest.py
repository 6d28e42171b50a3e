"""Fixtures that every room may use: the Hypothesis profile, the tiny model, a real engine that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import prefixpilot
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.engines.models import find_smollm2
from prefixpilot.testing.tiny_model import cut_model

TINY_LAYERS = 2
REPOSITORY = Path(__file__).parents[1]

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("compiled", settings.get_profile("ci"), max_examples=40)
"""The sources went through all of the same examples before; here their compiled form goes through the first of them."""
settings.load_profile("compiled" if prefixpilot.COMPILED else "ci")


UNTRACED = frozenset({"blocks", "formats", "index", "jsontext", "paper", "pieces", "tails", "volatile"})
"""Rooms whose examples reach nearly every line without Hypothesis."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """There, Hypothesis' tests run without the tracer of ``make cov``, which doubles their time."""
    for item in items:
        room = item.path.relative_to(REPOSITORY / "tests").parts[0]
        if item.get_closest_marker("hypothesis") and room in UNTRACED:
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """SmolLM2-135M-Instruct cut to two layers: real tokenizer, template and context; nonsense text.

    Cut once and kept in the git-ignored ``.cache/``, under a name that tells the source's size and the layers.
    """
    source = find_smollm2()
    cache = REPOSITORY / ".cache"
    cache.mkdir(exist_ok=True)
    target = cache / f"{source.stem}-{source.stat().st_size}-{TINY_LAYERS}layers.gguf"
    return target if target.exists() else cut_model(source, target, TINY_LAYERS)


@pytest.fixture(scope="session")
def tiny_engine(tiny_model: Path) -> Iterator[EmbeddedEngine]:
    """llama.cpp on the tiny model. Its cache is shared by all tests: use documents of your own."""
    with EmbeddedEngine(tiny_model) as engine:
        yield engine
