"""What one engine evicts is not taken from what another one holds."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import ContextPilot, PilotConfig, Request
from prefixpilot.core import ContextBlock, RequestId
from prefixpilot.proxy.fleet.holders import Bounds, EngineIndex, Holders

REQUESTS = st.sampled_from("abcdef")


class Noted:
    """An index that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def shorten(self, request_id: RequestId, blocks: int) -> None:
        self.told.append((request_id, blocks))

    def evict(self, request_ids: Iterable[str]) -> None:
        self.told.append(("evict", sorted(request_ids)))

    def evict_all(self) -> None:
        raise AssertionError("what other engines hold is not gone")

    def resize(self, cache_tokens: int | None) -> None:
        self.told.append(("resize", cache_tokens))


@given(st.lists(st.tuples(REQUESTS, st.integers(0, 2)), max_size=30), REQUESTS, st.integers(0, 2))
def test_each_engine_speaks_for_what_it_was_sent_last(sent: list[tuple[str, int]], asked: str, engine: int) -> None:
    holders, index = Holders(100), Noted()
    for request_id, to in sent:
        holders.sent((request_id,), to)
    holder = dict(sent).get(asked)
    mine = sorted(request_id for request_id, to in dict(sent).items() if to == engine)
    view = EngineIndex(index, holders, Bounds(index, 3), engine)
    view.shorten(RequestId(asked), 2)
    view.evict("abcdef")
    view.evict_all()
    assert index.told == [*([(asked, 2)] if holder == engine else []), ("evict", mine), ("evict", mine)]


@given(st.lists(st.tuples(REQUESTS, st.integers(0, 2)), max_size=30), st.integers(1, 4))
def test_it_is_bounded_and_forgets_the_oldest(sent: list[tuple[str, int]], most: int) -> None:
    holders = Holders(most)
    for request_id, to in sent:
        holders.sent((request_id,), to)
        holders.check_invariants()
    last = list(dict.fromkeys(request_id for request_id, _ in reversed(sent)))[:most]
    held = [request_id for engine in range(3) for request_id in holders.of(engine)]
    assert sorted(held) == sorted(last)


def test_the_index_may_hold_what_all_hold_together() -> None:
    index = Noted()
    bounds = Bounds(index, 2)
    for engine, tokens in ((0, 100), (1, 50), (0, 70), (1, None)):
        bounds.resize(engine, tokens)
    assert index.told == [("resize", None), ("resize", 150), ("resize", 120), ("resize", None)]


def test_a_prefix_that_two_engines_hold_stays_in_the_real_index_when_one_evicts_it() -> None:
    pilot, holders = ContextPilot(PilotConfig()), Holders(100)
    bounds = Bounds(pilot, 2)
    views = [EngineIndex(pilot, holders, bounds, engine) for engine in (0, 1)]
    blocks = tuple(ContextBlock(f"Document {n}. " + "words " * 50) for n in range(4))
    for name, engine in (("one", 0), ("two", 1)):
        plan = pilot.propose(Request(blocks, RequestId(name)))
        holders.sent((name,), engine)
        pilot.learn(plan)
    views[0].shorten(RequestId("one"), 0)
    views[0].shorten(RequestId("two"), 0)
    assert pilot.propose(Request(blocks[::-1], RequestId("three"))).predicted_cached_tokens
    views[1].evict_all()
    assert not pilot.propose(Request(blocks[::-1], RequestId("four"))).predicted_cached_tokens
