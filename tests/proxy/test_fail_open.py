"""An error injected into each step of ours: the evidence still reaches the engine, and the cause is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot import ContextPilot
from prefixpilot.jsontext import JsonText
from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.memory.ledger import Ledger

from .support import Desk, FailingPilot, InjectedError, assistant, chat, user

TURN_1 = [user("First?")]
TURN_2 = [*TURN_1, assistant(), user("Second?")]
PLAIN = "[Doc 1]\nA\n\n[Doc 2]\nB\n\nFirst?"


class FailingLedger(Ledger):
    def __init__(self, *failing: str) -> None:
        super().__init__(10, 10, 1 << 20)
        self.failing = failing

    def restore(self, *args: Any, **more: Any) -> Any:
        return self._unless("restore", super().restore, *args, **more)

    def find_retry(self, *args: Any) -> Any:
        return self._unless("find_retry", super().find_retry, *args)

    def record(self, *args: Any) -> Any:
        return self._unless("record", super().record, *args)

    def _unless(self, name: str, method: Any, *args: Any, **more: Any) -> Any:
        if name in self.failing:
            raise InjectedError(name)
        return method(*args, **more)


class FailingObserver(AnswerObserver):
    def feed(self, data: bytes) -> None:
        raise InjectedError("feed")


def fail(*args: Any, **more: Any) -> Any:
    raise InjectedError("injected")


BEFORE = [
    ("parse", {"parse": fail}),
    ("restore", {"ledger": FailingLedger("restore")}),
    ("plan", {"ledger": FailingLedger("find_retry")}),
    ("plan", {"planner": FailingPilot(["propose"])}),
    ("plan", {"render": fail}),
    ("place", {"place": fail}),
]


@pytest.mark.parametrize(("step", "faulty"), BEFORE)
def test_before_the_engine_the_blocks_are_sent_plainly(step: str, faulty: dict[str, Any]) -> None:
    desk = Desk(**faulty)
    sent = desk.ask(chat(TURN_1, ["A", "B"], temperature=0.5, seed=3), "c")
    assert sent.body == {"model": "m", "messages": [user(PLAIN)], "temperature": 0.5, "seed": 3}
    assert sent.forward.outcome == "fallback"
    assert sent.plan["fallback"] == f"{step}: InjectedError"
    assert desk.metric("prefixpilot_fail_opens_total", step=step) == 1


@pytest.mark.parametrize(
    ("step", "faulty"),
    [
        ("learn", {"planner": FailingPilot(["learn"])}),
        ("record", {"ledger": FailingLedger("record")}),
        ("observe", {"observer": FailingObserver}),
        ("report", {"describe": fail}),
    ],
)
def test_after_it_the_client_sees_nothing(step: str, faulty: dict[str, Any]) -> None:
    desk = Desk(**faulty)
    sent = desk.ask(chat(TURN_1, ["A", "B"]), "c")
    assert sent.newest == PLAIN
    assert sent.forward.outcome == "planned"
    assert desk.metric("prefixpilot_fail_opens_total", step=step) == 1


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_later_turn_keeps_its_history_when_planning_fails(mode: str) -> None:
    pilot = FailingPilot(())
    desk = Desk(planner=pilot)
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c", mode=mode)
    pilot.failing = ["propose", "as_given"]
    second = desk.ask(chat(TURN_2, ["B", "C"]), "c", mode=mode)
    assert second.texts == [first.newest, "ok", "[Doc 3]\nB\n\n[Doc 4]\nC\n\nSecond?"]
    pilot.failing = ()
    third = desk.ask(chat([*TURN_2, assistant(), user("Third?")], ["A"]), "c", mode=mode)
    assert third.texts[:4] == [*second.texts, "ok"], "what was sent plainly is frozen too"
    retry = desk.ask(chat(TURN_2, ["B", "C"]), "c", mode=mode)
    assert retry.body == second.body
    assert retry.plan["labels"] == ["Doc 3", "Doc 4"]


def test_a_later_turn_keeps_its_history_when_placing_fails() -> None:
    faults: list[bool] = []

    def place(source: JsonText, *args: Any) -> bytes:
        if faults:
            raise InjectedError("place")
        return source.edited(*args)

    desk = Desk(place=place)
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c")
    faults.append(True)
    second = desk.ask(chat(TURN_2, ["B"]), "c")
    assert second.texts == [first.newest, "ok", "[Doc 3]\nB\n\nSecond?"]
    restored_only = desk.ask(chat([*TURN_2, assistant(), user("Third?")]), "c")
    assert restored_only.texts[:3] == second.texts
    faults.clear()
    assert desk.ask(chat([*TURN_2, assistant(), user("Third?")]), "c").body == restored_only.body


@pytest.mark.parametrize(("step", "faulty"), BEFORE)
def test_without_blocks_and_history_the_clients_bytes_are_the_fallback(step: str, faulty: dict[str, Any]) -> None:
    desk = Desk(**faulty)
    sent = desk.ask(chat(TURN_1), "c")
    assert not sent.forward.touched
    assert sent.body == chat(TURN_1)


def test_if_even_that_fails_there_is_an_error_in_the_apis_shape() -> None:
    desk = Desk(parse=fail)
    with pytest.raises(RefusedError) as caught:
        desk.ask({"context_blocks": ["A"]})
    assert caught.value.status == 500
    error = json.loads(caught.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "parse: InjectedError" in error["message"]


def test_an_error_of_ours_that_looks_like_the_clients_is_not_a_400() -> None:
    pilot = ContextPilot()
    blocks = [{"text": "A", "id": 1}]

    def render(plan: Any) -> str:
        from prefixpilot.errors import InvalidRequestError

        raise InvalidRequestError("blocks", "is broken", "call us")

    sent = Desk(pilot=pilot, render=render).ask(chat(TURN_1, blocks))
    assert sent.newest == "[Doc 1]\nA\n\nFirst?"
