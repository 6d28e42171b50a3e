"""Replays whose every number can be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from prefixpilot.annotations import estimate_annotation_tokens
from prefixpilot.bench import Mode, ReplayReport, simulate
from prefixpilot.core import BlockId, ContextBlock, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Access, RadixPrefixCache, Segment
from prefixpilot.workloads import Workload, WorkloadRequest


def workload(*requests: list[BlockId], sessions: str = "") -> Workload:
    """Requests r0, r1, ... over blocks of 100 tokens; ``sessions`` names the session of each by a letter."""
    entries, turns = [], dict[str, int]()
    for number, ids in enumerate(requests):
        session = sessions[number] if sessions else f"s{number}"
        turns[session] = turns.get(session, -1) + 1
        blocks = tuple(ContextBlock(id=i, tokens=100) for i in ids)
        request = Request(blocks, RequestId(f"r{number}"))
        entries.append(WorkloadRequest(request, session, turns[session], f"test:{number + 1}"))
    return Workload("tiny", tuple(entries))


def run(given: Workload, mode: Mode, cache_tokens: int | None = None, **options: Any) -> ReplayReport:
    cache = RadixPrefixCache(cache_tokens)
    report = simulate(given, mode, cache, **options)
    cache.check_invariants()
    return report


def totals(report: ReplayReport) -> tuple[int, int]:
    return report.result.total_tokens, report.result.cached_tokens


SHUFFLED = workload([2, 1, 3], [4, 5, 6], [1, 2, 7])


def test_arrival_sends_the_given_order() -> None:
    report = run(SHUFFLED, "arrival")
    assert [sent.blocks for sent in report.sent] == [(2, 1, 3), (4, 5, 6), (1, 2, 7)]
    assert totals(report) == (900, 0)
    assert report.annotation_tokens == 0


def test_online_follows_what_was_sent() -> None:
    report = run(SHUFFLED, "online")
    assert [sent.blocks for sent in report.sent] == [(2, 1, 3), (4, 5, 6), (2, 1, 7)]
    assert totals(report) == (900, 200)


def test_annotations_are_counted_but_not_part_of_the_prompt() -> None:
    report = run(SHUFFLED, "online")
    order = (
        "Please read the context in the following priority order: [Doc 2] > [Doc 1] > [Doc 3] and answer the question."
    )
    assert report.annotation_tokens == estimate_annotation_tokens(order)
    assert report.result.total_tokens == 900
    assert report.net_cached_tokens == 200 - report.annotation_tokens


def test_online_knows_the_size_of_the_cache() -> None:
    # With room for one request the first is gone when the third comes: its order is not worth following.
    report = run(SHUFFLED, "online", cache_tokens=300)
    assert report.sent[2].blocks == (1, 2, 7)
    assert totals(report) == (900, 0)


def test_online_does_not_follow_what_the_cache_tells_is_used_up() -> None:
    class UsedUp(RadixPrefixCache):
        def access(self, prompt: Sequence[Segment]) -> Access:
            return super().access(prompt)._replace(used_up=(1, 77))

    assert run(SHUFFLED, "online").sent[2].blocks == (2, 1, 7)
    report = simulate(SHUFFLED, "online", UsedUp(None))
    assert report.sent[2].blocks == (1, 2, 7), "the second request is told to have used up the first"


def test_offline_puts_sharers_side_by_side() -> None:
    report = run(SHUFFLED, "offline", cache_tokens=300)
    assert totals(report) == (900, 200)
    ids = [sent.request_id for sent in report.sent]
    assert sorted(ids) == ["r0", "r1", "r2"]
    assert abs(ids.index(RequestId("r0")) - ids.index(RequestId("r2"))) == 1
    for sent in report.sent:
        given = SHUFFLED.requests[int(sent.request_id[1:])].request
        assert sorted(map(str, sent.blocks)) == sorted(str(block.id) for block in given.blocks)


@pytest.mark.parametrize("mode", ["arrival", "online", "offline"])
def test_sessions_mean_nothing_unless_asked(mode: Mode) -> None:
    report = run(workload([1, 2], [2, 1], sessions="aa"), mode)
    assert [sorted(map(str, sent.blocks)) for sent in report.sent] == [["1", "2"], ["1", "2"]]
    assert report.result.total_tokens == 400


CHAT = workload([1, 2], [9], [2, 3], sessions="aba")


def test_a_conversation_carries_its_history() -> None:
    report = run(CHAT, "arrival", multi_turn=True)
    # [1 2], [9], [1 2 | 2 3]
    assert totals(report) == (200 + 100 + 400, 200)
    assert report.sent[2].blocks == (2, 3)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_conversation_does_not_send_a_block_twice(mode: Mode) -> None:
    report = run(CHAT, mode, multi_turn=True)
    location = estimate_annotation_tokens("Please refer to [Doc 2] in the previous conversation.")
    assert report.annotation_tokens == location
    # [1 2], [9], [1 2 | (2) 3]
    assert totals(report) == (200 + 100 + 300 + location, 200)
    assert {sent.request_id: sent.blocks for sent in report.sent}[RequestId("r2")] == (3,)


def test_turns_keep_their_order_offline() -> None:
    given = workload([1, 2], [3, 4], [5], [1, 2], [6], sessions="abbaa")
    sent = [sent.request_id for sent in run(given, "offline", multi_turn=True).sent]
    assert [r for r in sent if r in ("r0", "r3", "r4")] == ["r0", "r3", "r4"]
    assert [r for r in sent if r in ("r1", "r2")] == ["r1", "r2"]


def test_a_shared_text_under_two_ids_is_one_block() -> None:
    blocks = (ContextBlock(text="same", id="a", tokens=100), ContextBlock(text="same", id="b", tokens=100))
    requests = [Request((block,), RequestId(f"r{i}")) for i, block in enumerate(blocks)]
    given = Workload("t", tuple(WorkloadRequest(r, r.request_id, 0, "t") for r in requests))
    report = run(given, "arrival")
    assert totals(report) == (200, 100)
    assert [sent.blocks for sent in report.sent] == [("a",), ("b",)]


def test_scopes_share_nothing() -> None:
    block = ContextBlock(id=1, tokens=100)
    requests = [Request((block,), RequestId(scope), scope=scope) for scope in ("m", "n", "o")]
    given = Workload("t", tuple(WorkloadRequest(r, r.request_id, 0, "t") for r in requests))
    assert totals(run(given, "arrival")) == (300, 0)


def test_every_request_is_reported() -> None:
    steps: list[None] = []
    report = run(SHUFFLED, "arrival", on_request=lambda: steps.append(None))
    assert len(steps) == len(report.sent) == len(report.result.accesses) == 3
    assert [window.requests for window in report.windows] == [1, 1, 1]
    assert (report.workload, report.mode, report.multi_turn, report.cache_tokens) == ("tiny", "arrival", False, None)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode: is 'sideways'; use one of: arrival, online, offline"):
        run(SHUFFLED, cast(Mode, "sideways"))
