"""A ledger with a store behind it, that is killed, evicts and reloads as it likes, is equal to one that never does."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from prefixpilot.proxy.memory.database import FILE
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import Restoration
from prefixpilot.proxy.memory.store import Store
from prefixpilot.proxy.memory.window import fitted
from prefixpilot.proxy.memory.writer import StoreWriter

from .support import digest, facts, history, key, said, turn

NAMES = st.sampled_from(["a", "a", "b"])
STEPS = st.sampled_from(["next", "next", "next", "again", "back", "other"])
TEXTS = st.lists(st.sampled_from(["one " * 40, "two " * 40, "three", "four"]), max_size=3)
REPLIES = st.sampled_from(["yes", "no"])
TTL = 100.0
BOUND_S = 20.0


class Gate:
    """An attempt that waits until it may: so commits come when the machine says, and a failure comes again."""

    def __init__(self) -> None:
        self._open = Event()

    def __call__(self, step: str, action: Callable[[], Any], /) -> Any:
        assert self._open.wait(BOUND_S)
        return action()

    @contextmanager
    def opened(self) -> Iterator[None]:
        self._open.set()
        yield
        self._open.clear()


class Memory(RuleBasedStateMachine):
    """``real`` has a store; ``model`` is a ledger in memory whose only bound is the number of turns."""

    seen: ClassVar[Counter[str]] = Counter()
    """What this is about, counted over all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.now = 1000.0
        self.opened = 0
        self.asked = 0
        self.last: dict[str, list[str]] = {}

    @initialize(max_turns=st.sampled_from([3, 6, 500]), conversations=st.sampled_from([1, 2, 10]))
    def begin(self, max_turns: int, conversations: int) -> None:
        self.max_turns = max_turns
        self.conversations = conversations
        self.model = Ledger(1000, max_turns, 1 << 30, ttl=TTL, clock=lambda: self.now)
        self.open()

    def open(self) -> None:
        store = Store.open(self.root / str(self.opened), 1 << 26, self.max_turns, TTL)
        store.check_invariants()
        self.gate = Gate()
        self.writer = StoreWriter(store, clock=lambda: self.now, attempt=self.gate)
        self.real = Ledger(
            self.conversations,
            self.max_turns,
            1 << 24,
            ttl=TTL,
            clock=lambda: self.now,
            journal=self.writer,
            first_sent=self.writer.first_sent,
        )

    def settle(self) -> None:
        """All that was told is committed."""
        with self.gate.opened():
            assert self.writer.flush(BOUND_S)

    def restore(self, name: str, questions: list[str], replies: list[str], room: int | None) -> list[Restoration]:
        """From both, compared."""
        past = history(questions, replies)
        self.loaded = self.real.wants(key(name))
        if self.real.wants(key(name)):
            self.settle()
            self.real.adopt(key(name), self.writer.read(key(name)))
        found = [ledger.restore(key(name), past, with_newest=False) for ledger in (self.real, self.model)]
        if room is not None:
            found = [fitted(each, 0, room, past.newest) for each in found]
        real, model = ({i: facts(each) for i, each in r.turns.items()} for r in found)
        assert real == model
        for field in ("ambiguous", "assumed", "unmatched", "gone", "dropped"):
            assert getattr(found[0], field) == getattr(found[1], field), field
        self.seen.update(restored=bool(real), loaded=self.loaded and bool(real), cut=found[1].dropped > 0)
        self.seen.update({field: bool(getattr(found[1], field)) for field in ("ambiguous", "unmatched", "gone")})
        return found

    @rule(
        name=NAMES,
        step=STEPS,
        texts=TEXTS,
        replies=st.lists(REPLIES, min_size=5, max_size=5),
        room=st.sampled_from([None, None, None, 0, 250, 400]),
        settled=st.booleans(),
    )
    def ask(self, name: str, step: str, texts: list[str], replies: list[str], room: int | None, settled: bool) -> None:
        """One request, its answer in two pieces; the beginning of a conversation is often that of another branch."""
        questions = self.questions(name, step)
        self.asked += 1
        found = self.restore(name, questions, replies, room)
        kept = [self.send(ledger, name, questions, r, texts, replies[-1])
                for ledger, r in zip((self.real, self.model), found, strict=True)]  # fmt: skip
        assert kept[0] == kept[1]
        if settled:
            self.settle()

    def questions(self, name: str, step: str) -> list[str]:
        """What the client has asked before, and asks now."""
        before = self.last.get(name, [])
        asked = {
            "next": [*before, "x"],
            "again": before or ["x"],
            "back": [*before[:-2], "x"],
            "other": [*before[:-1], "y"],
        }[step]
        self.last[name] = asked if len(asked) < 7 else asked[:2]
        return self.last[name]

    def send(
        self, ledger: Ledger, name: str, questions: list[str], found: Restoration, texts: list[str], reply: str
    ) -> Any:
        chain = history(questions).chains[2 * len(questions) - 2]
        given = digest(*texts) if texts else digest()
        sent = ledger.find_retry(key(name), chain, found.deepest, given)
        if sent is None:
            sent = turn(questions, found.deepest, texts)
            sent.dropped = found.dropped if found.deepest is None else 0
        promised = ledger.has_room(key(name), sent)
        answer = said(reply[:1])
        assert ledger.record(key(name), sent, answer) == promised
        answer.add(reply[1:])
        ledger.answered(key(name), sent)
        return promised, sent.text

    @precondition(lambda self: self.asked > 8)
    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.asked = 0
        known = [ledger.forget(key(name)) for ledger in (self.real, self.model)]
        with self.gate.opened():
            assert known[0].done.result(BOUND_S)
        assert known[0].known or not known[1].known
        assert not self.real.knows(key(name))

    @precondition(lambda self: self.asked > 8)
    @rule(name=NAMES)
    def delete_what_is_under_way(self, name: str) -> None:
        questions = self.questions(name, "next")
        found = self.restore(name, questions, [], None)
        self.delete(name)
        for ledger, each in zip((self.real, self.model), found, strict=True):
            under_way = turn(questions, each.deepest, [])
            under_way.lineage = each.lineage
            assert not ledger.record(key(name), under_way, said("yes"))
            assert not ledger.knows(key(name))

    @precondition(lambda self: self.asked > 4)
    @rule(seconds=st.sampled_from([1.0, 40.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def kill(self) -> None:
        """The files as they are once all that was told is committed: SQLite's log is not in the file yet."""
        self.settle()
        before = self.root / str(self.opened)
        self.opened += 1
        after = self.root / str(self.opened)
        after.mkdir()
        for name in (FILE, f"{FILE}-wal"):
            shutil.copy(before / name, after / name)
        with self.gate.opened():
            self.writer.close()
        self.open()

    @invariant()
    def holds(self) -> None:
        self.real.check_invariants()
        self.model.check_invariants()
        assert self.writer.healthy

    def teardown(self) -> None:
        if self.opened or hasattr(self, "writer"):
            with self.gate.opened():
                self.writer.close()
            Store.open(self.root / str(self.opened), 1 << 26, self.max_turns, TTL).close()
        shutil.rmtree(self.root)


def test_memory() -> None:
    run_state_machine_as_test(
        Memory, settings=settings(max_examples=40, stateful_step_count=50, deadline=None, derandomize=True)
    )
    wanted = ("restored", "loaded", "cut", "ambiguous", "unmatched", "gone")
    assert min(Memory.seen[what] for what in wanted) > 5, f"what this is about did not occur: {Memory.seen}"
