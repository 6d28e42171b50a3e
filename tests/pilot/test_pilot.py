from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.core import BatchContext, RequestId, TenantId
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.planners.shared_tokens import plan_shared_tokens


def ids(name: str, *blocks: int, **fields: Any) -> Request:
    return replace(Request.from_ids(name, blocks), **fields)


def test_tokens_decide_which_prefix_is_heaviest() -> None:
    pilot = ContextPilot()
    light, heavy = ContextBlock("light", tokens=1), ContextBlock("heavy", tokens=100)
    pilot.optimize(Request((light,), RequestId("1")))
    pilot.optimize(Request((heavy,), RequestId("2")))
    plan = pilot.optimize(Request((light, heavy), RequestId("3")))
    assert plan.order == (1, 0)
    assert plan.predicted_cached_tokens == 100


def test_tenants_and_scopes_share_nothing() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("1", 1, 2))
    for fields in ({"tenant": TenantId("other")}, {"scope": "other model"}):
        assert pilot.propose(ids("2", 2, 1, **fields)).prefix_len == 0
    assert pilot.propose(ids("2", 2, 1)).sent == (1, 2)


def test_nothing_is_planned_on_a_prefix_that_was_not_sent() -> None:
    """The paper's insertion would hold {1, 3} as a prefix; only [1] is one."""
    pilot = ContextPilot()
    for name, blocks in (("a", (1, 2, 3)), ("b", (3, 1, 9))):
        pilot.optimize(ids(name, *blocks))
    plan = pilot.optimize(ids("c", 3, 1, 8))
    assert plan.sent[: plan.prefix_len] in {(1, 3), (1,)}
    assert pilot.propose(ids("b", 3, 1, 9)).sent == (1, 3, 9)


def test_a_proposal_is_learnt_only_when_told() -> None:
    pilot = ContextPilot()
    plan = pilot.propose(ids("1", 1, 2))
    assert pilot.live_requests == 0
    pilot.learn(plan)
    assert pilot.propose(ids("2", 2, 1)).prefix_len == 2


def test_eviction_ends_the_match() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("1", 1, 2))
    assert pilot.evict(["1", "unknown"]) == 1
    assert pilot.propose(ids("2", 2, 1)).prefix_len == 0


def test_the_least_recently_used_request_goes_first() -> None:
    pilot = ContextPilot(PilotConfig(max_contexts=2))
    pilot.optimize(ids("1", 1, 10))
    pilot.optimize(ids("2", 2, 20))
    pilot.optimize(ids("1", 1, 10))
    pilot.optimize(ids("3", 3, 30))
    matched = {n: pilot.propose(ids("x", n, n * 10)).prefix_len for n in (1, 2, 3)}
    assert matched == {1: 2, 2: 0, 3: 2}


def test_a_conversation_that_goes_on_keeps_its_leaf_in_use() -> None:
    pilot = ContextPilot(PilotConfig(max_contexts=2))
    pilot.optimize(Request.from_ids("1", [1, 10], "c"))
    pilot.optimize(ids("2", 2, 20))
    pilot.optimize(Request.from_ids("1b", [7], "c"))
    pilot.optimize(ids("3", 3, 30))
    assert pilot.propose(ids("x", 1, 10)).prefix_len == 2
    assert pilot.propose(ids("x", 2, 20)).prefix_len == 0


def test_the_index_holds_no_more_than_the_engines_cache() -> None:
    pilot = ContextPilot(PilotConfig(cache_tokens=10))
    for n in range(20):
        blocks = (ContextBlock("shared", tokens=3), ContextBlock(f"own {n}", tokens=3))
        pilot.optimize(Request(blocks, RequestId(str(n))))
    assert pilot.live_requests == 2


def test_a_request_larger_than_the_cache_is_kept_alone() -> None:
    pilot = ContextPilot(PilotConfig(cache_tokens=1))
    pilot.optimize(ids("1", 1, 2, 3))
    pilot.optimize(ids("2", 4, 5, 6))
    assert pilot.live_requests == 1


def test_mixed_mode_inherits_what_is_cached_and_clusters_the_rest() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("old", 1, 2, 3))
    planned = pilot.optimize_batch([ids("a", 9, 8, 5), ids("b", 4, 2, 1), ids("c", 8, 9, 6)])
    sent = {entry.request.request_id: entry.plan.sent for entry in planned}
    assert sent == {"a": (8, 9, 5), "b": (1, 2, 4), "c": (8, 9, 6)}
    assert {e.request.request_id: e.plan.prefix_len for e in planned} == {"a": 0, "b": 2, "c": 2}


def test_a_batch_keeps_requests_without_blocks_and_across_trees() -> None:
    batch = [ids("e"), ids("a", 1, 2), ids("b", 2, 1, scope="m"), ids("c", 2, 1), ids("d", 1, 3, scope="m")]
    planned = ContextPilot().optimize_batch(batch)
    assert [entry.request.request_id for entry in planned] == ["a", "c", "b", "d", "e"]
    assert planned[-1].plan.blocks == ()


def test_a_batch_larger_than_the_index_is_planned_whole() -> None:
    pilot = ContextPilot(PilotConfig(max_contexts=2))
    planned = pilot.optimize_batch([ids(str(n), n % 3, 10 + n) for n in range(12)])
    assert sorted(entry.position for entry in planned) == list(range(12))
    regions = [entry.plan.sent[0] for entry in planned]
    assert regions == sorted(regions)
    assert pilot.live_requests == 2


def test_turns_of_a_conversation_follow_each_other_in_a_batch() -> None:
    pilot = ContextPilot()
    batch = [Request.from_ids(n, b, c) for n, b, c in (("a1", [1], "a"), ("b1", [2], "b"), ("a2", [1, 3], "a"))]
    planned = pilot.optimize_batch(batch)
    assert [entry.request.request_id for entry in planned] == ["a1", "a2", "b1"]
    assert planned[1].plan.sent == (3,)
    later = pilot.optimize_batch([Request.from_ids("b2", [2], "b"), ids("x", 2)])
    assert [(e.request.request_id, e.position) for e in later] == [("x", 1), ("b2", 0)]


def test_a_batch_may_be_any_iterable() -> None:
    assert len(ContextPilot().optimize_batch(ids(str(n), n) for n in range(3))) == 3


@pytest.mark.parametrize("annotate", [5, "all"])
def test_where_only_repeats_moved_there_is_nothing_to_tell(annotate: Any) -> None:
    batch = ContextPilot(PilotConfig(annotate=annotate)).optimize_batch([ids("a", 0, 0, 1), ids("b", 0, 0, 1)])
    assert [(e.plan.order, e.plan.order_annotation) for e in batch] == [((0, 2, 1), None)] * 2


def test_one_string_is_no_list() -> None:
    with pytest.raises(InvalidRequestError, match="give a list of ids"):
        ContextPilot().evict("r1")
    numbers: Any = [7]
    with pytest.raises(InvalidRequestError, match="holds 7"):
        ContextPilot().evict(numbers)
    nothing: Any = None
    with pytest.raises(InvalidRequestError, match="is None; give a list of ids"):
        ContextPilot().evict(nothing)


def test_a_counter_that_counts_wrongly_is_named() -> None:
    with pytest.raises(ConfigError, match="count_tokens: returned -5"):
        ContextPilot(count_tokens=lambda text: -5).optimize(Request.from_texts("r", ["a"]))


def test_request_ids_of_a_batch_are_distinct() -> None:
    with pytest.raises(InvalidRequestError, match=r"requests\[1\]\.request_id.*'a'"):
        ContextPilot().optimize_batch([ids("a", 1), ids("a", 2)])


def test_a_live_request_id_is_taken_over() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("1", 1, 2))
    pilot.optimize(ids("1", 3, 4))
    assert pilot.live_requests == 1
    assert pilot.propose(ids("x", 1, 2)).prefix_len == 0


def test_a_given_order_with_repeats_is_learnt_up_to_the_repeat() -> None:
    pilot = ContextPilot()
    pilot.learn(pilot.as_given(ids("1", 1, 2, 1, 3)))
    assert pilot.propose(ids("x", 3, 2, 1)).sent == (1, 2, 3)
    assert pilot.propose(ids("x", 3, 2, 1)).prefix_len == 2


def test_forgetting_a_conversation_starts_it_anew() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_ids("1", [1], "c"))
    pilot.forget_conversation("c")
    assert pilot.optimize(Request.from_ids("2", [1], "c")).sent == (1,)


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda s: s.update(version=9), "snapshot.version"),
        (lambda s: s.pop("trees"), "snapshot"),
        (lambda s: s["order_of_use"].clear(), "snapshot.order_of_use"),
        (lambda s: s["trees"][0].pop("scope"), "snapshot.trees[0]"),
        (lambda s: s["trees"][0]["nodes"][0].pop("blocks"), "snapshot"),
        (lambda s: s["trees"][0]["nodes"][0].update(parent=5), "snapshot.nodes[0].parent"),
        (lambda s: s["trees"][0]["nodes"][0].update(tokens=[1]), "snapshot.nodes[0].tokens"),
        (lambda s: s["trees"][0]["nodes"][0].update(tokens=["a", 1, 1]), "snapshot.nodes[0].tokens"),
        (lambda s: s["trees"][0]["nodes"][0].update(tokens=[1, -1, 1]), "snapshot.nodes[0].tokens"),
        (lambda s: s["trees"][0]["nodes"][0].update(requests=[1]), "snapshot.nodes[0].requests"),
        (lambda s: s["trees"][0]["nodes"][0].update(frequency=float("inf")), "snapshot"),
        (lambda s: s["trees"][0].update(alpha=float("nan")), "snapshot"),
        (lambda s: s["trees"].append(s["trees"][0]), "snapshot.trees[1]"),
        (lambda s: s.update(order_of_use=[1]), "snapshot.order_of_use"),
    ],
)
def test_a_damaged_snapshot_is_refused_whole(damage: Any, field: str) -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("1", 1, 2, 3))
    snapshot = pilot.snapshot()
    damage(snapshot)
    fresh = ContextPilot()
    with pytest.raises(InvalidRequestError) as caught:
        fresh.restore(snapshot)
    assert caught.value.field == field
    assert fresh.live_requests == 0


def test_a_snapshot_needs_an_empty_pilot() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("1", 1))
    with pytest.raises(InvalidRequestError, match="not empty"):
        pilot.restore(pilot.snapshot())


def test_equal_plans_in_every_process() -> None:
    code = (
        "from prefixpilot import *\n"
        "p = ContextPilot()\n"
        "texts = [[f'text {(i * j) % 11}' for j in range(1, 7)] for i in range(1, 12)]\n"
        "for e in p.optimize_batch([Request.from_texts(str(i), t) for i, t in enumerate(texts)]):\n"
        "    print(e.position, e.plan)\n"
        "print(p.optimize(Request.from_texts('x', ['text 3', 'text 1', 'text 2'])))\n"
    )
    outputs = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1 and next(iter(outputs))


@pytest.mark.parametrize("count", [1, 1000])
def test_extreme_contexts(count: int) -> None:
    pilot = ContextPilot()
    same = pilot.optimize_batch([ids(f"s{n}", *range(count)) for n in range(50)])
    assert {entry.plan.sent for entry in same} == {tuple(range(count))}
    assert pilot.optimize(ids("x", *reversed(range(count)))).prefix_len == count


@pytest.mark.parametrize(("planner", "matcher"), [("shared-tokens", "prefix"), ("paper", "prefix"), ("paper", "paper")])
def test_progress_counts_every_request_once(planner: Any, matcher: Any) -> None:
    pilot = ContextPilot(PilotConfig(planner=planner, matcher=matcher))
    pilot.optimize(ids("old", 1, 2, 3))
    batch = [ids("e"), ids("a", 1, 9), *(ids(f"n{n}", 5, 6, n % 2 + 10) for n in range(8)), ids("s", 1, 2, scope="m")]
    batch += [Request.from_ids(name, [7], "c") for name in ("c1", "c2")]
    steps: list[int] = []
    pilot.optimize_batch(batch, steps.append)
    assert sum(steps) == len(batch) and min(steps) > 0 and len(steps) > 2


def test_progress_comes_as_groups_are_planned() -> None:
    contexts = [BatchContext(RequestId(str(n)), (n % 4, 10 + n), (1, 1)) for n in range(40)]
    steps: list[int] = []
    plan_shared_tokens(contexts, lambda block: block, whole=10, part=10, on_planned=steps.append)
    assert sum(steps) == 40 and len(steps) == 4


def test_a_batch_is_proposed_with_what_it_sends_itself_and_nothing_is_learnt() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("old", 1, 2, 3))
    before = pilot.snapshot()
    batch = [ids("a", 9, 8, 5), ids("b", 7, 4, 2, 1), ids("c", 8, 9, 6), ids("d", 4, 1, 2), ids("e")]
    planned = pilot.propose_batch(batch)
    assert {e.request.request_id: e.plan.sent for e in planned} == {
        "a": (8, 9, 5),
        "b": (1, 2, 7, 4),
        "c": (8, 9, 6),
        "d": (1, 2, 4),
        "e": (),
    }
    assert {str(e.request.request_id): e.plan.prefix_len for e in planned} == {"a": 0, "b": 2, "c": 2, "d": 2, "e": 0}
    assert sorted(e.position for e in planned) == [0, 1, 2, 3, 4]
    assert pilot.snapshot() == before


def test_a_proposed_batch_inherits_from_its_own_earlier_requests() -> None:
    pilot = ContextPilot()
    pilot.optimize(ids("old", 1, 2))
    planned = pilot.propose_batch([ids("a", 1, 2, 3, 4), ids("b", 4, 3, 2, 1)])
    assert [(e.plan.sent, e.plan.prefix_len) for e in planned] == [((1, 2, 3, 4), 2), ((1, 2, 3, 4), 4)]


def test_a_proposed_batch_leaves_closed_routes_as_given() -> None:
    pilot = ContextPilot(PilotConfig(gate=True))
    planned = pilot.propose_batch([ids("a", 1, 2, 3), ids("b", 3, 2, 1)])
    assert [(e.plan.sent, e.plan.order_annotation) for e in planned] == [((1, 2, 3), None), ((3, 2, 1), None)]


def test_request_ids_of_a_proposed_batch_are_distinct() -> None:
    with pytest.raises(InvalidRequestError, match="request_id"):
        ContextPilot().propose_batch([ids("a", 1), ids("a", 2)])


def sized(name: str, *blocks: int) -> Request:
    return Request(tuple(ContextBlock(id=block, tokens=100) for block in blocks), RequestId(name))


def test_an_index_that_is_told_its_size_keeps_no_more_of_it() -> None:
    pilot = ContextPilot()
    for number in range(10):
        pilot.optimize(sized(f"r{number}", 10 * number, 10 * number + 1))
    assert pilot.live_requests == 10
    pilot.resize(600)
    assert pilot.live_requests == 3
    assert pilot.propose(sized("new", 91, 90)).prefix_len == 2, "the latest stay"
    assert pilot.propose(sized("old", 1, 0)).prefix_len == 0
    pilot.resize(None)
    for number in range(10, 20):
        pilot.optimize(sized(f"r{number}", 10 * number, 10 * number + 1))
    assert pilot.live_requests == 13
    pilot.check_invariants()


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, "9"])
def test_a_size_that_is_none_is_refused_and_changes_nothing(tokens: Any) -> None:
    pilot = ContextPilot()
    pilot.optimize(sized("r", 1, 2))
    with pytest.raises(InvalidRequestError, match="give an int of 1 or more, or None"):
        pilot.resize(tokens)
    assert pilot.live_requests == 1


def test_an_empty_engine_leaves_no_prefix_and_what_was_learnt() -> None:
    pilot = ContextPilot()
    for number in range(4):
        pilot.optimize(sized(f"r{number}", 1, 2, number + 5))
    assert pilot.evict_all() == 4
    assert (pilot.live_requests, pilot.evict_all()) == (0, 0)
    assert pilot.propose(sized("new", 2, 1)).prefix_len == 0
    assert not pilot.evict(["r1"])
    pilot.check_invariants()
