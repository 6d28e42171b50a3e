"""Routing policies: where requests go, and that no policy herds, forgets or names a replica that is not there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.prefix_cache import Segment
from prefixpilot.routing import (
    POLICIES,
    ConsistentHash,
    ContextAware,
    LeastLoaded,
    Load,
    PrefixHash,
    RoundRobin,
    Route,
    RoutedRequest,
    router_of,
)

IDLE = Load()


def asks(*blocks: int, conversation: str | None = None, tokens: int = 100) -> RoutedRequest:
    return RoutedRequest([Segment(block, tokens) for block in blocks], conversation)


def test_the_worked_way_of_a_prefix() -> None:
    router = ContextAware()
    first = asks(1, 2, 3)
    assert router.route(first, [IDLE, IDLE]) == Route(0, 0, "load")
    router.sent(first, 0)
    assert router.route(asks(1, 2, 4), [IDLE, IDLE]) == Route(0, 200, "prefix")
    assert router.route(asks(9), [IDLE, IDLE]) == Route(1, 0, "load")  # it has computed less


def test_a_conversation_goes_where_its_history_is() -> None:
    router = ContextAware(slack=0)
    router.sent(asks(1, 2), 1)
    assert router.route(asks(1, 2, 3), [IDLE, IDLE, IDLE]).replica == 1


def test_a_hot_prefix_is_computed_elsewhere_once_waiting_costs_more() -> None:
    router = ContextAware(slack=0, balance=0, patience=0)
    router.sent(asks(1, 2), 0)
    near = router.route(asks(1, 2, 3), [Load(1, 150), IDLE])
    far = router.route(asks(1, 2, 3), [Load(1, 250), IDLE])
    assert (near.replica, far.replica) == (0, 1)
    assert far.reason == "load"


def test_under_load_a_somewhat_longer_queue_is_worth_it() -> None:
    busy = [Load(9, 1_200), Load(9, 1_000)]
    patient, hurried = (ContextAware(slack=slack, balance=0, patience=0) for slack in (0.25, 0.0))
    for router in (patient, hurried):
        router.sent(asks(1), 0)
    assert patient.route(asks(1, 2), busy).replica == 0
    assert hurried.route(asks(1, 2), busy).replica == 1


@pytest.mark.parametrize(("queue", "replica"), [(200, 0), (299, 0), (300, 1)])
def test_a_prompt_under_way_does_not_send_the_next_of_its_kind_elsewhere(queue: int, replica: int) -> None:
    """It waits twice what is cached for nothing (200 tokens), and beyond that for less than it saves (100)."""
    router = ContextAware(balance=0)
    router.sent(asks(1), 0)
    assert router.route(asks(*range(1, 11)), [Load(1, queue), IDLE]).replica == replica


def test_patience_has_the_time_of_the_whole_prompt_for_its_bound() -> None:
    router = ContextAware(balance=0)
    router.sent(asks(1, 2, 3), 0)
    told = asks(1, 2, 3, 4)
    assert [router.route(told, [Load(1, queue), IDLE]).replica for queue in (699, 700)] == [0, 1]


def test_what_no_cache_holds_goes_to_the_shortest_queue_whatever_the_patience() -> None:
    router = ContextAware(balance=0, patience=100)
    router.sent(asks(1), 0)
    assert router.route(asks(2), [Load(1, 10), IDLE]).replica == 1


def test_a_hot_prefix_does_not_herd() -> None:
    router = ContextAware()
    queues = [0, 0, 0, 0]
    for number in range(400):
        request = asks(1, 1_000 + number)
        route = router.route(request, [Load(0, queue) for queue in queues])
        router.sent(request, route.replica)
        queues[route.replica] += request.tokens - route.cached_tokens
        queues = [max(0, queue - 25) for queue in queues]
    assert max(router._computed) < 1.3 * sum(router._computed) / 4


def test_an_evicted_prefix_is_not_believed_in() -> None:
    router = ContextAware(cache_tokens=300)
    router.sent(asks(1, 2, 3), 0)
    router.sent(asks(4, 5, 6), 0)
    assert router.route(asks(1, 2, 3), [IDLE]).cached_tokens == 0


def test_less_than_a_page_is_not_believed_in() -> None:
    router = ContextAware(page_size=64)
    router.sent(asks(1), 0)
    assert router.route(asks(1), [IDLE]).cached_tokens == 64


def test_a_replica_that_began_anew_holds_nothing() -> None:
    router = ContextAware()
    router.sent(asks(1, 2), 0)
    router.lost(0)
    assert router.route(asks(1, 2), [IDLE, IDLE]).cached_tokens == 0


def test_a_new_replica_is_not_flooded() -> None:
    router = ContextAware()
    for number in range(20):
        replica = router.route(asks(number), [IDLE, IDLE]).replica
        router.sent(asks(number), replica)
    taken = []
    for number in range(30, 39):
        taken.append(router.route(asks(number), [IDLE, IDLE, IDLE]).replica)
        router.sent(asks(number), taken[-1])
    assert sorted(taken) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_round_robin_goes_round_and_skips() -> None:
    router = RoundRobin()
    loads = [IDLE, Load(available=False), IDLE]
    assert [router.route(asks(1), loads).replica for _ in range(4)] == [0, 2, 0, 2]


def test_least_loaded_looks_at_tokens_then_requests() -> None:
    assert LeastLoaded().route(asks(1), [Load(1, 50), Load(5, 10), Load(2, 10)]).replica == 2


def test_consistent_hash_moves_few_conversations_when_one_replica_goes() -> None:
    router = ConsistentHash()
    talks = [asks(1, conversation=f"c{i}") for i in range(300)]
    before = [router.route(talk, [IDLE] * 4).replica for talk in talks]
    after = [router.route(talk, [IDLE, IDLE, IDLE, Load(available=False)]).replica for talk in talks]
    assert all(a == b for a, b in zip(before, after, strict=True) if b != 3 and a != 3)
    assert 40 < before.count(3) < 120


def test_prefix_hash_looks_at_the_beginning_only() -> None:
    router = PrefixHash(tokens=150)
    loads = [IDLE] * 8
    assert router.route(asks(1, 2, 3), loads) == router.route(asks(1, 2, 9), loads)
    assert len({router.route(asks(number), loads).replica for number in range(40)}) > 4


@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 3)), max_size=30),
    st.lists(st.builds(Load, st.integers(0, 5), st.integers(0, 900), st.booleans()), min_size=1, max_size=5),
)
def test_any_policy_names_a_replica_that_is_available(
    name: str, asked: Sequence[tuple[list[int], int]], loads: list[Load]
) -> None:
    router, twin = router_of(name, 500, 16), router_of(name, 500, 16)
    for blocks, talk in asked:
        request = asks(*blocks, conversation=f"c{talk}")
        if not any(load.available for load in loads):
            with pytest.raises(InvalidRequestError, match="loads: has no replica that is available"):
                router.route(request, loads)
            continue
        route = router.route(request, loads)
        assert route == twin.route(request, loads)
        assert loads[route.replica].available
        assert 0 <= route.cached_tokens <= request.tokens
        router.sent(request, route.replica)
        twin.sent(request, route.replica)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: router_of("best"), "policy: is 'best'; use one of: context-aware, round-robin"),
        (lambda: ContextAware(balance=-1), "balance: is -1"),
        (lambda: ContextAware(slack=-1), "slack: is -1"),
        (lambda: ContextAware(patience=-1), "patience: is -1"),
        (lambda: PrefixHash(0), "tokens: is 0"),
    ],
)
def test_bad_settings_name_the_field(make: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()  # type: ignore[operator]
    assert str(refused.value).startswith(message)
