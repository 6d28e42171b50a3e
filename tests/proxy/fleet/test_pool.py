"""Which engine gets a request, which are out and come back, and what each is believed to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.fleet.engines import router
from prefixpilot.proxy.fleet.health import Health
from prefixpilot.proxy.fleet.pool import Pool, Seat
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.routing import POLICIES, RoutedRequest, router_of

PROMPTS = st.sampled_from(["ab", "abc", "abd", "xy", "xyz", ""])


def request(text: str, conversation: str | None = None) -> RoutedRequest:
    return RoutedRequest([Segment(c, 100) for c in text], conversation)


class PoolMachine(RuleBasedStateMachine):
    """A readable model beside it: failures and good looks as lists, seats as they were given."""

    @initialize(
        policy=st.sampled_from(POLICIES), count=st.integers(2, 4), out=st.integers(1, 3), back=st.integers(1, 3)
    )
    def begin(self, policy: str, count: int, out: int, back: int) -> None:
        self.count, self.out, self.back = count, out, back
        self.pool = Pool(router_of(policy, 1000), count, FleetSettings(eject_after=out, return_after=back, retries=1))
        self.past: list[list[bool]] = [[] for _ in range(count)]
        self.fit = [True] * count
        self.drained: set[int] = set()
        self.seats: list[Seat] = []

    def note(self, engine: int, *, well: bool, look: bool) -> None:
        """The model: what happened since it last came in or went out."""
        if look or self.fit[engine]:
            self.past[engine].append(well)
        wanted, needed = (False, self.out) if self.fit[engine] else (True, self.back)
        if self.past[engine][-needed:] == [wanted] * needed:
            self.fit[engine] = not self.fit[engine]
            self.past[engine].clear()

    @rule(text=PROMPTS, conversation=st.sampled_from([None, "c"]), tried=st.sets(st.integers(0, 3), max_size=2))
    def seat(self, text: str, conversation: str | None, tried: set[int]) -> None:
        free = [n for n in self.taking if n not in tried]
        got = self.pool.seat(request(text, conversation), tried)
        assert (got is None) == (not free)
        if got is not None:
            assert got.engine in free
            assert 0 <= got.cached_tokens <= 100 * len(text)
            self.seats.append(got)

    @rule(tried=st.sets(st.integers(0, 3), max_size=2))
    def any_seat(self, tried: set[int]) -> None:
        free = [n for n in self.taking if n not in tried]
        got = self.pool.any_seat(tried)
        assert (got is None) == (not free)
        if got is not None:
            least = min(self.pool.loads()[n].in_flight - (n == got.engine) for n in free)
            assert self.pool.loads()[got.engine].in_flight - 1 == least
            self.seats.append(got)
        assert self.pool.spare(tried) == (bool(free) and len(tried) <= 1)

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), began=st.booleans(), again=st.booleans())
    def leave(self, data: st.DataObject, began: bool, again: bool) -> None:
        seat = data.draw(st.sampled_from(self.seats))
        if began:
            self.pool.began(seat)
            assert seat.prefill_tokens == 0
        self.pool.leave(seat)
        if not again:
            self.seats.remove(seat)

    @rule(engine=st.integers(0, 3))
    def fails(self, engine: int) -> None:
        engine %= self.count
        before = self.fit[engine]
        self.note(engine, well=False, look=True)
        assert self.pool.failed(engine) == (before and not self.fit[engine])

    @rule(engine=st.integers(0, 3))
    def answers(self, engine: int) -> None:
        engine %= self.count
        self.note(engine, well=True, look=False)
        self.pool.health[engine].answered()

    @rule(engine=st.integers(0, 3))
    def looks_well(self, engine: int) -> None:
        engine %= self.count
        before = self.fit[engine]
        self.note(engine, well=True, look=True)
        health = self.pool.health[engine]
        assert not health.looked_well(health.met - 1), "what failed since that look began counts"
        assert health.looked_well(health.met) == (not before and self.fit[engine])

    @property
    def taking(self) -> list[int]:
        return [n for n in range(self.count) if self.fit[n] and n not in self.drained]

    @rule(engine=st.integers(0, 3))
    def drain(self, engine: int) -> None:
        self.drained.add(engine % self.count)
        self.pool.drain(engine % self.count)

    @rule(engine=st.integers(0, 3))
    def resume(self, engine: int) -> None:
        self.drained.discard(engine % self.count)
        self.pool.resume(engine % self.count)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        for seat in (self.pool.seat(request("abc")) for _ in range(2)):
            if seat is not None:
                self.seats.append(seat)

    @invariant()
    def holds(self) -> None:
        self.pool.check_invariants(self.seats)
        assert [load.available for load in self.pool.loads()] == [n in self.taking for n in range(self.count)]
        assert [health.fit for health in self.pool.health] == self.fit, "draining is nothing of its health"
        assert self.pool.fit() == self.taking
        assert self.pool.drained == self.drained


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def pool(policy: str = "context-aware", count: int = 3) -> Pool:
    return Pool(router_of(policy, 100_000), count, FleetSettings(eject_after=2))


def test_equal_beginnings_meet_and_strangers_spread() -> None:
    fleet = pool()
    first = [fleet.seat(request(text)) for text in ("aaaa", "bbbb", "cccc")]
    engines = [seat.engine for seat in first if seat is not None]
    assert sorted(engines) == [0, 1, 2]
    for seat in first:
        assert seat is not None
        fleet.leave(seat)
    for n, text in enumerate(("aaaax", "bbbbx", "ccccx")):
        seat = fleet.seat(request(text))
        assert seat is not None and (seat.engine, seat.cached_tokens) == (engines[n], 400)
        fleet.leave(seat)


def test_a_hot_beginning_is_computed_a_second_time_once_its_queue_is_long() -> None:
    fleet = pool(count=2)
    seats = [fleet.seat(request("aaaaaaaa" + str(n) * 8)) for n in range(6)]
    assert {seat.engine for seat in seats if seat is not None} == {0, 1}


def test_an_engine_that_went_out_holds_nothing_when_it_is_back() -> None:
    fleet = pool(count=2)
    seat = fleet.seat(request("aaaa"))
    assert seat is not None
    fleet.leave(seat)
    assert [fleet.failed(seat.engine) for _ in range(2)] == [False, True]
    other = fleet.seat(request("aaaa"))
    assert other is not None and other.engine != seat.engine and other.cached_tokens == 0
    assert [fleet.health[seat.engine].looked_well(fleet.health[seat.engine].met) for _ in range(2)] == [False, True]
    assert fleet.health[seat.engine].ejections == 1


def test_one_good_answer_between_two_failures_keeps_it_in() -> None:
    health = Health(2, 2)
    health.failed()
    health.answered()
    assert not health.failed()
    assert health.fit


@pytest.mark.parametrize("name", [name.replace("-", "_") for name in POLICIES])
def test_each_policy_has_a_setting(name: Any) -> None:
    assert router(ProxySettings("http://a:1", routing=name)) is not None


def test_an_unknown_policy_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"routing: is .fastest.; use one of: context_aware, round_robin"):
        ProxySettings("http://a:1", routing="fastest")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engines", "why"),
    [
        (("http://a:1", "http://a:1/v1/"), "names http://a:1 twice"),
        (("http://b:1", "http://a:1"), "begins with http://b:1, and the engine is http://a:1"),
        (("http://a:1", "b:1"), "engines: is 'b:1'"),
        (("http://a:1", "http://:secret@b:1"), "holds a user name or a password"),
    ],
)
def test_engines_that_cannot_be(engines: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        ProxySettings("http://a:1", engines=engines)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("setting", [{"check_interval": 0}, {"eject_after": 0}, {"return_after": 0}, {"retries": -1}])
def test_settings_that_cannot_be(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        FleetSettings(**setting)


def test_a_look_that_began_before_a_request_failed_says_nothing() -> None:
    health = Health(eject_after=2, return_after=1)
    began = health.met
    assert not health.failed()
    assert not health.looked_well(began)
    assert health.failed() and not health.fit
    assert health.looked_well(health.met) and health.fit
