"""The fast distance equals the specification, bit for bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BlockId
from prefixpilot.distance import distance, overlap
from prefixpilot.distance.pairwise import pairwise_distances, sparse_distances

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


@given(st.lists(maybe_empty, max_size=12), alphas, st.integers(1, 9))
def test_stored_pairs_are_those_that_share_a_block(many: list[list[BlockId]], alpha: float, chunk: int) -> None:
    stored = sparse_distances(many, alpha, chunk=chunk)
    assert stored is not None
    found = {}
    for i in range(len(many)):
        own = slice(stored.ends[i], stored.ends[i + 1])
        assert sorted(stored.columns[own]) == list(stored.columns[own])
        found.update({(i, int(j)): d for j, d in zip(stored.columns[own], stored.values[own], strict=True)})
    pairs = [(i, j) for i in range(len(many)) for j in range(i + 1, len(many)) if set(many[i]) & set(many[j])]
    assert found == {(i, j): distance(many[i], many[j], alpha) for i, j in pairs}
    assert (stored.matrix() == pairwise_distances(many, alpha)).all()


def test_too_many_stored_pairs_are_declined() -> None:
    many: list[list[BlockId]] = [[0, i] for i in range(1, 100)]
    assert sparse_distances(many, most=0.5) is None
    assert sparse_distances(many[:1], most=1.0) is not None
    assert sparse_distances([[i] for i in range(100)], most=0.5) is not None
