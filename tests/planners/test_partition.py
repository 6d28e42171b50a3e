"""Parts of a batch: a permutation, equal contexts together, even, and nearly nothing lost by planning them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planners.oracle import saved_tokens
from tests.properties.strategies import contexts

from prefixpilot.core import BatchContext, BlockId, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.planners.partition import partition
from prefixpilot.planners.shared_tokens import plan_shared_tokens
from prefixpilot.workloads.synthetic import topical


def batch_of(many: list[list[BlockId]]) -> list[BatchContext]:
    return [BatchContext(RequestId(str(i)), tuple(c), (10,) * len(c)) for i, c in enumerate(many)]


@given(st.lists(contexts, max_size=16), st.integers(1, 5), st.sampled_from([1, 2, 1024]))
def test_each_context_is_in_one_part_and_equal_ones_in_the_same(
    many: list[list[BlockId]], parts: int, group: int
) -> None:
    found = partition(batch_of(many), parts, group)
    assert sorted(position for part in found for position in part) == list(range(len(many)))
    assert len(found) <= parts
    assert all(part == sorted(part) and part for part in found)
    where = {position: i for i, part in enumerate(found) for position in part}
    for one, blocks in enumerate(many):
        assert {where[other] for other, more in enumerate(many) if set(more) == set(blocks)} == {where[one]}


def test_contexts_that_share_nothing_are_dealt_out_evenly() -> None:
    batch = batch_of([[i] for i in range(100)])
    found = partition(batch, 4)
    tokens = [sum(sum(batch[i].tokens) for i in part) for part in found]
    assert len(found) == 4
    assert max(tokens) < 1.5 * min(tokens)


def test_what_shares_a_block_stays_together() -> None:
    many: list[list[BlockId]] = [[1000 + i % 4, i] for i in range(80)]
    found = partition(batch_of(many), 4)
    assert sorted({many[i][0] for i in part} for part in found) == [{1000}, {1001}, {1002}, {1003}]


@pytest.mark.no_cover
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_planned_apart_save_what_the_whole_saves(parts: int) -> None:
    trace = topical(4_000)
    batch = [
        BatchContext(RequestId(str(i)), blocks, tuple(trace.tokens[b] for b in blocks))
        for i, blocks in enumerate(trace.contexts)
    ]
    whole = saved_tokens(plan_shared_tokens(batch, lambda block: block))
    found = partition(batch, parts)
    assert len(found) == parts
    apart = sum(saved_tokens(plan_shared_tokens([batch[i] for i in part], lambda block: block)) for part in found)
    assert apart > 0.97 * whole  # the larger the parts, the nearer: 8 of 12,500 save .9999
    tokens = [sum(sum(batch[i].tokens) for i in part) for part in found]
    assert max(tokens) < 1.2 * sum(tokens) / parts


@pytest.mark.parametrize(("parts", "group"), [(0, 1), (1, 0), (True, 1)])
def test_bad_numbers(parts: int, group: int) -> None:
    with pytest.raises(ConfigError, match="is "):
        partition([], parts, group)
