"""Annotation cost, and the gate that lets ordering pay for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Plan, Request
from prefixpilot.config import Annotate
from prefixpilot.core import RequestId, TenantId
from prefixpilot.pilot.forest import TreeKey
from prefixpilot.pilot.gate import Gate


def request(name: str, *ids: int, tokens: int = 100, scope: str = "") -> Request:
    return Request(tuple(ContextBlock(id=i, tokens=tokens) for i in ids), RequestId(name), scope=scope)


def moved(annotate: Annotate) -> Plan:
    pilot = ContextPilot(PilotConfig(annotate=annotate))
    pilot.optimize(request("old", 4, 5, 6))
    return pilot.optimize(request("new", 1, 2, 3, 4, 5, 6))


def test_the_annotation_names_the_most_relevant_only() -> None:
    start = "Please read the context in the following priority order: "
    assert moved("all").order_annotation == (
        f"{start}[Doc 4] > [Doc 5] > [Doc 6] > [Doc 1] > [Doc 2] > [Doc 3] and answer the question."
    )
    assert moved(6).order_annotation == moved("all").order_annotation
    assert moved(2).order_annotation == f"{start}[Doc 4] > [Doc 5], then the rest, and answer the question."
    assert moved(0).order_annotation is None


def test_fewer_labels_cost_less() -> None:
    costs = [moved(m).annotation_tokens for m in (0, 1, 3, 5, "all")]
    assert costs[0] == 0 and costs == sorted(costs)
    assert moved(2).net_cached_tokens == 300 - moved(2).annotation_tokens


def test_where_the_prompt_begins_with_the_blocks_it_would_name_there_is_none() -> None:
    pilot = ContextPilot(PilotConfig(annotate=2))
    pilot.optimize(request("old", 1, 2, 5))
    plan = pilot.optimize(request("new", 1, 2, 3, 4, 5))
    assert (plan.sent, plan.order_annotation) == ((1, 2, 5, 3, 4), None)


def test_the_callers_counter_counts_annotations() -> None:
    pilot = ContextPilot(count_tokens=len)
    pilot.optimize(request("old", 3, 2))
    plan = pilot.optimize(request("new", 2, 3, 2))
    texts = [*(b.location_annotation or "" for b in plan.blocks), plan.order_annotation or ""]
    assert plan.annotation_tokens == sum(map(len, texts)) > 0
    assert pilot.as_given(request("x", 2, 3)).annotation_tokens == 0


def test_a_route_on_which_ordering_pays_is_opened() -> None:
    pilot = ContextPilot(PilotConfig(gate=True))
    pilot.optimize(request("1", 1, 2, 3))
    first = pilot.optimize(request("2", 3, 2, 1))
    assert (first.order, first.order_annotation, first.prefix_len) == ((0, 1, 2), None, 0)
    assert first.gain is not None and first.gain > 0
    second = pilot.optimize(request("3", 2, 1, 3))
    assert second.prefix_len == 3 and second.order_annotation is not None
    assert pilot.optimize(request("4", 2, 1, 3, scope="other")).order_annotation is None


def test_a_route_on_which_annotations_cost_more_than_is_saved_is_left_alone_and_learnt_from() -> None:
    pilot = ContextPilot(PilotConfig(gate=True))
    pilot.optimize(request("0", 1, 2, 3, tokens=5))
    for n in range(20):
        plan = pilot.optimize(request(f"a{n}", 3, 2, 1, tokens=5))
        assert (plan.order, plan.order_annotation) == ((0, 1, 2), None)
    assert plan.prefix_len == 3 and plan.predicted_cached_tokens == 15


def test_proposing_does_not_move_the_gate() -> None:
    pilot = ContextPilot(PilotConfig(gate=True))
    pilot.optimize(request("1", 1, 2, 3))
    for _ in range(3):
        assert pilot.propose(request("2", 3, 2, 1)).order == (0, 1, 2)


def test_a_gate_forgets_gains_and_routes() -> None:
    gate = Gate(max_routes=2)
    keys = [TreeKey(TenantId(name), "") for name in "abc"]
    gate.add(keys[0], 100)
    for _ in range(200):
        gate.add(keys[0], -1)
    assert not gate.is_open(keys[0])
    for key in keys:
        gate.add(key, 1000)
    assert len(gate) == 2
    assert [gate.is_open(key) for key in keys] == [False, True, True]


@pytest.mark.parametrize("gate", [False, True])
def test_a_batch_is_ordered_whatever_the_gate_says(gate: bool) -> None:
    pilot = ContextPilot(PilotConfig(gate=gate))
    pilot.optimize(request("0", 1, 2, 3))
    batch = [request("a", 3, 2, 1), request("b", 8, 9), request("c", 9, 8)]
    plans = [replace(entry.plan, gain=None) for entry in pilot.optimize_batch(batch)]
    assert [plan.sent for plan in plans] == [(1, 2, 3), (8, 9), (8, 9)]
