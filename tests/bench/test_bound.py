"""The bound beside every hit rate."""

from __future__ import annotations

from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.strategies import retrieved

from prefixpilot.bench import Mode, simulate
from prefixpilot.bench.bound import workload_bound
from prefixpilot.core import BlockId, ContextBlock, Request, RequestId
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.workloads import Workload, WorkloadRequest


def workload(many: list[tuple[list[BlockId], str]]) -> Workload:
    entries = []
    for i, (ids, scope) in enumerate(many):
        blocks = tuple(ContextBlock(id=b, tokens=10 + int(b)) for b in ids)
        entries.append(WorkloadRequest(Request(blocks, RequestId(str(i)), scope=scope), str(i), 0, f"test:{i}"))
    return Workload("w", tuple(entries))


@settings(max_examples=60)
@given(st.lists(st.tuples(retrieved, st.sampled_from(["", "m"])), min_size=1, max_size=8))
def test_no_mode_saves_more(many: list[tuple[list[BlockId], str]]) -> None:
    given_workload = workload(many)
    bound = workload_bound(given_workload)
    assert bound is not None
    for mode in get_args(Mode):
        assert simulate(given_workload, mode, RadixPrefixCache(None)).result.cached_tokens <= bound


def test_it_is_reached_where_nothing_stands_in_the_way() -> None:
    assert workload_bound(workload([([1, 2], ""), ([2, 1], ""), ([1, 2], "other")])) == 23


def test_repeated_blocks_count_as_often_as_they_stand() -> None:
    assert workload_bound(workload([([5, 5], ""), ([5, 5, 5], ""), ([5], "")])) == 45


def test_large_workloads_are_left_out() -> None:
    assert workload_bound(workload([([1], "")] * 3), max_requests=2) is None
