"""Identities of any kind, and contexts of any size: what is documented holds for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.config import Planner
from prefixpilot.core import BlockId
from prefixpilot.errors import InvalidRequestError

KINDS: dict[str, Callable[[int], BlockId]] = {
    "int": lambda number: number,
    "str": lambda number: f"block {number}",
    "bytes": lambda number: number.to_bytes(2, "big"),
    "mixed": lambda number: (number, str(number), str(number).encode())[number % 3],
}
PLANNERS: list[Planner] = ["shared-tokens", "paper"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 15, 1000])
def test_any_number_of_blocks_of_any_kind_of_id(kind: str, k: int) -> None:
    pilot = ContextPilot()
    ids = [KINDS[kind](number) for number in range(k)]
    assert pilot.optimize(Request.from_ids("a", ids)).sent == tuple(ids)
    again = pilot.optimize(Request.from_ids("b", ids[::-1]))
    assert (again.sent, again.prefix_len) == (tuple(ids), k)
    planned = ContextPilot().optimize_batch([Request.from_ids(str(i), ids[i:] + ids[:i]) for i in range(min(k, 3))])
    assert len({entry.plan.sent for entry in planned}) == 1
    pilot.check_invariants()


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_batch_of_mixed_kinds(planner: Planner) -> None:
    contexts: list[list[BlockId]] = [[1, "1", b"1", i] for i in range(2, 9)]
    requests = [Request.from_ids(str(i), ids) for i, ids in enumerate(contexts)]
    planned = ContextPilot(PilotConfig(planner=planner)).optimize_batch(requests)
    assert all(set(entry.plan.sent) == set(contexts[entry.position]) for entry in planned)
    assert all(set(entry.plan.sent[:3]) == {1, "1", b"1"} for entry in planned)


def test_an_int_a_str_and_bytes_are_three_blocks() -> None:
    plan = ContextPilot().optimize(Request.from_ids("a", [1, "1", b"1"]))
    assert plan.sent == (1, "1", b"1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_becomes_an_annotation(kind: str) -> None:
    first, second = KINDS[kind](1), KINDS[kind](2)
    plan = ContextPilot().optimize(Request.from_ids("a", [first, second, first]))
    assert plan.sent == (first, second)
    assert [block.location_annotation for block in plan.blocks] == [None, None, "Please refer to [Doc 1] above."]


def test_bytes_name_a_block_as_text() -> None:
    pilot = ContextPilot(PilotConfig(labels="ids"))
    plan = pilot.optimize(Request.from_ids("a", [b"caf\xc3\xa9", b"\xff", b"1", 1]))
    assert plan.labels == ("Doc café", "Doc \\xff", "Doc 1", "Doc 4")


@pytest.mark.parametrize("bad", [True, 1.5, bytearray(b"1"), memoryview(b"1"), (1,)])
def test_other_kinds_are_refused(bad: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"ContextBlock\.id"):
        ContextBlock(id=bad)  # type: ignore[arg-type]


@pytest.mark.no_cover
@pytest.mark.parametrize("planner", PLANNERS)
def test_ten_thousand_equal_contexts(planner: Planner) -> None:
    pilot = ContextPilot(PilotConfig(planner=planner))
    planned = pilot.optimize_batch([Request.from_ids(str(i), [b"x", 1, "y"]) for i in range(10_000)])
    assert sorted(entry.position for entry in planned) == list(range(10_000))
    assert {entry.plan.sent for entry in planned} == {planned[0].plan.sent}
    assert sum(entry.plan.prefix_len < 3 for entry in planned) == 1


def test_one_context_and_none() -> None:
    assert ContextPilot().optimize_batch([]) == []
    (one,) = ContextPilot().optimize_batch([Request.from_ids("a", [3, 1])])
    assert one.plan.sent == (3, 1)
    assert ContextPilot().optimize(Request.from_ids("empty", [])).sent == ()


ODD: dict[str, list[list[BlockId]]] = {
    "no context": [],
    "one context": [[3, 1, 2]],
    "empty contexts only": [[], [], []],
    "empty contexts between others": [[1, 2], [], [2, 1], []],
    "one block each": [[n % 3] for n in range(9)],
    "repeats inside a context": [[1, 1, 2, 1], [2, 2], [1, 2]],
    "equal contexts in other orders": [[1, 2, 3], [3, 2, 1], [2, 1, 3]],
    "nothing shared": [[n, str(n), str(n).encode()] for n in range(40)],
    "one, 100 and 1,000 blocks": [list(range(k)) for k in (1, 100, 1000)],
    "300 contexts of 1 to 300 blocks": [list(range(k, 0, -1)) for k in range(1, 301)],
}


@pytest.mark.no_cover
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("case", ODD)
def test_odd_input_is_ordered_and_nothing_else(planner: Planner, case: str) -> None:
    """Each distinct block stands once, each repeat is an annotation, each request has its own result."""
    contexts = ODD[case]
    requests = [Request.from_ids(str(i), ids) for i, ids in enumerate(contexts)]
    pilot, single = ContextPilot(PilotConfig(planner=planner)), ContextPilot(PilotConfig(planner=planner))
    planned = pilot.optimize_batch(requests)
    assert sorted(entry.position for entry in planned) == list(range(len(contexts)))
    together = {entry.position: entry.plan for entry in planned}
    for position, (request, ids) in enumerate(zip(requests, contexts, strict=True)):
        for plan in (together[position], single.optimize(request)):
            assert plan.request_id == request.request_id
            assert set(plan.sent) == set(ids) and len(plan.sent) == len(set(ids))
            assert sum(b.location_annotation is not None for b in plan.blocks) == len(ids) - len(plan.sent)
            assert 0 <= plan.prefix_len <= len(plan.sent)
    pilot.check_invariants()
    single.check_invariants()


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_keeps_the_kind_of_an_id(kind: str) -> None:
    pilot = ContextPilot()
    for number in range(12):
        pilot.optimize(Request.from_ids(str(number), [KINDS[kind](n) for n in range(number, number + 4)]))
    restored = ContextPilot()
    restored.restore(json.loads(json.dumps(pilot.snapshot())))
    restored.check_invariants()
    assert restored.snapshot() == pilot.snapshot()
    probe = Request.from_ids("probe", [KINDS[kind](n) for n in (9, 8, 7, 10)])
    assert restored.optimize(probe).sent == pilot.optimize(probe).sent
