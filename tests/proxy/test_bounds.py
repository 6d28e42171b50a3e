"""Bounds that bound: what is counted is at least what is held, and what is not kept is told."""

from __future__ import annotations

import gc
import sys
from collections import deque
from types import MappingProxyType
from typing import Any

from prefixpilot import ContextPilot
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import Turn

from .support import Desk, Messages, assistant, chat, user

DOCUMENTS = [f"Document {n}. " + "x" * 50_000 for n in range(15)]


class OpenLedger(Ledger):
    """Shows its conversations."""

    @property
    def turns(self) -> list[Turn]:
        return [turn for conversation in self._conversations.values() for turn in conversation]


def held(root: Any, seen: set[int]) -> int:
    """Bytes reachable from ``root``, classes and modules left out, what was seen counted once."""
    total, waiting = 0, deque([root])
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | type(sys)) or callable(each):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting.extend(gc.get_referents(each))
    return total


def converse(desk: Desk, turns: int, **more: Any) -> Messages:
    messages: Messages = []
    for n in range(turns):
        messages.append(user(f"Question {n}?"))
        desk.ask(chat(messages, DOCUMENTS), "c", **more)
        messages.append(assistant())
    return messages


def test_the_ledger_counts_at_least_what_it_holds() -> None:
    ledger = OpenLedger(10, 100, 1 << 30)
    desk = Desk(ledger=ledger)
    converse(desk, 20, reply="\U0001f600" * 5000)
    for order in (DOCUMENTS[::-1], DOCUMENTS[1:]):
        desk.ask(chat([user("Question 0?")], order), "c", mode="off")
    assert held(ledger._conversations, set()) <= ledger.size
    assert held(ledger._conversations, set()) > ledger.size / 20, "nor is the estimate out of this world"


def test_turns_that_only_refer_to_documents_do_not_hold_them() -> None:
    ledger = OpenLedger(10, 100, 1 << 30)
    converse(Desk(ledger=ledger), 10)
    first, *later = ledger.turns
    seen: set[int] = set()
    assert held(first, seen) > 50_000 * 15
    for turn in later:
        assert held(turn, seen) < 40_000
        assert turn.size < 40_000


def test_a_retry_of_a_turn_without_texts_is_still_learnt_and_reported() -> None:
    pilot = ContextPilot()
    desk = Desk(pilot=pilot)
    first = desk.ask(chat([user("Q?")], ["A", "B", "A"]), "c", request_id="r1")
    assert pilot.evict(["r1"]) == 1
    again = desk.ask(chat([user("Q?")], ["A", "B", "A"]), "c", request_id="r2")
    assert again.body == first.body
    assert again.plan["labels"] == first.plan["labels"]
    assert pilot.evict(["r2"]) == 1


def test_a_turn_that_is_not_kept_is_told_and_counted() -> None:
    desk = Desk(max_turns=2)
    messages: Messages = []
    for n in range(4):
        messages.append(user(f"Question {n}?"))
        sent = desk.ask(chat(messages, [f"Text {n}"]), "c")
        messages.append(assistant())
        assert sent.plan["recorded"] == (n < 2)
    assert sent.plan["unmatched"] == 1
    assert desk.metric("prefixpilot_unrecorded_turns_total") == 2
    assert desk.ask(chat(messages[:3], ["Text 1"]), "c").plan["recorded"], "a retry of a turn that is kept"


def test_a_conversation_that_is_too_large_keeps_its_beginning() -> None:
    ledger = OpenLedger(10, 100, 1 << 20)
    desk = Desk(ledger=ledger)
    messages: Messages = []
    for n in range(4):
        messages.append(user(f"Question {n}?"))
        sent = desk.ask(chat(messages, [f"{n} " + "x" * 300_000]), "c")
        assert sent.plan["recorded"] == (n < 3)
        messages.append(assistant())
        ledger.check_invariants()
    assert len(ledger.turns) == 3
    alone = desk.ask(chat([user("Q?")], ["y" * 2_000_000]), "d")
    assert not alone.plan["recorded"]
    assert len(ledger.turns) == 3
    for n in range(8):
        desk.ask(chat([user("Question 0?")], ["0 " + "x" * 300_000]), "c", reply=f"{n}" * 3000)
        ledger.check_invariants()


def test_the_proxys_own_index_is_bounded_by_its_settings() -> None:
    settings = ProxySettings("http://127.0.0.1:9", max_contexts=5, max_blocks=7, cache_tokens=1000)
    assert (settings.pilot.max_contexts, settings.pilot.max_blocks, settings.pilot.cache_tokens) == (5, 7, 1000)
    desk = Desk()
    desk.app = ProxyApp(settings)
    for n in range(20):
        desk.ask(chat([user("Q?")], [f"Text {n}"]))
    assert desk.app._planner.live_requests == 5


def test_the_mapping_that_records_hold_is_looked_into() -> None:
    """Guards ``held``: it sees through what ledger records are made of."""
    assert held(MappingProxyType({"a": "x" * 1000}), set()) > 1000
