from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixpilot.workloads.overlap import overlap_of
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


STATISTICS = {
    # seen before, seen in session, nearest overlap, first block again
    "zipf-500": (0.819, 0.0, 0.350, 0.534),
    "topical-500": (0.933, 0.0, 0.345, 0.454),
    "sessions-60x8": (0.623, 0.427, 0.289, 0.198),
    "disjoint-300": (0.0, 0.0, 0.0, 0.0),
}
"""Of what the generators make of their defaults; docs/quality.md names the real ones beside them."""


@pytest.mark.parametrize("trace", [zipf(500), topical(500), sessions(60), disjoint(300)], ids=lambda trace: trace.name)
def test_overlap_of_generated_workloads(trace: SyntheticTrace) -> None:
    found = overlap_of(trace.workload())
    figures = found.seen_before, found.seen_in_session, found.nearest_overlap, found.first_block_again
    assert figures == pytest.approx(STATISTICS[trace.name], abs=0.001)


def test_overlap_statistics_count_what_they_say() -> None:
    trace = SyntheticTrace("four", [(0, 1), (1, 0), (2, 3), (0, 3)], [1] * 4, sessions=[0, 0, 1, 1])
    found = overlap_of(trace.workload())
    assert (found.requests, found.blocks_per_request, found.distinct_blocks) == (4, 2, 4)
    assert found.seen_before == (0 + 1 + 0 + 1) / 4
    assert found.seen_in_session == (0 + 1 + 0 + 0.5) / 4
    assert found.nearest_overlap == (0 + 1 + 0 + 0.5) / 4
    assert found.first_block_again == 1 / 4
    assert found.top_tenth == 3 / 8
