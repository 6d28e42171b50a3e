"""The controller: who is held out, when a route goes to bypass, and when it comes back."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.control.controller import Arm, Controller, ControlSettings, Outcome, Route, Running

ROUTE = Route("t", "chat", "m")


def controller(**more: float) -> Controller:
    return Controller(ControlSettings(**{"hold_out": 0.05, "min_requests": 20, **more}))  # type: ignore[arg-type]


def outcome(cached: int | None = 0, prompt: int | None = 1000, ttft: float | None = None) -> Outcome:
    return Outcome(1000, prompt, cached, None, ttft)


def feed(control: Controller, arm: Arm, *outcomes: Outcome) -> None:
    for each in outcomes:
        control.add(ROUTE, arm, each)


def bypassed(control: Controller) -> bool:
    return control.assign(ROUTE, next(name for name in map(str, range(1000)) if not _in_share(name))) == "held_out"


def _in_share(name: str) -> bool:
    return controller().assign(Route("other", "chat", "m"), name) == "held_out"


def test_off_holds_nothing_out_and_keeps_nothing() -> None:
    control = Controller()
    control.add(ROUTE, "treated", outcome())
    assert {control.assign(ROUTE, str(i)) for i in range(1000)} == {"treated"}
    assert len(control) == 0 and not control.active


def test_the_share_is_what_was_asked_for_and_the_same_in_every_process() -> None:
    control = controller(hold_out=0.03)
    held = [name for name in map(str, range(20_000)) if control.assign(ROUTE, name) == "held_out"]
    assert 500 < len(held) < 700
    assert (
        held[:3]
        == [name for name in map(str, range(1000)) if controller(hold_out=0.03).assign(ROUTE, name) == "held_out"][:3]
    )


def test_a_route_that_gains_stays_treated() -> None:
    control = controller()
    feed(control, "treated", *[outcome(600)] * 200)
    feed(control, "held_out", *[outcome(100)] * 40)
    (state,) = control.states()
    assert not state.bypassed and state.cost is not None and state.cost.value == pytest.approx(0.5)
    assert (state.treated, state.held_out) == (200, 40)


@pytest.mark.parametrize("prompt", [1000, 1060])
def test_a_route_that_gains_nothing_goes_to_bypass(prompt: int) -> None:
    control = controller()
    feed(control, "treated", *[outcome(100, prompt)] * 50)
    assert not bypassed(control), "judged before the hold-out was large enough"
    feed(control, "held_out", *[outcome(100)] * 25)
    assert bypassed(control)


def test_a_route_in_bypass_comes_back_when_the_treated_share_pays() -> None:
    control = controller(memory=60)
    feed(control, "treated", *[outcome(0, 1050)] * 40)
    feed(control, "held_out", *[outcome(0)] * 40)
    assert bypassed(control)
    feed(control, "treated", *[outcome(700)] * 60)
    assert not bypassed(control)


def test_a_slower_first_token_closes_a_route_beyond_noise_only() -> None:
    noise = random.Random(1)
    slower, noisy = controller(), controller()
    for _ in range(400):
        for control, more in ((slower, 0.2), (noisy, 0.0)):
            control.add(ROUTE, "treated", outcome(None, ttft=1 + more + noise.uniform(-0.3, 0.3)))
            control.add(ROUTE, "held_out", outcome(None, ttft=1 + noise.uniform(-0.3, 0.3)))
    assert bypassed(slower) and not bypassed(noisy)


def test_what_the_engine_does_not_say_is_not_zero() -> None:
    control = controller()
    assert control.cost_of(outcome(None)) is None
    assert control.cost_of(outcome(0, None)) is None
    feed(control, "treated", *[outcome(None)] * 100)
    feed(control, "held_out", *[outcome(0)] * 100)
    assert not bypassed(control)
    assert control.states()[0].cost is None


def test_the_provider_s_prices_count() -> None:
    control = controller(cached_price=0.1, written_price=1.25)
    assert control.cost_of(Outcome(1000, 1000, 600, 300)) == pytest.approx((100 + 60 + 375) / 1000)
    assert control.cost_of(Outcome(1000, 1000, 1500, 300)) == pytest.approx(0.1), "an engine that counts too much"


def test_routes_are_bounded() -> None:
    control = controller(max_routes=10)
    for i in range(50):
        control.add(Route("t", "chat", str(i)), "treated", outcome())
    assert len(control) == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"hold_out": 0.06},
        {"hold_out": -0.1},
        {"min_requests": 0},
        {"memory": 0},
        {"max_routes": 0},
        {"cached_price": -1.0},
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ControlSettings(**settings)  # type: ignore[arg-type]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_a_running_mean_without_decay_is_the_mean_of_statistics(values: list[float]) -> None:
    running = Running()
    for value in values:
        running.add(value, 1.0)
    assert running.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    expected = statistics.pvariance(values) / len(values)
    assert running.variance_of_mean == pytest.approx(expected, rel=1e-6, abs=1e-3)
