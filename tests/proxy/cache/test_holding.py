"""Answered requests wait for their own events, in order, and not for ever."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixpilot.core import RequestId
from prefixpilot.proxy.cache.holding import Held
from prefixpilot.proxy.cache.watch import PageTokens, Watch
from prefixpilot.proxy.control.controller import Route

MOST = 4


def watch(sent: int, ended: int) -> Watch:
    made = Watch(RequestId(f"r{sent}"), Route("t", "chat", ""), None, (), False, MappingProxyType({}))
    made.sent, made.ended = sent, ended
    return made


class Events:
    """A view for which a request is told as soon as its number has been."""

    def __init__(self) -> None:
        self.told: set[int] = set()
        self.given_up: list[int] = []
        self.unawaited: set[int] = set()

    def awaits(self, watch: Watch) -> PageTokens | None:
        return None if watch.sent in self.unawaited else (watch.sent,)

    def look(self, watch: Watch, *, last_time: bool = False) -> bool:
        if last_time and watch.sent not in self.told:
            self.given_up.append(watch.sent)
        return last_time or watch.sent in self.told


class HeldMachine(RuleBasedStateMachine):
    """Every request is done once; none before one that was answered before it went out; no more wait than may."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Events()
        self.done: list[Watch] = []
        self.held = Held(self.events, self.done.append, MOST)
        self.clock = 0
        self.running: list[Watch] = []
        self.waiting: list[Watch] = []

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    @rule()
    def send(self) -> None:
        self.running.append(watch(self.tick(), -1))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), told=st.booleans(), awaited=st.booleans())
    def answer(self, which: int, told: bool, awaited: bool) -> None:
        ended = self.running.pop(which % len(self.running))
        ended.ended = self.tick()
        if told:
            self.events.told.add(ended.sent)
        if not awaited:
            self.events.unawaited.add(ended.sent)
        waits = self.held.add(ended)
        assert waits == (ended not in self.done)
        self.waiting = [each for each in [*self.waiting, ended] if each not in self.done]

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 5))
    def events_come(self, which: int) -> None:
        number = self.waiting[which % len(self.waiting)].sent
        self.events.told.add(number)
        self.held.resume({(number,)})
        self.waiting = [each for each in self.waiting if each not in self.done]

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 5))
    def time_is_up(self, which: int) -> None:
        late = self.waiting[which % len(self.waiting)]
        self.held.give_up(late)
        assert late in self.done
        self.held.give_up(late)
        self.waiting = [each for each in self.waiting if each not in self.done]

    @invariant()
    def once_each_and_bounded(self) -> None:
        assert len(set(map(id, self.done))) == len(self.done)
        assert len(self.held) == len(self.waiting) <= MOST

    @invariant()
    def whoever_waits_is_not_told_or_waits_for_another(self) -> None:
        for each in self.waiting:
            before = [other for other in self.waiting if other.ended < each.sent]
            assert before or each.sent not in self.events.told

    @invariant()
    def order_is_kept(self) -> None:
        unordered = set(self.events.given_up) | self.events.unawaited
        for place, each in enumerate(self.done):
            if each.sent not in unordered:
                late = [other for other in self.done[place + 1 :] if other.ended < each.sent]
                assert all(other.sent in self.events.unawaited for other in late)


TestHeld = HeldMachine.TestCase
TestHeld.settings = settings(max_examples=100, stateful_step_count=30)
