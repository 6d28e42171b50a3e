"""What a provider probably still holds: lifetimes, refreshed by use, against a plain account of all requests."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.errors import ConfigError
from prefixpilot.providers.limits import Lifetime
from prefixpilot.providers.ttl import TtlModel

FIVE = Lifetime(300, 300)
HOUR = Lifetime(3600, 3600)
RANGE = Lifetime(300, 3600)


def test_an_entry_can_be_read_once_the_answer_has_begun() -> None:
    model = TtlModel()
    assert model.begin(b"p", FIVE, 0) == "cold"
    assert model.state(b"p", 1) == "pending"
    model.answered(b"p")
    assert model.state(b"p", 1) == "cached"


def test_each_use_begins_the_lifetime_anew_from_its_start() -> None:
    model = TtlModel()
    model.begin(b"p", FIVE, 0)
    model.answered(b"p")
    assert model.begin(b"p", FIVE, 299) == "cached"
    assert model.state(b"p", 598) == "cached"
    assert model.state(b"p", 599) == "cold"


def test_a_hit_keeps_the_ttl_that_was_written() -> None:
    model = TtlModel()
    model.begin(b"p", FIVE, 0)
    model.answered(b"p")
    model.begin(b"p", HOUR, 10)
    assert model.state(b"p", 310) == "cold"
    model.begin(b"p", HOUR, 310)
    model.answered(b"p")
    assert model.state(b"p", 3909) == "cached"


def test_between_the_ends_of_a_range_nothing_is_known() -> None:
    model = TtlModel()
    model.begin(b"p", RANGE, 0)
    model.answered(b"p")
    assert [model.state(b"p", t) for t in (299, 300, 3599, 3600)] == ["cached", "unknown", "unknown", "cold"]
    assert model.begin(b"p", RANGE, 400) == "unknown"
    assert model.state(b"p", 401) == "pending"
    model.answered(b"p")
    assert model.state(b"p", 699) == "cached"


def test_a_reported_miss_is_believed() -> None:
    model = TtlModel()
    model.begin(b"p", FIVE, 0)
    model.answered(b"p")
    model.forget(b"p")
    assert model.state(b"p", 1) == "cold"
    model.answered(b"p")
    assert model.state(b"p", 1) == "cold"


def test_a_clock_that_runs_back_makes_nothing_younger() -> None:
    model = TtlModel()
    model.begin(b"a", FIVE, 1000)
    model.answered(b"a")
    model.begin(b"b", FIVE, 1200)
    assert model.state(b"a", 0) == "cached"
    model.begin(b"c", FIVE, 900)
    model.check_invariants()
    assert model.state(b"c", 1499) == "pending"


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5])
def test_a_capacity_that_is_none(capacity: object) -> None:
    with pytest.raises(ConfigError):
        TtlModel(capacity)  # type: ignore[arg-type]


class Requests(RuleBasedStateMachine):
    """The specification: the last use, the TTL and the answer of each prefix, kept without a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.model = TtlModel(capacity=3)
        self.uses: dict[bytes, tuple[float, Lifetime, bool]] = {}
        self.recent: list[bytes] = []

    prefixes = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])

    def expected(self, prefix: bytes) -> str:
        if prefix not in self.recent[-3:] or prefix not in self.uses:
            return "cold"
        used, lifetime, answered = self.uses[prefix]
        idle = self.now - used
        if idle >= lifetime.at_most:
            return "cold"
        return "pending" if not answered else "cached" if idle < lifetime.at_least else "unknown"

    @rule(seconds=st.sampled_from([1, 100, 299, 300, 4000]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(prefix=prefixes, lifetime=st.sampled_from([FIVE, HOUR, RANGE]))
    def begin(self, prefix: bytes, lifetime: Lifetime) -> None:
        expected = self.expected(prefix)
        assert self.model.begin(prefix, lifetime, self.now) == expected
        if expected in ("cached", "pending"):
            _, kept, answered = self.uses[prefix]
            self.uses[prefix] = (self.now, kept, answered)
        else:
            kept = min(lifetime, self.uses[prefix][1]) if expected == "unknown" else lifetime
            self.uses[prefix] = (self.now, kept, False)
        self.recent = [p for p in self.recent if p != prefix] + [prefix]

    @rule(prefix=prefixes)
    def answered(self, prefix: bytes) -> None:
        self.model.answered(prefix)
        if prefix in self.recent[-3:] and prefix in self.uses:
            used, lifetime, _ = self.uses[prefix]
            self.uses[prefix] = (used, lifetime, True)

    @rule(prefix=prefixes)
    def forget(self, prefix: bytes) -> None:
        self.model.forget(prefix)
        if prefix in self.recent[-3:]:
            self.recent = [p for p in self.recent[-3:] if p != prefix]
            self.uses.pop(prefix, None)

    @invariant()
    def agrees(self) -> None:
        self.model.check_invariants()
        for prefix in (b"a", b"b", b"c", b"d", b"e"):
            assert self.model.state(prefix, self.now) == self.expected(prefix)


TestRequests = Requests.TestCase
