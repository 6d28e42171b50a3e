"""The kernels in C do what NumPy does, on inputs larger than the specification takes; what does not fit they refuse.

Left out on a pure build, where there are none.
"""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BlockId
from prefixpilot.distance import pairwise
from prefixpilot.distance.pairwise import sparse_distances
from prefixpilot.index import linkage, sparse_linkage
from prefixpilot.index.linkage import average_linkage
from prefixpilot.index.sparse_linkage import link_contexts, sparse_average_linkage
from prefixpilot.planners import agglomerate as planner
from prefixpilot.planners.agglomerate import LOSSES, agglomerate

pytestmark = pytest.mark.skipif(linkage.kernels is None, reason="a pure build has no kernels")
USERS = (pairwise, linkage, sparse_linkage, planner)


def by_numpy(call: Any, *args: Any) -> Any:
    """What a function returns where there are no kernels."""
    with pytest.MonkeyPatch.context() as patch:
        for module in USERS:
            patch.setattr(module, "kernels", None)
        return call(*args)


def many(seed: int, count: int, blocks: int) -> list[list[BlockId]]:
    """Distinct contexts of 0 to 12 blocks, in topics that overlap: some pairs share much, most nothing."""
    chance = random.Random(seed)
    drawn: dict[frozenset[BlockId], list[BlockId]] = {}
    while len(drawn) < count:
        start = chance.randrange(blocks)
        context: list[BlockId] = [(start + b) % blocks for b in chance.sample(range(20), chance.randrange(13))]
        drawn.setdefault(frozenset(context), context)
    return list(drawn.values())


@pytest.mark.parametrize("blocks", [60, 400, 4000])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_distances_and_merges_of_hundreds_of_contexts(seed: int, blocks: int) -> None:
    batch = many(seed, 600, blocks)
    sizes = [1 + i % 3 for i in range(len(batch))]
    mine, other = sparse_distances(batch), by_numpy(sparse_distances, batch)
    assert mine is not None
    assert all((one == two).all() for one, two in zip(mine, other, strict=True))
    assert link_contexts(batch, sizes, 0.001) == by_numpy(link_contexts, batch, sizes, 0.001)
    for few in (2, 300):
        assert sparse_average_linkage(mine, sizes, few) == by_numpy(sparse_average_linkage, other, sizes, few)
    assert average_linkage(mine.matrix(), sizes) == by_numpy(average_linkage, mine.matrix(), sizes)


@pytest.mark.parametrize("page_size", [1, 16, 700])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_groups_of_hundreds_of_contexts(loss: float, page_size: int) -> None:
    arrays = [np.array(sorted(map(int, context)), dtype=np.int64) for context in many(7, 500, 300)]
    tokens = np.random.default_rng(3).integers(1, 1100, size=300).astype(np.float64)
    assert agglomerate(arrays, tokens, page_size, loss) == by_numpy(agglomerate, arrays, tokens, page_size, loss)


@given(st.lists(contexts, max_size=14), st.sampled_from([1, 16]), st.sampled_from(LOSSES))
def test_the_same_groups(batch: list[list[BlockId]], page_size: int, loss: float) -> None:
    """Blocks in any order, empty contexts, equal ones."""
    arrays = [np.array(context, dtype=np.int64) for context in batch]
    tokens = np.array([50.0 + 37 * block % 91 for block in range(100)])
    assert agglomerate(arrays, tokens, page_size, loss) == by_numpy(agglomerate, arrays, tokens, page_size, loss)


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("columns", [ints(1, 1), ints(2, 1), ints(0, 1), ints(1, 3), ints(1, -1)])
def test_pairs_that_are_none_are_refused(columns: Any) -> None:
    kernel = import_module("prefixpilot.index._linkage")
    out = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.int64), np.empty(2)
    with pytest.raises(ValueError, match="rising"):
        kernel.link_pairs(ints(0, 2, 2, 2), columns, np.ones(2), np.ones(3), 0, *out)
    with pytest.raises(ValueError, match="buffer of 16 bytes, not 32"):
        kernel.link_pairs(ints(0, 0), ints(), np.ones(0), np.ones(3), 0, *out)


def test_rooms_that_are_too_small_are_refused() -> None:
    link = import_module("prefixpilot.index._linkage").link_matrix
    group = import_module("prefixpilot.planners._agglomerate").agglomerate
    count = import_module("prefixpilot.distance._overlaps").pair_sums
    with pytest.raises(ValueError, match="bytes"):
        link(np.ones((3, 3)), np.ones(3), ints(0), ints(0, 0), np.ones(2))
    with pytest.raises(ValueError, match="no clusters"):
        link(np.ones((0, 0)), np.ones(0), ints(), ints(), np.ones(0))
    for flat in (ints(1, 0), ints(0, 2), ints(-1, 0)):
        with pytest.raises(ValueError, match="rising"):
            group(flat, ints(0, 2), np.ones(2), 1, 0.0, ints(0), ints(0), ints(0, 0), ints(0))
    for place, room in ((ints(0, 1), 0), (ints(1, 1), 1), (ints(-1, 1), 1)):
        with pytest.raises(ValueError, match="holders"):
            count(
                0, 2, ints(0, 1, 2), place, ints(1, 0), ints(0, 1), ints(0, 0), 9, *np.zeros((2, room), dtype=np.int64)
            )
