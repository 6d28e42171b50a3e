"""Constraints on the order hold in every plan, whichever way it was made."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import Constraints, ContextBlock, ContextPilot, PilotConfig, Plan, Request
from prefixpilot.constraints import displacement
from prefixpilot.core import BlockId, RequestId
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.ordering import Arranger
from prefixpilot.prefix_cache import RadixPrefixCache, Segment, replay

WAYS = [("shared-tokens", "prefix"), ("paper", "prefix"), ("paper", "paper")]


def holds(constraints: Constraints, count: int, order: tuple[int, ...], limit: int | None) -> bool:
    """Whether an order keeps the constraints: the specification."""
    place = {position: i for i, position in enumerate(order)}
    units = constraints.units(count)
    whole = all(place[b] == place[a] + 1 for group in constraints.groups for a, b in itertools.pairwise(group))
    first = order[: len(units.first)] == tuple(units.first)
    last = not units.last or order[-len(units.last) :] == tuple(units.last)
    bound = constraints.max_displacement
    if bound is None and limit is not None:
        bound = max(limit, displacement(units.order))
    return whole and first and last and (bound is None or displacement(order) <= bound)


@st.composite
def constrained(draw: st.DrawFn, most: int = 7, distinct: bool = False) -> tuple[list[int], Constraints]:
    """Blocks, and constraints that do not contradict each other."""
    ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=most, unique=distinct))
    count = len(ids)
    cuts = sorted(draw(st.sets(st.integers(0, count), max_size=4)))
    runs = [tuple(range(a, b)) for a, b in itertools.pairwise(cuts) if b > a]
    groups = tuple(run for run in runs if draw(st.booleans()))
    heads = [u[0] for u in Constraints(groups).units(count).middle]
    tails = [u[-1] for u in Constraints(groups).units(count).middle]
    first = draw(st.none() | st.sampled_from(heads))
    last = draw(st.none() | st.sampled_from(tails))
    limit = draw(st.none() | st.integers(0, 6))
    try:
        pinned = Constraints(groups, None, first, last)
        needed = displacement(pinned.units(count).order)
    except InvalidRequestError:
        pinned, needed = Constraints(groups), 0
    bound = None if limit is None else max(limit, needed)
    return ids, Constraints(groups, bound, pinned.first, pinned.last)


def request_of(name: str, ids: list[int], constraints: Constraints) -> Request:
    blocks = tuple(ContextBlock(id=i, tokens=10 + i) for i in ids)
    return Request(blocks, RequestId(name), constraints=constraints)


@given(st.lists(constrained(), max_size=8), st.sampled_from(WAYS), st.none() | st.integers(0, 3), st.booleans())
def test_every_plan_keeps_them(
    many: list[tuple[list[int], Constraints]], way: tuple[Any, Any], limit: int | None, batch: bool
) -> None:
    pilot = ContextPilot(PilotConfig(planner=way[0], matcher=way[1], max_displacement=limit))
    requests = [request_of(str(i), ids, c) for i, (ids, c) in enumerate(many)]
    half = len(requests) // 2 if batch else len(requests)
    plans = [(r, pilot.optimize(r)) for r in requests[:half]]
    plans += [(e.request, e.plan) for e in pilot.optimize_batch(requests[half:])]
    plans += [(r, pilot.as_given(r)) for r in requests]
    for request, plan in plans:
        assert sorted(plan.order) == list(range(len(request.blocks)))
        assert holds(request.constraints, len(request.blocks), plan.order, limit)
    pilot.check_invariants()


@given(st.lists(constrained(), max_size=8), st.sampled_from(WAYS[:2]), st.booleans())
def test_what_is_predicted_is_hit(many: list[tuple[list[int], Constraints]], way: tuple[Any, Any], batch: bool) -> None:
    pilot = ContextPilot(PilotConfig(planner=way[0], matcher=way[1]))
    requests = [request_of(str(i), ids, c) for i, (ids, c) in enumerate(many)]
    plans = [e.plan for e in pilot.optimize_batch(requests)] if batch else [pilot.optimize(r) for r in requests]
    found = replay(RadixPrefixCache(None), map(prompt, plans)).accesses
    for access, plan in zip(found, plans, strict=True):
        assert access.cached_tokens >= (plan.predicted_cached_tokens or 0)


def prompt(plan: Plan) -> list[Segment]:
    return [Segment(b.location_annotation or b.block_id, 5 if b.location_annotation else b.tokens) for b in plan.blocks]


@given(constrained(most=6), st.data())
def test_the_nearest_order_is_allowed_and_an_allowed_one_stays(
    case: tuple[list[int], Constraints], data: st.DataObject
) -> None:
    ids, constraints = case
    arranger = Arranger(constraints, ids)
    wish = tuple(data.draw(st.permutations(range(len(ids)))))
    assert holds(constraints, len(ids), arranger.nearest(wish), None)
    if holds(constraints, len(ids), wish, None):
        assert arranger.nearest(wish) == wish


@given(constrained(most=6), st.data())
def test_the_nearest_order_has_the_wished_units_as_early_as_any_allowed_one(
    case: tuple[list[int], Constraints], data: st.DataObject
) -> None:
    ids, constraints = case
    wish = tuple(data.draw(st.permutations(range(len(ids)))))
    unit_of = {p: unit for unit in constraints.units(len(ids)).middle for p in unit}
    wished = {p: min(map(wish.index, unit)) for p, unit in unit_of.items()}
    allowed = [order for order in itertools.permutations(range(len(ids))) if holds(constraints, len(ids), order, None)]
    best = min(allowed, key=lambda order: [wished[p] for p in order if p in wished])
    assert Arranger(constraints, ids).nearest(wish) == best


@given(constrained(most=6, distinct=True), st.lists(st.permutations(range(6)), max_size=4))
def test_the_heaviest_prefix_that_is_allowed_is_found(
    case: tuple[list[int], Constraints], before: list[list[int]]
) -> None:
    ids, constraints = case
    pilot = ContextPilot()
    for n, cached in enumerate(before):
        pilot.learn(pilot.as_given(request_of(f"b{n}", cached, Constraints())))
    plan = pilot.propose(request_of("x", ids, constraints))
    allowed = [order for order in itertools.permutations(range(len(ids))) if holds(constraints, len(ids), order, None)]
    best = max(sum(10 + ids[p] for p in shared(order, ids, before)) for order in allowed)
    assert plan.predicted_cached_tokens == best


def shared(order: tuple[int, ...], ids: list[int], before: list[list[int]]) -> tuple[int, ...]:
    sent = [ids[p] for p in order]
    longest = max(
        (sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], zip(sent, b, strict=False))) for b in before),
        default=0,
    )
    return order[:longest]


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8), st.sampled_from(WAYS))
def test_without_constraints_nothing_changes(many: list[list[int]], way: tuple[Any, Any]) -> None:
    outcomes = []
    for limit in (None, 100):
        pilot = ContextPilot(PilotConfig(planner=way[0], matcher=way[1], max_displacement=limit))
        requests = [request_of(str(i), list(dict.fromkeys(ids)), Constraints()) for i, ids in enumerate(many)]
        half = len(requests) // 2
        batch = [(e.position, e.plan) for e in pilot.optimize_batch(requests[:half])] if way[1] == "prefix" else []
        outcomes.append((batch, [pilot.optimize(r) for r in requests[half:]]))
    assert outcomes[0] == outcomes[1]


def plan_after(constraints: Constraints, *, blocks: tuple[int, ...] = (9, 4, 7, 2, 5)) -> Plan:
    pilot = ContextPilot(PilotConfig(labels="ids"))
    pilot.optimize(Request.from_ids("old", [5, 2, 7, 4, 9]))
    return pilot.optimize(request_of("x", list(blocks), constraints))


def test_a_pinned_block_begins_the_context_and_the_cached_path_goes_on_from_it() -> None:
    assert plan_after(Constraints()).sent == (5, 2, 7, 4, 9)
    pinned = plan_after(Constraints(first=1))
    assert pinned.sent == (4, 9, 7, 2, 5)
    assert (pinned.prefix_len, pinned.predicted_cached_tokens) == (0, 0)
    assert plan_after(Constraints(first=4)).prefix_len == 5


def test_a_block_pinned_last_ends_the_cached_path() -> None:
    plan = plan_after(Constraints(last=3))
    assert (plan.sent, plan.prefix_len) == ((5, 9, 4, 7, 2), 1)


def test_a_group_may_end_in_the_cache_and_goes_on_outside() -> None:
    plan = plan_after(Constraints(groups=((3, 4),)))
    assert plan.sent == (9, 4, 7, 2, 5)
    plan = plan_after(Constraints(groups=((0, 1),)), blocks=(5, 8, 2, 7))
    assert (plan.sent, plan.prefix_len) == ((5, 8, 2, 7), 1)


def test_displacement_bounds_how_far_a_cached_block_comes_up() -> None:
    assert plan_after(Constraints(max_displacement=4)).prefix_len == 5
    assert plan_after(Constraints(max_displacement=3)).sent == (9, 4, 7, 2, 5)
    assert plan_after(Constraints(max_displacement=0)).order_annotation is None


def test_the_default_bound_gives_way_to_pins() -> None:
    pilot = ContextPilot(PilotConfig(max_displacement=1))
    assert pilot.optimize(request_of("x", [1, 2, 3, 4], Constraints(first=3))).sent == (4, 1, 2, 3)


def test_groups_are_planned_as_one_block() -> None:
    pilot = ContextPilot()
    batch = [
        request_of("a", [1, 2, 3], Constraints(groups=((1, 2),))),
        request_of("b", [4, 2, 3], Constraints(groups=((1, 2),))),
        request_of("c", [1, 4, 8], Constraints(last=0)),
    ]
    sent = {str(e.request.request_id): e.plan.sent for e in pilot.optimize_batch(batch)}
    assert sent["a"] == (2, 3, 1) and sent["b"] == (2, 3, 4) and sent["c"][-1] == 1


def test_requests_that_begin_with_the_same_pinned_block_are_planned_together() -> None:
    pilot = ContextPilot()
    batch = [request_of(n, ids, Constraints(first=0)) for n, ids in (("a", [0, 5, 7]), ("b", [0, 6, 7]))]
    assert {e.request.request_id: e.plan.sent for e in pilot.optimize_batch(batch)} == {"a": (0, 7, 5), "b": (0, 7, 6)}


def test_pins_hold_in_later_turns_and_in_the_given_order() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_ids("1", [1, 2], "c"))
    later = Request.from_ids("2", [1, 5, 6], "c")
    plan = pilot.optimize(
        Request(later.blocks, later.request_id, later.conversation_id, constraints=Constraints(first=2))
    )
    assert plan.order == (2, 0, 1)
    given_order = pilot.as_given(request_of("3", [1, 2, 3], Constraints(first=1)))
    assert (given_order.order, given_order.order_annotation) == ((1, 0, 2), None)


def test_a_group_name_is_no_blocks_identity() -> None:
    ids: list[BlockId] = ["group 0", "group 0'", "x"]
    blocks = tuple(ContextBlock(id=i) for i in ids)
    batch = [Request(blocks, RequestId(n), constraints=Constraints(groups=((1, 2),))) for n in "ab"]
    assert all(set(e.plan.sent) == set(ids) for e in ContextPilot().optimize_batch(batch))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"groups": ((0, 2),)}, "groups[0]"),
        ({"groups": ((1, 0),)}, "groups[0]"),
        ({"groups": ((0, 1), (1, 2))}, "groups[1]"),
        ({"groups": ((0, "1"),)}, "groups[0]"),
        ({"groups": (0, 1)}, "groups"),
        ({"groups": 2}, "groups"),
        ({"groups": None}, "groups"),
        ({"groups": ((3, 4),)}, "groups[0]"),
        ({"first": -1}, "first"),
        ({"first": True}, "first"),
        ({"first": 4}, "first"),
        ({"last": 9}, "last"),
        ({"first": 1, "last": 1}, "last"),
        ({"groups": ((0, 1),), "first": 0, "last": 1}, "last"),
        ({"groups": ((0, 1),), "first": 1}, "first"),
        ({"groups": ((0, 1),), "last": 0}, "last"),
        ({"max_displacement": -1}, "max_displacement"),
        ({"max_displacement": 1, "first": 3}, "max_displacement"),
    ],
)
def test_constraints_that_cannot_be_kept(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_of("x", [1, 2, 3, 4], Constraints(**fields))
    assert caught.value.field == f"Constraints.{field}"


def test_the_default_bound_is_checked() -> None:
    with pytest.raises(ConfigError, match="max_displacement"):
        PilotConfig(max_displacement=-1)


def test_one_block_may_be_pinned_first_and_last() -> None:
    assert ContextPilot().optimize(request_of("x", [1], Constraints(first=0, last=0))).sent == (1,)
