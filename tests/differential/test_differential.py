"""Random conversations through the proxy: what reaches the engine keeps invariants 1 to 6 and 9."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.raw_engine import RawEngine

from prefixpilot.proxy import ProxySettings, serve_in_thread

from .faults import Faults
from .mutants import MUTANTS
from .routes import Wire
from .runs import Run, Script, converse

WORTH: dict[Script, tuple[str, ...]] = {
    "blocks": ("kept", "replaced", "pointed", "together", "tools", "retry", "ordered", "truncated"),
    "ordinary": ("kept", "notes", "moved", "rankings", "tools", "retry", "truncated", "elided"),
}


@pytest.mark.parametrize("script", ["blocks", "ordinary"])
def test_conversations(script: Script) -> None:
    run = Run(seed=1)

    @given(st.integers(min_value=0, max_value=10_000))
    @settings(max_examples=250)
    def one(number: int) -> None:
        finding = run.converse(script, number)
        assert finding is None, finding

    one()
    run.close()
    assert run.fail_opens == 0
    assert min(run.seen[what] for what in WORTH[script]) > 5, f"what this is about did not occur: {run.seen}"


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_notices(name: str) -> None:
    mutant = MUTANTS[name]
    run = Run(seed=2, steps=mutant.steps)
    found = (run.converse(mutant.script, number) for number in range(400))
    finding = next((f for f in found if f is not None and f.violation.kind in mutant.kinds), None)
    assert finding is not None, "not within 400 conversations"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Errors are injected by the hundred here, and each is logged with its trace."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("share", [0.02, 0.2])
@pytest.mark.parametrize("script", ["blocks", "ordinary"])
def test_errors_of_ours_lose_nothing(script: Script, share: float, quiet: None) -> None:
    faults = Faults(Random(3), share)
    run = Run(seed=3, steps=faults.steps, strict=False)
    for number in range(80):
        finding = run.converse(script, number)
        assert finding is None, finding
    run.close()
    assert faults.injected > 10
    assert run.fail_opens >= faults.injected / 2


@pytest.mark.parametrize("script", ["blocks", "ordinary"])
def test_on_the_wire(script: Script) -> None:
    seen: Counter[str] = Counter()
    with RawEngine() as engine, serve_in_thread(ProxySettings(engine.url, port=0, drain_timeout=2)) as proxy:
        wire = Wire(proxy.url, engine)
        for number in range(25):
            assert converse(wire, script, 4, number, seen) is None
    assert seen["requests"] > 50
    assert seen["kept"] > 0
