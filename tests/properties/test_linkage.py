"""The fast linkage equals the specification, ties and rounding included."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BlockId
from prefixpilot.distance.pairwise import pairwise_distances
from prefixpilot.index.linkage import average_linkage, average_linkage_specification


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
