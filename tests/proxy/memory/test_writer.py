"""The thread that writes: order, group commits, bounds, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.proxy.memory import writer as module
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.store import Erase, Save, Store
from prefixpilot.proxy.memory.writer import StoreWriter

from ..watched import until
from .support import converse, facts, history, key, said, turn

BOUND_S = 20.0
ONE, TWO = key("one"), key("two")


class SlowStore(Store):
    """Lets changes wait until it is told to go on, and notes how many come at a time."""

    def prepare(self) -> None:
        self.go_on = threading.Event()
        self.sizes: list[int] = []
        self.broken: type[Exception] | None = None

    def apply(self, changes: Iterable[Save | Erase]) -> None:
        assert self.go_on.wait(BOUND_S)
        if self.broken is not None:
            raise self.broken("no")
        changes = list(changes)
        self.sizes.append(len(changes))
        super().apply(changes)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    slow = SlowStore.open(tmp_path, 1 << 26, 512, 1e9)
    assert isinstance(slow, SlowStore)
    slow.prepare()
    return slow


@pytest.fixture
def unsaved() -> list[int]:
    return []


@pytest.fixture
def writer(store: SlowStore, unsaved: list[int]) -> Iterator[StoreWriter]:
    running = StoreWriter(store, clock=lambda: 0.0, attempt=caught, on_unsaved=unsaved.append)
    yield running
    store.go_on.set()
    running.close()


def healthy(writer: StoreWriter) -> bool:
    return writer.healthy


def caught(step: str, action: Callable[[], Any], /) -> Any:
    """As the pipeline's."""
    try:
        return action()
    except RuntimeError as error:
        return error


def test_many_changes_are_one_commit_and_reads_see_them(store: SlowStore, writer: StoreWriter) -> None:
    path = converse([[f"text {n}"] for n in range(40)])
    for each in path:
        writer.save(ONE, each, 1)
    assert writer.holds(ONE)
    store.go_on.set()
    loaded = asyncio.run(writer.load(ONE, BOUND_S))
    assert [facts(each) for each in loaded] == [facts(each) for each in path]
    assert len(store.sizes) <= 2


def test_a_turn_waits_once_but_behind_a_deletion_again(store: SlowStore, writer: StoreWriter) -> None:
    (one,) = converse([["a"]])
    for _ in range(3):
        writer.save(TWO, one, 1)
    for _ in range(3):
        writer.save(ONE, one, 1)
    writer.erase(ONE)
    one.add_reply(said("yes"))
    writer.save(ONE, one, 1)
    store.go_on.set()
    assert writer.flush(BOUND_S)
    assert sum(store.sizes) <= 5
    (loaded,) = writer.read(ONE)
    assert facts(loaded) == facts(one)


def test_a_deletion_comes_behind_what_was_saved_before(store: SlowStore, writer: StoreWriter) -> None:
    (one,) = converse([["a"]])
    writer.save(ONE, one, 1)
    erased = writer.erase(ONE)
    assert (erased.known, writer.holds(ONE), erased.done.done()) == (True, False, False)
    store.go_on.set()
    assert erased.done.result(BOUND_S)
    assert writer.read(ONE) == []
    assert not writer.erase(ONE).known


def test_a_wait_has_a_bound(store: SlowStore, writer: StoreWriter) -> None:
    writer.save(ONE, converse([["a"]])[0], 1)
    assert asyncio.run(writer.settled(0.01)) is False
    store.go_on.set()
    assert asyncio.run(writer.settled(BOUND_S)) is True


@pytest.mark.parametrize("kind", [StoreError, RuntimeError])
def test_an_error_is_told_counted_and_over_with_the_next_commit(
    store: SlowStore, writer: StoreWriter, unsaved: list[int], kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store.broken = kind
    store.go_on.set()
    path = converse([["a"], ["b"]])
    writer.save(ONE, path[0], 1)
    assert writer.flush(BOUND_S) is False
    assert not healthy(writer)
    assert unsaved == [1]
    store.broken = None
    writer.save(ONE, path[1], 1)
    assert writer.flush(BOUND_S)
    assert healthy(writer)
    assert len(writer.read(ONE)) == 2, "the turn that was lost came with its child"
    assert "in their store again" in caplog.text


def test_a_deletion_that_failed_can_be_asked_for_again(store: SlowStore, writer: StoreWriter) -> None:
    store.go_on.set()
    writer.save(ONE, converse([["a"]])[0], 1)
    assert writer.flush(BOUND_S)
    store.broken = StoreError
    assert writer.erase(ONE).done.result(BOUND_S) is False
    assert writer.holds(ONE)
    store.broken = None
    again = writer.erase(ONE)
    assert (again.known, again.done.result(BOUND_S)) == (True, True)


def test_no_more_waits_than_fit(store: SlowStore, writer: StoreWriter, unsaved: list[int]) -> None:
    (one,) = converse([["a"]])
    for n in range(module.MAX_WAITING + 2 * module.MAX_A_COMMIT):
        writer.save(key(f"c{n}"), one, 1)
    assert 0 < sum(unsaved) <= 2 * module.MAX_A_COMMIT
    assert not healthy(writer)
    store.go_on.set()
    assert writer.flush(BOUND_S)
    assert healthy(writer)
    assert max(store.sizes) == module.MAX_A_COMMIT


def test_what_waits_is_written_at_the_end(store: SlowStore, writer: StoreWriter, tmp_path: Path) -> None:
    writer.save(ONE, converse([["a"]])[0], 1)
    store.go_on.set()
    writer.close()
    again = Store.open(tmp_path, 1 << 26, 512, 1e9)
    assert len(again.load(ONE.digest, 0)) == 1
    again.close()


def test_a_conversation_that_goes_while_it_is_saved_stays(tmp_path: Path) -> None:
    store = SlowStore.open(tmp_path, 1 << 20, 512, 1e9)
    assert isinstance(store, SlowStore)
    store.prepare()
    store.go_on.set()
    lost: list[int] = []
    writer = StoreWriter(store, clock=lambda: 0.0, on_lost=lost.append)
    for n in range(200):
        unlike = "".join(f"{n} {i} " for i in range(3000))
        writer.save(key(f"c{n}"), converse([[unlike]])[0], n)
        assert writer.flush(BOUND_S)
    assert sum(lost) > 0
    gone = [n for n in range(200) if writer.lost(key(f"c{n}"))]
    assert gone == list(range(sum(lost)))
    assert [n for n in range(200) if writer.holds(key(f"c{n}"))] == list(range(sum(lost), 200))
    assert len(writer) == 200 - sum(lost)
    writer.close()


# -- what has gone


def test_what_had_to_go_and_is_deleted_is_not_told_as_gone_even_after_a_restart(tmp_path: Path) -> None:
    now = [0.0]
    writer = StoreWriter.open(tmp_path, 1 << 26, 512, 100.0, clock=lambda: now[0])
    for name in (ONE, TWO):
        writer.save(name, converse([["a"]])[0], now[0])
        assert writer.flush(BOUND_S)
        now[0] += 101
    assert (writer.lost(ONE), writer.holds(TWO)) == (True, True)
    erased = writer.erase(ONE)
    assert (erased.known, erased.done.result(BOUND_S), writer.lost(ONE)) == (False, True, False)
    now[0] += 101
    writer.save(ONE, converse([["a"]])[0], now[0])
    assert writer.flush(BOUND_S)
    assert writer.lost(TWO)
    assert writer.erase_all().done.result(BOUND_S)
    writer.close()
    again = StoreWriter.open(tmp_path, 1 << 26, 512, 100.0, clock=lambda: now[0])
    assert not any(again.lost(name) or again.holds(name) for name in (ONE, TWO))
    again.close()


def test_what_goes_while_its_deletion_waits_is_deleted_not_gone(store: SlowStore) -> None:
    now = [0.0]
    store._ttl = 100.0
    lost: list[int] = []
    writer = StoreWriter(store, clock=lambda: now[0], on_lost=lost.append)
    store.go_on.set()
    writer.save(ONE, converse([["a"]])[0], 0)
    assert writer.flush(BOUND_S)
    store.go_on.clear()
    (two,) = converse([["b"]])
    writer.save(TWO, two, 101)
    assert until(lambda: not writer._waiting)
    now[0] = 101.0
    erased = writer.erase(ONE)
    store.go_on.set()
    assert (erased.known, erased.done.result(BOUND_S)) == (True, True)
    assert (writer.holds(ONE), writer.lost(ONE), sum(lost)) == (False, False, 0)
    writer.close()


def test_a_deletion_that_failed_leaves_what_had_to_go_as_gone(store: SlowStore) -> None:
    now = [0.0]
    store._ttl = 100.0
    writer = StoreWriter(store, clock=lambda: now[0])
    store.go_on.set()
    writer.save(ONE, converse([["a"]])[0], 0)
    assert writer.flush(BOUND_S)
    now[0] = 101.0
    writer.save(TWO, converse([["a"]])[0], 101)
    assert writer.flush(BOUND_S)
    store.broken = StoreError
    assert writer.erase(ONE).done.result(BOUND_S) is False
    assert (writer.holds(ONE), writer.lost(ONE)) == (False, True)
    writer.close()


# -- the ledger's side


def test_a_turn_of_a_deleted_conversation_is_not_recorded_even_if_it_has_begun_anew() -> None:
    ledger = Ledger(10, 10, 1 << 20)
    first, second = converse([["a"], ["b"]])
    assert ledger.record(ONE, first, said("yes"))
    ledger.forget(ONE)
    (other,) = converse([["c"]])
    assert ledger.record(ONE, other, said("yes"))
    assert not ledger.record(ONE, second, said("yes"))
    ledger.check_invariants()


@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_first_turn_that_is_under_way_when_its_conversation_is_deleted_is_not_recorded(all_of_them: bool) -> None:
    ledger = Ledger(10, 10, 1 << 20)
    (first,) = converse([["a"]])
    first.lineage = ledger.restore(ONE, history(["Question 0?"]), with_newest=False).lineage
    if all_of_them:
        ledger.clear()
    else:
        assert ledger.forget(ONE).known
    assert not ledger.forget(ONE).known
    (anew,) = converse([["a"]])
    anew.lineage = ledger.restore(ONE, history(["Question 0?"]), with_newest=False).lineage
    assert not ledger.record(ONE, first, said("yes"))
    assert ledger.record(ONE, anew, said("yes"))
    ledger.check_invariants()


def test_past_its_turns_a_conversation_keeps_the_branch_in_use() -> None:
    ledger = Ledger(10, 4, 1 << 20)
    path = converse([["a"], ["b"], ["c"]])
    for each in path:
        assert ledger.record(ONE, each, said("yes"))
    for n in range(5):
        other = turn(["Question 0?", f"Other {n}?"], path[0], [f"d{n}"])
        assert ledger.has_room(ONE, other)
        assert ledger.record(ONE, other, said("yes"))
        ledger.check_invariants()
    deep = converse([["a"], ["b"], ["c"], ["d"], ["e"]])
    told = [ledger.has_room(TWO, each) and ledger.record(TWO, each, said("yes")) for each in deep]
    assert told == [True] * 4 + [False]
    ledger.check_invariants()


def test_forgotten_conversations_are_remembered_up_to_a_bound() -> None:
    ledger = Ledger(2, 10, 1 << 20)
    for n in range(100):
        assert ledger.record(key(f"c{n}"), converse([["a"]])[0], said("yes"))
        assert len(ledger._forgotten) <= 8
    assert len(ledger) == 2


def test_what_expired_in_memory_does_not_come_back_when_the_disk_is_read() -> None:
    now = [0.0]
    ledger = Ledger(10, 10, 1 << 20, ttl=100.0, clock=lambda: now[0])
    assert ledger.record(ONE, converse([["a"]])[0], said("yes"))
    now[0] = 101.0
    ledger.adopt(ONE, [])
    assert not ledger.knows(ONE)
    assert not ledger.restore(ONE, history(["Question 0?", "x"]), with_newest=False).turns


def test_a_conversation_in_use_that_has_no_room_left_does_not_expire_on_disk(tmp_path: Path) -> None:
    now = [0.0]
    path = converse([["a"], ["b"], ["c"], ["d"]])
    questions = [f"Question {n}?" for n in range(4)]
    writer = StoreWriter.open(tmp_path, 1 << 26, 3, 100.0, clock=lambda: now[0])
    ledger = Ledger(10, 3, 1 << 20, ttl=100.0, clock=lambda: now[0], journal=writer)
    assert [ledger.record(ONE, each, said("yes")) for each in path[:3]] == [True] * 3
    for now[0] in (60.0, 120.0):
        assert len(ledger.restore(ONE, history(questions), with_newest=False).turns) == 3
        assert not ledger.record(ONE, path[3], said("yes"))
    assert writer.flush(BOUND_S)
    assert len(writer.read(ONE)) == 3
    writer.close()
