from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixpilot.workloads.synthetic import SyntheticTrace, disjoint, sessions, topical, zipf

MAKERS: list[Callable[[int], SyntheticTrace]] = [
    lambda seed: zipf(50, seed=seed),
    lambda seed: topical(200, seed=seed),
    lambda seed: topical(20, seed=seed),
    lambda seed: sessions(5, seed=seed),
    lambda seed: disjoint(10, seed=seed),
]


@pytest.mark.parametrize("make", MAKERS)
def test_same_seed_same_trace_of_distinct_known_blocks(make: Callable[[int], SyntheticTrace]) -> None:
    trace = make(3)
    assert trace == make(3)
    assert trace != make(4)
    assert len({len(context) for context in trace.contexts}) == 1
    for context in trace.contexts:
        assert len(set(context)) == len(context)
        assert all(0 <= block < len(trace.tokens) for block in context)
    assert all(300 <= length <= 1100 for length in trace.tokens)


def test_a_workload_holds_the_same() -> None:
    trace = sessions(4, turns=3)
    workload = trace.workload()
    assert [tuple(b.id for b in e.request.blocks) for e in workload.requests] == list(trace.contexts)
    assert sorted((e.session_id, e.turn) for e in workload.requests) == [
        (f"s{s}", t) for s in range(4) for t in range(3)
    ]
    assert workload.requests[0].request.blocks[0].tokens == trace.tokens[trace.contexts[0][0]]
    workload.as_conversations()


def test_topical_requests_take_most_blocks_from_one_topic_of_60() -> None:
    trace = topical(600)
    near = [[len(set(a) & set(b)) for b in trace.contexts] for a in trace.contexts[:20]]
    assert all(sum(shared >= 2 for shared in row) > 10 for row in near)
    assert len(trace.tokens) == 600


def test_disjoint_requests_share_nothing() -> None:
    trace = disjoint(10)
    assert len({block for context in trace.contexts for block in context}) == len(trace.tokens) == 50
