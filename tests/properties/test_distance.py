"""The fast distance equals the specification, bit for bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BlockId
from prefixpilot.distance import distance, overlap
from prefixpilot.distance.pairwise import pairwise_distances

alphas = st.floats(0.001, 0.01)
maybe_empty = st.lists(st.integers(0, 9), max_size=6, unique=True)


@given(st.lists(maybe_empty, max_size=12), alphas)
def test_pairwise_equals_the_specification(many: list[list[BlockId]], alpha: float) -> None:
    matrix = pairwise_distances(many, alpha)
    for i, first in enumerate(many):
        for j, second in enumerate(many):
            assert matrix[i, j] == (0.0 if i == j else distance(first, second, alpha))


@given(contexts, contexts, alphas)
def test_distance_is_symmetric_and_bounded(first: list[BlockId], second: list[BlockId], alpha: float) -> None:
    assert distance(first, second, alpha) == distance(second, first, alpha)
    assert 0.0 <= distance(first, second, alpha) <= 1.0 + alpha * max(len(first), len(second))
    assert distance(first, first, alpha) == 0.0


@given(contexts, contexts, alphas)
def test_the_exact_form_agrees_with_floats(first: list[BlockId], second: list[BlockId], alpha: float) -> None:
    measured = overlap({block: i for i, block in enumerate(first)}, second)
    assert abs(float(measured.exact(alpha)) - measured.distance(alpha)) < 1e-8


@pytest.mark.parametrize("k", [1, 40, 1000])
def test_pairwise_of_long_contexts_in_opposite_order_and_of_a_block_that_all_hold(k: int) -> None:
    many: list[list[BlockId]] = [[*range(k)], [*reversed(range(k))], [0]]
    many += [[0, *range(k + i * 3, k + i * 3 + 3)] for i in range(40)]
    matrix = pairwise_distances(many)
    expected = [[0.0 if a is b else distance(a, b) for b in many] for a in many]
    assert matrix.tolist() == expected
