"""Ids of ours in what engines write."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefixpilot import ContextPilot, Request
from prefixpilot.errors import InvalidRequestError
from prefixpilot.pilot import forest
from prefixpilot.request_ids import _STEPS, spellings

FORMS = [
    "{}",
    "chatcmpl-{}",
    "chatcmpl-{}-1f2e3d4c",
    "3_chatcmpl-{}-1f2e3d4c",
    "cmpl-{}-0",
    "cmpl-{}-11-1f2e3d4c",
    "1_cmpl-{}-0-1f2e3d4c",
    "{}_2",
    "{}-1f2e3d4c",
    "resp_{}",
    "resp_{}_0-1f2e3d4c",
    "{}_1-1f2e3d4c",
    "msg_{}",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ours", ["r1", "C-7", "a_b", "chatcmpl-mine", "0f8fad5b-d9cb-469f-a165-70867728950e", "é/1"])
def test_an_id_is_found_in_all_forms(form: str, ours: str) -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_ids(ours, [1, 2]))
    pilot.optimize(Request.from_ids("another", [1, 3]))
    assert pilot.evict([form.format(ours), form.format(ours)]) == 1
    assert pilot.live_requests == 1


def test_an_id_that_looks_like_an_engines_is_its_own_first() -> None:
    pilot = ContextPilot()
    for request_id in ("x", "chatcmpl-x"):
        pilot.optimize(Request.from_ids(request_id, [1, 2]))
    assert pilot.evict(["chatcmpl-x"]) == 1
    assert pilot.shorten("x", 1)


@pytest.mark.parametrize("told", ["job-1", "job_1", "job-12345678", "chatcmpl-job", "chatcmpl-job-1"])
def test_what_is_told_twice_takes_no_other_with_it(told: str) -> None:
    """Neither once it is evicted, nor after it made room, nor with all others."""
    pilot = ContextPilot()
    for request_id in (told, "job"):
        pilot.optimize(Request.from_ids(request_id, [1, 2]))
    assert [pilot.evict([told]) for _ in range(3)] == [1, 0, 0]
    assert pilot.evict(["chatcmpl-job"]) == (told != "chatcmpl-job")
    pilot.optimize(Request.from_ids(told, [1, 2]))
    assert pilot.evict_all() >= 1
    pilot.optimize(Request.from_ids("job", [1, 2]))
    assert pilot.evict([told]) == 0
    assert pilot.evict(["job"]) == 1


def test_a_number_that_no_engine_adds_is_never_cut() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_ids("job", [1, 2]))
    assert pilot.evict(["job-1", "chatcmpl-job-1"]) == 0
    assert pilot.evict(["cmpl-job-1"]) == 1


def test_the_ids_of_evicted_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest, "REMEMBERED_GONE", 2)
    pilot = ContextPilot()
    for request_id in ("a_1", "b_1", "c_1", "a", "b", "c"):
        pilot.optimize(Request.from_ids(request_id, [1, 2]))
    assert pilot.evict(["a_1", "b_1", "c_1"]) == 3
    pilot.check_invariants()
    assert [pilot.evict([each]) for each in ("c_1", "b_1", "a_1")] == [0, 0, 1]


def every_selection(request_id: str) -> tuple[str, ...]:
    """The specification: each selection of the steps, those of fewest steps first."""
    found = {request_id: None}
    for count in range(1, len(_STEPS) + 1):
        for steps in combinations(_STEPS, count):
            text = request_id
            for step in steps:
                text = step(text)
            found.setdefault(text)
    found.pop("", None)
    return tuple(found)


PIECES = ["chatcmpl-", "resp_", "cmpl-", "generate-tokens-", "3_", "-0", "_12", "-1f2e3d4c", "a", "-", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=30))
@example("1_cmpl-cmpl-a-0-1f2e3d4c")
def test_spellings_are_those_of_every_selection_of_steps(text: str) -> None:
    assert spellings(text) == every_selection(text)


@given(st.text(max_size=30))
def test_spellings_begin_with_the_id_and_get_no_longer(text: str) -> None:
    found = spellings(text)
    assert found[:1] == ((text,) if text else ())
    assert len(found) <= 32 and all(found) and all(len(other) < len(text) for other in found[1:])


def test_only_what_is_cached_is_planned_with() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_ids("r1", [1, 2, 3, 4]))
    assert pilot.propose(Request.from_ids("q", [4, 3, 2, 1])).prefix_len == 4
    assert pilot.shorten("cmpl-r1-0", 2)
    assert not pilot.shorten("r1", 3)
    assert pilot.propose(Request.from_ids("q", [4, 3, 2, 1])).sent[:2] == (1, 2)
    assert pilot.propose(Request.from_ids("q", [4, 3, 2, 1])).prefix_len == 2
    assert pilot.shorten("r1", 0)
    assert pilot.live_requests == 0
    assert not pilot.shorten("r1", 0)


def test_contexts_that_share_a_head_are_shortened_one_by_one() -> None:
    pilot = ContextPilot()
    for request_id, ids in (("a", [1, 2, 3]), ("b", [1, 2, 4]), ("c", [1, 2, 3])):
        pilot.learn(pilot.as_given(Request.from_ids(request_id, ids)))
    assert pilot.shorten("a", 2)
    pilot.check_invariants()
    assert pilot.propose(Request.from_ids("q", [3, 2, 1])).prefix_len == 3
    assert pilot.shorten("c", 1)
    assert pilot.propose(Request.from_ids("q", [3, 2, 1])).prefix_len == 2
    pilot.check_invariants()


def test_a_request_learnt_again_is_whole_again() -> None:
    pilot = ContextPilot()
    plan = pilot.optimize(Request.from_ids("r", [1, 2, 3]))
    assert pilot.shorten("r", 1)
    pilot.learn(plan)
    assert pilot.propose(Request.from_ids("q", [1, 2, 3])).prefix_len == 3


@pytest.mark.parametrize("blocks", [-1, True, 1.0])
def test_blocks_are_a_number(blocks: object) -> None:
    with pytest.raises(InvalidRequestError, match="blocks"):
        ContextPilot().shorten("r", blocks)  # type: ignore[arg-type]
