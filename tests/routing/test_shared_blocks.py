"""Routing by what replicas have seen: overlap in whatever order, conversations that stay, no herding, bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment
from prefixpilot.routing import Load, Route, RoutedRequest, SharedBlocks

IDLE = Load()


def asks(*blocks: int, conversation: str | None = None, tokens: int = 100) -> RoutedRequest:
    return RoutedRequest([Segment(block, tokens) for block in blocks], conversation)


def test_the_order_of_what_is_shared_does_not_matter() -> None:
    router = SharedBlocks()
    router.sent(asks(1, 2, 3), 0)
    router.sent(asks(4, 5, 6), 1)
    assert router.route(asks(9, 3, 1), [IDLE, IDLE]) == Route(0, 200, "prefix")
    assert router.route(asks(6, 9, 1, 5), [IDLE, IDLE]) == Route(1, 200, "prefix")


def test_a_conversation_stays_however_busy_its_replica_is_and_moves_only_when_that_is_gone() -> None:
    router = SharedBlocks()
    router.sent(asks(1, conversation="c"), 1)
    assert router.route(asks(7, conversation="c"), [IDLE, Load(50)]).replica == 1
    assert router.route(asks(7, conversation="c"), [IDLE, Load(available=False)]).replica == 0


def test_two_routers_agree_on_where_a_new_conversation_goes() -> None:
    for number in range(40):
        asked = asks(number, conversation=f"chat {number}")
        routes = {SharedBlocks().route(asked, [IDLE] * 5).replica for _ in range(2)}
        assert len(routes) == 1
    found = [SharedBlocks().route(asks(n, conversation=f"chat {n}"), [IDLE] * 5).replica for n in range(40)]
    assert len(set(found)) == 5


def test_a_hot_document_does_not_herd_all_requests_to_one_replica() -> None:
    router, under_way = SharedBlocks(), [0, 0, 0, 0]
    for number in range(80):
        asked = asks(1, 100 + number)
        replica = router.route(asked, [Load(n) for n in under_way]).replica
        router.sent(asked, replica)
        under_way[replica] += 1
    assert max(under_way) < 1.4 * sum(under_way) / 4


def test_a_lost_replica_has_seen_nothing_and_its_conversations_come_back_to_its_seat() -> None:
    router = SharedBlocks()
    router.sent(asks(1, 2, conversation="c"), 1)
    router.lost(1)
    assert router.route(asks(1, 2), [IDLE, IDLE]).cached_tokens == 0
    assert router.route(asks(1, conversation="c"), [IDLE, IDLE]).replica == 1


def test_what_was_seen_longest_ago_counts_no_more_than_the_caches_hold() -> None:
    router = SharedBlocks(cache_tokens=250)
    for one, other in pairwise(range(5)):
        router.sent(asks(one, other), 0)
    assert router.route(asks(0, 1, 2, 3, 4), [IDLE]).cached_tokens == 200
    router.check_invariants()


@pytest.mark.parametrize("wrong", [{"slack": -1.0}, {"balance": -0.1}, {"max_segments": 0}, {"max_conversations": 0}])
def test_bad_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="use "):
        SharedBlocks(**wrong)  # type: ignore[arg-type]


class SharedBlocksMachine(RuleBasedStateMachine):
    """Against a list of all that was sent to each replica, which forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.router = SharedBlocks(cache_tokens=1_000, max_segments=6, max_conversations=3)
        self.sent: list[set[int]] = [set(), set(), set()]

    @rule(
        blocks=st.lists(st.integers(0, 9), max_size=5, unique=True),
        conversation=st.sampled_from([None, "a", "b", "c", "d"]),
        busy=st.lists(st.integers(0, 9), min_size=3, max_size=3),
        gone=st.sets(st.integers(0, 2), max_size=2),
    )
    def send(self, blocks: list[int], conversation: str | None, busy: list[int], gone: set[int]) -> None:
        asked = asks(*blocks, conversation=conversation)
        loads = [Load(n, available=i not in gone) for i, n in enumerate(busy)]
        route = self.router.route(asked, loads)
        assert route.replica not in gone
        assert route == self.router.route(asked, loads)
        assert route.cached_tokens <= 100 * len(set(blocks) & self.sent[route.replica])
        self.router.sent(asked, route.replica)
        self.sent[route.replica] |= set(blocks)
        if conversation is not None:
            assert self.router.route(asks(99, conversation=conversation), [IDLE] * 3).replica == route.replica

    @rule(replica=st.integers(0, 2))
    def lose(self, replica: int) -> None:
        self.router.lost(replica)
        self.sent[replica] = set()

    @invariant()
    def bounds_hold(self) -> None:
        self.router.check_invariants()


TestSharedBlocks = SharedBlocksMachine.TestCase
TestSharedBlocks.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
