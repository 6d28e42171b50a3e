"""The router of slots: what it reads of the server, when it names a slot, and which picture it believes."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.engines.llamacpp_slots import (
    JUDGED,
    PAUSE,
    Seat,
    ServerFacts,
    SlotReport,
    SlotRouter,
    SlotState,
    read_props,
    read_slots,
    worth_of,
)

LONG = b"x" * 4000


def go(router: SlotRouter, prompt: bytes, cached: int, worth: float = 0.5) -> Seat:
    """One request; a token is four bytes."""
    seat = router.seat(prompt, worth) or router.follow(prompt, worth)
    assert seat is not None
    router.leave(seat, len(prompt) // 4, cached)
    return seat


def state(router: SlotRouter) -> str:
    return router.state


def test_props() -> None:
    document = {
        "total_slots": 4,
        "endpoint_slots": True,
        "model_path": "m.gguf",
        "default_generation_settings": {"n_ctx": 99},
    }
    assert read_props(document) == ServerFacts(4, 99, True, "m.gguf")
    assert read_props({"total_slots": 1}) == ServerFacts(1, None, False, None)


@pytest.mark.parametrize("document", [None, [], {}, {"total_slots": True}, {"total_slots": 0}, {"total_slots": 10**9}])
def test_what_are_no_props(document: Any) -> None:
    assert read_props(document) is None


def test_slots() -> None:
    rows = [{"id": 0, "is_processing": True, "n_prompt_tokens": 5}, {"id": 1}, {"id": "x"}, 7]
    assert read_slots(rows) == (SlotReport(0, True, 5), SlotReport(1, False, None))
    assert read_slots({"error": "off"}) == ()


def test_nothing_is_named_before_two_slots_are_seen_to_keep_their_prompts() -> None:
    router = SlotRouter(2)
    assert router.seat(LONG, 0.5) is None
    router.confirm((SlotReport(0, False, 5), SlotReport(1, False, None)))
    assert state(router) == "watching"
    router.confirm((SlotReport(0, True, 5), SlotReport(1, False, 5)))
    assert state(router) == "watching"
    router.confirm((SlotReport(0, False, 5), SlotReport(1, False, 5)))
    assert state(router) == "on" and router.seat(LONG, 0.5) is not None


def test_a_cleared_slot_leaves_the_choice_to_the_server() -> None:
    router = SlotRouter(2, "on")
    router.confirm((SlotReport(0, False, 0), SlotReport(1, False, 5)))
    assert state(router) == "left" and router.seat(LONG, 0.5) is None
    assert router.follow(LONG, 0.5) is not None


def test_the_picture_that_agrees_is_believed() -> None:
    """A server without a store: a prompt that was written over does not come back."""
    router = SlotRouter(1, "on")
    for _ in range(3):
        go(router, b"a" * 4000, 0)
        go(router, b"b" * 4000, 0)
    assert router.believed == 2 and state(router) == "on"
    seat = router.seat(b"a" * 4000, 0.5)
    assert seat is not None and seat.expected(1000)[seat.by] == 0 < seat.expected(1000)[0]


def test_where_no_picture_agrees_no_slot_is_named_for_a_while() -> None:
    router = SlotRouter(2, "on")
    for _ in range(JUDGED + 1):
        go(router, LONG, 0)
    assert state(router) == "paused" and router.seat(LONG, 0.5) is None
    for _ in range(PAUSE):
        router.seat(LONG, 0.5)
    assert state(router) == "on" and router.seat(LONG, 0.5) is not None


def test_answers_without_counts_and_failures_judge_nothing() -> None:
    router = SlotRouter(2, "on")
    for tokens, cached, failed in ((None, None, False), (1000, None, False), (1000, 0, True)):
        seat = router.seat(LONG, 0.5)
        assert seat is not None
        assert not router.leave(seat, tokens, cached, failed=failed)
    assert router.believed == 0


def test_a_restart_is_seen() -> None:
    router = SlotRouter(2, "on")
    seat = go(router, LONG, 0)
    router.confirm(tuple(SlotReport(slot, False, None) for slot in range(2)))
    again = router.seat(LONG, 0.5)
    assert again is not None and again.cached_bytes[0] == 0 and seat.slot in (0, 1)


@pytest.mark.parametrize(("known", "told"), [("on", ("one",)), ("one", ("one",)), ("watching", ()), ("left", ())])
def test_used_up_prompts_are_told_of_where_it_is_known_what_the_server_does(known: SlotState, told: Any) -> None:
    router = SlotRouter(1, known)
    for name, text in (("one", b"a" * 8000), ("two", b"b" * 8000)):
        seat = router.follow(text, 0.5, names=(name,))
        assert seat is not None and seat.used_up == ()
        router.leave(seat, 2000, 0)
    seat = router.follow(b"a" * 4000 + b"c" * 4000, 0.5, names=("three",))
    assert seat is not None and seat.used_up == told


def test_one_slot_is_not_watched() -> None:
    assert state(SlotRouter(1)) == "one" and state(SlotRouter(2)) == "watching"


def test_a_client_may_name_its_own_slot_unless_it_is_busy() -> None:
    router = SlotRouter(2, "on")
    seat = router.follow(LONG, 0.5, 1)
    assert seat is not None and (seat.slot, seat.named) == (1, False)
    assert router.follow(LONG, 0.5, 1) is None and router.follow(LONG, 0.5, 77) is None


def test_what_was_answered_before_is_worth_most() -> None:
    answered, named, alone = (worth_of(answered=a, named=n) for a, n in ((True, False), (False, True), (False, False)))
    assert answered > named > alone > 0
