"""Distances that are counted on another device equal those of NumPy, bit for bit.

The counting is the same with any module of arrays: NumPy stands for it here, and PyTorch on the CPU where it is
installed. It has not been run on a GPU.
"""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import ContextPilot, PilotConfig, Request
from prefixpilot.core import BlockId
from prefixpilot.distance.device import Device, pair_sums
from prefixpilot.distance.pairwise import distances_on, pairwise_distances
from prefixpilot.errors import ConfigError, MissingExtraError
from prefixpilot.index.linkage import average_linkage
from prefixpilot.index.sparse_linkage import link_contexts

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
contexts = st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), min_size=1, max_size=12)


@given(contexts, st.sampled_from([0.001, 0.01]))
def test_counted_elsewhere_the_distances_are_the_same(many: list[list[BlockId]], alpha: float) -> None:
    assert (distances_on(Device(np, "cpu"), many, alpha).matrix() == pairwise_distances(many, alpha)).all()


@pytest.mark.parametrize("cells", [1, 7, 1 << 20])
def test_some_contexts_at_a_time(cells: int) -> None:
    padded = np.array([[0, 1, -1], [1, 2, 0], [3, -1, -1], [0, 3, 1]])
    parts = list(pair_sums(padded, 10, Device(np, "cpu"), cells))
    assert len(parts) == (1 if cells == 1 << 20 else 4)
    found = {int(c): int(s) for part in parts for c, s in zip(part.cells, part.sums, strict=True)}
    assert found == {1: 20 + 3, 3: 20 + 1, 7: 20 + 4, 11: 10 + 1}


@needs_torch
@pytest.mark.filterwarnings("default")
def test_merges_and_plans_by_torch_are_those_of_numpy() -> None:
    chance = random.Random(3)
    many: list[list[BlockId]] = [chance.sample(range(60), chance.randrange(1, 9)) for _ in range(300)]
    unique = [list(c) for c in dict.fromkeys(map(tuple, many))]
    sizes = [chance.randrange(1, 4) for _ in unique]
    expected = average_linkage(pairwise_distances(unique), sizes)
    assert link_contexts(unique, sizes, 0.001, "cpu") == expected
    requests = [Request.from_ids(str(i), ids) for i, ids in enumerate(many)]
    here = ContextPilot(PilotConfig(planner="paper"))
    there = ContextPilot(PilotConfig(planner="paper", device="cpu", device_from=1))
    assert there.optimize_batch(requests) == here.optimize_batch(requests)


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_torch_the_remedy_is_named_and_small_batches_do_not_ask() -> None:
    requests = [Request.from_ids(str(i), [1, i]) for i in range(2, 6)]
    with pytest.raises(MissingExtraError, match=r"prefixpilot\[gpu\]"):
        ContextPilot(PilotConfig(planner="paper", device="cuda", device_from=4)).optimize_batch(requests)
    assert len(ContextPilot(PilotConfig(planner="paper", device="cuda", device_from=5)).optimize_batch(requests)) == 4


@pytest.mark.parametrize("bad", [{"device": ""}, {"device": 3}, {"device_from": 0}])
def test_settings_that_cannot_be_used(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PilotConfig(**bad)  # type: ignore[arg-type]
