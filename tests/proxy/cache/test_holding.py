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
        if last_time:
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
        self.without_tokens: list[Watch] = []
        self.expected: list[Watch] = []
        self.forgotten: set[int] = set()

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    @rule()
    def send(self) -> None:
        self.running.append(watch(self.tick(), -1))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), told=st.booleans(), awaited=st.booleans(), tokens=st.booleans())
    def answer(self, which: int, told: bool, awaited: bool, tokens: bool) -> None:
        ended = self.running.pop(which % len(self.running))
        ended.ended = self.tick()
        if told:
            self.events.told.add(ended.sent)
        if not awaited:
            self.events.unawaited.add(ended.sent)
        if tokens:
            self.read(ended)
        else:
            self.without_tokens.append(ended)
            self.held.answered(ended)
        self.look_again()

    @precondition(lambda self: self.without_tokens)
    @rule(which=st.integers(0, 3))
    def tokens_come_after_the_answer(self, which: int) -> None:
        self.read(self.without_tokens.pop(which % len(self.without_tokens)))
        self.look_again()

    def read(self, ended: Watch) -> None:
        waits = self.held.add(ended)
        assert waits == (ended not in self.done)
        self.waiting.append(ended)

    def look_again(self) -> None:
        """Who still waits; those for whose tokens there was no room are waited for by nobody."""
        self.waiting = sorted((w for w in self.waiting if w not in self.done), key=lambda each: each.ended)
        self.expected = [each for each in self.without_tokens if each.sent in self.held._entries]
        self.forgotten |= {each.sent for each in self.without_tokens if each not in self.expected}

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 5))
    def events_come(self, which: int) -> None:
        number = self.waiting[which % len(self.waiting)].sent
        self.events.told.add(number)
        self.held.resume({(number,)})
        self.look_again()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 5))
    def time_is_up(self, which: int) -> None:
        late = self.waiting[which % len(self.waiting)]
        assert self.held.give_up(late)
        assert late in self.done
        assert not self.held.give_up(late)
        self.look_again()

    @precondition(lambda self: self.without_tokens)
    @rule(which=st.integers(0, 3))
    def time_of_one_without_tokens_is_up(self, which: int) -> None:
        late = self.without_tokens[which % len(self.without_tokens)]
        assert not self.held.give_up(late)
        assert late not in self.done
        self.look_again()
        assert late not in self.expected

    @invariant()
    def once_each_and_bounded(self) -> None:
        assert len(set(map(id, self.done))) == len(self.done)
        assert len(self.held) == len(self.waiting) + len(self.expected) <= MOST

    @invariant()
    def whoever_waits_is_not_told_or_waits_for_another(self) -> None:
        for each in self.waiting:
            before = [other for other in (*self.waiting, *self.expected) if other.ended < each.sent]
            assert before or each.sent not in self.events.told

    @invariant()
    def order_is_kept(self) -> None:
        unordered = set(self.events.given_up) | self.events.unawaited
        for place, each in enumerate(self.done):
            if each.sent not in unordered:
                late = [other.sent for other in self.done[place + 1 :] if other.ended < each.sent]
                assert set(late) <= self.events.unawaited | self.forgotten


TestHeld = HeldMachine.TestCase
TestHeld.settings = settings(max_examples=100, stateful_step_count=30)


def test_tokens_that_come_out_of_order_do_not_turn_the_order_of_the_answers_round() -> None:
    """The second one's tokens are there first, and all events come at once: the first one is compared first."""
    events, done = Events(), list[Watch]()
    held = Held(events, done.append)
    first, second = watch(1, 2), watch(3, 4)
    held.answered(first)
    assert held.add(second)
    events.told |= {1, 3}
    held.resume({(3,)})
    assert done == []
    held.add(first)
    assert done == [first, second] and not len(held)


def test_one_whose_events_came_while_it_had_to_wait_for_another_is_woken_by_that() -> None:
    """It had been looked at before, in vain: the other one's tokens were not known to be missing then."""
    events, done = Events(), list[Watch]()
    held = Held(events, done.append)
    first, second = watch(1, 2), watch(3, 4)
    assert held.add(first) and held.add(second)
    events.told.add(3)
    held.resume({(3,)})
    assert done == []
    events.told.add(1)
    held.resume({(1,)})
    assert done == [first, second]
