"""Engines that stand by: they get requests only while no other engine is fit."""

from __future__ import annotations

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment
from prefixpilot.proxy.fleet.pool import Pool
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.routing import RoundRobin, RoutedRequest

URLS = tuple(f"http://127.0.0.1:{port}" for port in (1, 2, 3))
ASKED = RoutedRequest([Segment("a", 10)])


def seated(pool: Pool) -> int | None:
    seat = pool.seat(ASKED)
    return None if seat is None else seat.engine


def test_they_stand_in_once_all_others_are_out_and_no_longer() -> None:
    settings = FleetSettings(eject_after=1, return_after=1)
    pool = Pool(RoundRobin(), 3, settings, frozenset({1, 2}))
    assert [seated(pool) for _ in range(3)] == [0, 0, 0]
    assert pool.any_seat() is not None
    pool.failed(0)
    assert {seated(pool) for _ in range(4)} == {1, 2}
    pool.failed(1)
    pool.failed(2)
    assert seated(pool) is None
    pool.health[0].looked_well(pool.health[0].met)
    assert [seated(pool) for _ in range(3)] == [0, 0, 0]


def test_a_request_whose_own_engine_failed_is_tried_on_one_that_stands_by() -> None:
    pool = Pool(RoundRobin(), 2, FleetSettings(), frozenset({1}))
    assert pool.spare({0})
    seat = pool.seat(ASKED, {0})
    assert seat is not None
    assert seat.engine == 1


def test_the_index_is_as_large_as_the_caches_of_the_others() -> None:
    fleet = FleetSettings(standby=(f"{URLS[2]}/v1",))
    settings = ProxySettings(engine=URLS[0], engines=URLS, cache_tokens=100, fleet=fleet)
    assert settings.standby == {2}
    assert settings.pilot.cache_tokens == 200
    assert settings.of_engine(1).engine == URLS[1]


@pytest.mark.parametrize(("standby", "message"), [(("http://x:9",), "none of engines"), (URLS, "names all engines")])
def test_engines_that_cannot_stand_by(standby: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProxySettings(engine=URLS[0], engines=URLS, fleet=FleetSettings(standby=standby))


def test_one_engine_has_none_to_stand_by() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.standby: is set, and there is one engine"):
        ProxySettings(engine=URLS[0], fleet=FleetSettings(standby=URLS[:1]))
