"""The fast linkage equals the specification, ties and rounding included."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BlockId
from prefixpilot.distance.pairwise import pairwise_distances, sparse_distances
from prefixpilot.index.linkage import Merge, average_linkage, average_linkage_specification
from prefixpilot.index.sparse_linkage import link_contexts, sparse_average_linkage


@given(st.lists(contexts, min_size=1, max_size=14), st.data())
def test_linkage_of_contexts(many: list[list[BlockId]], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=len(many), max_size=len(many)))
    matrix = pairwise_distances(many)
    expected = average_linkage_specification(matrix.tolist(), sizes)
    assert average_linkage(matrix, sizes) == expected


@given(st.integers(1, 12), st.data())
def test_linkage_of_any_matrix_with_many_ties(n: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 1.0]), min_size=n * n, max_size=n * n))
    matrix = np.array(values).reshape(n, n)
    matrix = np.minimum(matrix, matrix.T)
    np.fill_diagonal(matrix, 0.0)
    expected = average_linkage_specification(matrix.tolist(), [1] * n)
    assert average_linkage(matrix, [1] * n) == expected


@pytest.mark.parametrize("seed", range(4))
def test_linkage_of_more_contexts_that_is_made_smaller_on_the_way(seed: int) -> None:
    chance = random.Random(seed)
    many: list[list[BlockId]] = [chance.sample(range(25), chance.randrange(1, 9)) for _ in range(70)]
    matrix = pairwise_distances(many)
    sizes = [chance.randrange(1, 4) for _ in many]
    expected = average_linkage_specification(matrix.tolist(), sizes)
    assert average_linkage(matrix, sizes) == expected


def sparse(many: list[list[BlockId]], sizes: list[int], few: int, alpha: float = 0.001) -> list[Merge]:
    distances = sparse_distances(many, alpha)
    assert distances is not None
    return sparse_average_linkage(distances, sizes, few)


@given(st.lists(contexts, min_size=1, max_size=14), st.integers(0, 8), st.sampled_from([0.001, 0.01]), st.data())
def test_linkage_over_stored_pairs(many: list[list[BlockId]], few: int, alpha: float, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=len(many), max_size=len(many)))
    expected = average_linkage_specification(pairwise_distances(many, alpha).tolist(), sizes)
    assert sparse(many, sizes, few, alpha) == expected


@pytest.mark.parametrize("blocks", [200, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_linkage_over_stored_pairs_of_more_contexts_that_moves_them_on_the_way(seed: int, blocks: int) -> None:
    chance = random.Random(seed)
    many: list[list[BlockId]] = [chance.sample(range(blocks), chance.randrange(1, 9)) for _ in range(90)]
    sizes = [chance.randrange(1, 4) for _ in many]
    expected = average_linkage_specification(pairwise_distances(many).tolist(), sizes)
    assert sparse(many, sizes, few=2) == expected == link_contexts(many, sizes, 0.001)


def test_contexts_that_share_nothing_merge_in_their_order() -> None:
    many: list[list[BlockId]] = [[i] for i in range(9)]
    expected = average_linkage_specification(pairwise_distances(many).tolist(), [1] * 9)
    assert sparse(many, [1] * 9, few=2) == expected


@pytest.mark.parametrize("blocks", [20, 400, 20_000])
def test_contexts_whose_matrix_is_made_from_pairs_where_few_share_a_block(blocks: int) -> None:
    """More than those whose matrix is made at once; of 20 blocks nearly all pairs share one, of 20,000 hardly any."""
    chance = random.Random(blocks)
    drawn = {tuple(chance.sample(range(blocks), chance.randrange(1, 9))) for _ in range(320)}
    many: list[list[BlockId]] = [list(context) for context in sorted(drawn)]
    sizes = [chance.randrange(1, 4) for _ in many]
    assert link_contexts(many, sizes, 0.001) == average_linkage(pairwise_distances(many), sizes)


def test_five_thousand_contexts_by_either_way() -> None:
    """Enough for the way of the product to be the sparse one."""
    chance = random.Random(7)
    many: list[list[BlockId]] = [chance.sample(range(20 * (i % 900), 20 * (i % 900) + 21), 4) for i in range(4600)]
    assert link_contexts(many, [1] * 4600, 0.001) == average_linkage(pairwise_distances(many), [1] * 4600)
