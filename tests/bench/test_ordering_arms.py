"""The arms of the ordering benchmark reorder and do nothing else, and its tables can be filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from benchmarks import offline_arms, optimum, ordering, tables
from benchmarks.inputs import Trace, load

from prefixpilot.bench.baselines import reordered
from prefixpilot.core import BatchContext, RequestId
from prefixpilot.planners.bound import spanning_forest_bound
from prefixpilot.workloads.synthetic import disjoint, sessions, topical

TRACES = [Trace(made.workload()) for made in (topical(150), sessions(12), disjoint(30))]


def check(trace: Trace, order: Sequence[BatchContext]) -> None:
    given = {context.request_id: context for context in trace.contexts}
    assert Counter(context.request_id for context in order) == Counter(list(given))
    for context in order:
        assert Counter(zip(context.blocks, context.tokens, strict=True)) == Counter(
            zip(given[context.request_id].blocks, given[context.request_id].tokens, strict=True)
        )
    saved = ordering.hit_rate(order, None) * trace.total_tokens
    assert saved <= spanning_forest_bound(trace.contexts) + 0.001 * trace.total_tokens


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
@pytest.mark.parametrize("arm", ordering.OFFLINE)
def test_offline_arms_permute_requests_and_blocks(arm: str, trace: Trace) -> None:
    check(trace, ordering.OFFLINE[arm](trace.contexts))


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
@pytest.mark.parametrize("arm", ordering.ONLINE)
@pytest.mark.parametrize("capacity", [None, 30_000])
def test_online_arms_permute_blocks_and_keep_requests_in_order(arm: str, trace: Trace, capacity: int | None) -> None:
    order = ordering.ONLINE[arm](trace, capacity)
    check(trace, order)
    assert [c.request_id for c in order] == [c.request_id for c in trace.contexts]


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_longest_prefix_first_moves_requests_only(trace: Trace) -> None:
    order = offline_arms.longest_prefix_first(trace.contexts, 30_000)
    check(trace, order)
    assert {c.request_id: c.blocks for c in order} == {c.request_id: c.blocks for c in trace.contexts}


def test_longest_prefix_first_takes_the_request_with_the_longest_cached_prefix() -> None:
    made = [("a", (1, 2, 3)), ("b", (7, 8)), ("c", (1, 2, 9)), ("d", (1, 5))]
    contexts = [BatchContext(RequestId(name), blocks, (10,) * len(blocks)) for name, blocks in made]
    assert [c.request_id for c in offline_arms.longest_prefix_first(contexts, None)] == ["a", "c", "d", "b"]


def test_the_planner_is_near_the_optimum_and_tables_are_filled() -> None:
    near = optimum.measure(TRACES[0].contexts, draws=2, seed=0)
    assert near["shared tokens"]["mean"] > 0.9
    text = "before\n<!-- optimum -->\nold\n<!-- end -->\nafter\n"
    filled = tables.fill(text)
    assert filled.startswith("before\n<!-- optimum -->\n")
    assert filled.endswith("<!-- end -->\nafter\n")
    measured = ordering.measure(TRACES[2], [4, None])
    assert measured["bound"] == 0
    assert all(rate == 0 for side in ("offline", "online") for rates in measured[side].values() for rate in rates)


def test_without_a_folder_traces_are_generated() -> None:
    assert [t.name for t in load(None, ["disjoint"])] == ["disjoint-1000"]
    assert reordered(TRACES[2].contexts[0], [4, 3, 2, 1, 0]).blocks == (4, 3, 2, 1, 0)
    with pytest.raises(ValueError, match="no permutation"):
        reordered(TRACES[2].contexts[0], [1, 1])
