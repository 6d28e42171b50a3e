from __future__ import annotations

import random
from collections import Counter
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planners.oracle import most_saved_tokens, saved_tokens
from tests.properties.strategies import contexts

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.core import BatchContext, BlockId, RequestId
from prefixpilot.errors import InvalidInputError
from prefixpilot.planners import optimum
from prefixpilot.planners.agglomerate import Merge, agglomerate, agglomerate_best
from prefixpilot.planners.bound import spanning_forest_bound
from prefixpilot.planners.inverted_file import InvertedFile
from prefixpilot.planners.shared_tokens import plan_shared_tokens
from prefixpilot.planners.split import split
from prefixpilot.prefix_cache import RadixPrefixCache, Segment, replay

batches = st.lists(contexts, max_size=12)


def tokens_of(block: BlockId) -> int:
    return 50 + 37 * int(block) % 91


def batch_of(many: list[list[BlockId]]) -> list[BatchContext]:
    return [BatchContext(RequestId(str(i)), tuple(c), tuple(map(tokens_of, c))) for i, c in enumerate(many)]


def planned(many: list[list[BlockId]], page_size: int = 1, part: int = 1024) -> list[BatchContext]:
    whole = 4096 if part == 1024 else part
    return plan_shared_tokens(batch_of(many), lambda b: b, page_size, whole=whole, part=part)


@given(batches, st.sampled_from([1, 16, 100_000]), st.sampled_from([1, 3, 1024]))
def test_a_plan_permutes_requests_and_their_blocks(many: list[list[BlockId]], page_size: int, part: int) -> None:
    result = planned(many, page_size, part)
    assert sorted(int(c.request_id) for c in result) == list(range(len(many)))
    for context in result:
        assert Counter(context.blocks) == Counter(many[int(context.request_id)])
        assert context.tokens == tuple(map(tokens_of, context.blocks))


@given(batches, st.sampled_from([1, 2, 5, 1024]))
def test_equal_contexts_follow_each_other(many: list[list[BlockId]], part: int) -> None:
    seen: dict[frozenset[BlockId], tuple[BlockId, ...]] = {}
    last: frozenset[BlockId] | None = None
    for context in planned(many, part=part):
        key = frozenset(context.blocks)
        assert seen.setdefault(key, context.blocks) == context.blocks
        assert key == last or sum(frozenset(c) == key for c in many) >= 1
        if key != last:
            assert last is None or key not in list(seen)[:-1]
        last = key


@given(batches)
def test_a_plan_saves_no_more_than_the_optimum_and_that_no_more_than_the_bound(many: list[list[BlockId]]) -> None:
    best = most_saved_tokens(batch_of(many)) if many else 0
    assert saved_tokens(planned(many)) <= best <= spanning_forest_bound(batch_of(many))


@given(batches)
def test_the_rest_of_a_context_keeps_the_retrievers_order(many: list[list[BlockId]]) -> None:
    holders = Counter(block for context in {frozenset(c) for c in many} for block in context)
    for context in planned(many):
        given = many[int(context.request_id)]
        alone = [b for b in context.blocks if holders[b] == 1 and given.count(b)]
        if sum(frozenset(c) == frozenset(given) for c in many) == 1:
            assert alone == [b for b in given if holders[b] == 1]


@given(batches)
def test_nothing_is_lost_in_a_cache_that_holds_one_request(many: list[list[BlockId]]) -> None:
    pilot = ContextPilot()
    requests = [
        Request(tuple(ContextBlock(id=b, tokens=tokens_of(b)) for b in c), RequestId(str(i)))
        for i, c in enumerate(many)
    ]
    prompts = [[Segment(b.block_id, b.tokens) for b in entry.plan.blocks] for entry in pilot.optimize_batch(requests)]
    largest = max((sum(s.tokens for s in prompt) for prompt in prompts), default=1)
    small, unbounded = (replay(RadixPrefixCache(capacity), prompts) for capacity in (largest, None))
    assert small.cached_tokens == unbounded.cached_tokens


def neighbourhood(seed: int) -> list[list[BlockId]]:
    """12 requests around one topic: most blocks from a pool by popularity, some rare ones, shuffled."""
    chance = random.Random(seed)
    pool = list(range(24))
    weights = [1 / (rank + 1) ** 0.7 for rank in pool]
    many = []
    for _ in range(12):
        chosen: dict[BlockId, None] = {}
        while len(chosen) < 7:
            chosen[chance.choices(pool, weights)[0]] = None
        many.append([*chosen, *(100 + chance.randrange(300) for _ in range(1))])
        chance.shuffle(many[-1])
    return many


@pytest.mark.no_cover
def test_close_to_the_optimum_on_neighbourhoods() -> None:
    ratios = []
    for seed in range(6):
        many = neighbourhood(seed)
        ratios.append(saved_tokens(planned(many)) / most_saved_tokens(batch_of(many)))
    assert mean(ratios) > 0.96
    assert min(ratios) > 0.9


@pytest.mark.no_cover
def test_it_saves_more_than_the_papers_planner_where_lengths_differ() -> None:
    long, short = ContextBlock("long", tokens=1000), [ContextBlock(f"short {i}", tokens=1) for i in range(3)]
    pairs = [(long, *short[:2]), (*short[:2], ContextBlock("x")), (long, ContextBlock("y"), ContextBlock("z"))]
    saved = {}
    for planner in ("paper", "shared-tokens"):
        pilot = ContextPilot(PilotConfig(planner=planner))
        batch = [Request(blocks, RequestId(str(i))) for i, blocks in enumerate(pairs)]
        saved[planner] = sum(e.plan.predicted_cached_tokens or 0 for e in pilot.optimize_batch(batch))
    assert saved["shared-tokens"] >= 1000 > saved["paper"]


def test_a_prefix_shorter_than_a_page_is_worth_nothing() -> None:
    tokens = np.array([60.0, 100.0])
    arrays = [np.array([0, 1]), np.array([0]), np.array([1])]
    assert agglomerate(arrays, tokens, page_size=64)[0].common == (1,)
    assert agglomerate(arrays, tokens, page_size=128) == []
    assert len(agglomerate(arrays, tokens)) == 1


def test_groups_cover_all_contexts_once_and_rare_blocks_tie_nothing() -> None:
    topics = [[10 * t + i for i in range(5)] for t in range(8)]
    arrays = [np.array(sorted([*topics[n % 8], 100 + n // 2])) for n in range(160)]
    groups = list(split(arrays, np.ones(200), limit=40))
    assert sorted(int(i) for g in groups for i in g) == list(range(160))
    assert all(len(g) <= 40 for g in groups)
    for t in range(8):
        assert sum(any(int(i) % 8 == t for i in g) for g in groups) == 1


def test_equal_contexts_beyond_the_limit_are_split_too() -> None:
    groups = list(split([np.array([0, 1])] * 50, np.ones(2), limit=7))
    assert sorted(int(i) for g in groups for i in g) == list(range(50))
    assert max(len(g) for g in groups) <= 7


def test_an_inverted_file_counts_shared_tokens() -> None:
    file = InvertedFile([np.array([0, 2]), np.array([2]), np.array([], dtype=np.int64)], np.array([5.0, 7.0, 3.0]))
    assert file.shared_tokens(0).tolist() == [8.0, 3.0, 0.0]
    assert file.shared_tokens(2).tolist() == [0.0, 0.0, 0.0]
    assert file.shared_rows(slice(0, 3)).tolist() == [file.shared_tokens(i).tolist() for i in range(3)]
    assert [file.holders(b).tolist() for b in range(3)] == [[0], [], [0, 1]]


@pytest.mark.parametrize("count", [0, 1])
def test_small_batches(count: int) -> None:
    assert [c.blocks for c in planned([[3, 1]] * count)] == [(3, 1)] * count
    assert spanning_forest_bound(batch_of([[3, 1]] * count)) == 0


@given(st.lists(contexts, min_size=1, max_size=7))
def test_the_optimum_is_that_of_the_readable_programme(many: list[list[BlockId]]) -> None:
    assert optimum.most_saved_tokens(batch_of(many)) == most_saved_tokens(batch_of(many))


def test_the_optimum_of_too_many_contexts_is_refused() -> None:
    assert optimum.most_saved_tokens([]) == 0
    with pytest.raises(InvalidInputError, match="has 17"):
        optimum.most_saved_tokens(batch_of([[1]] * 17))


@given(batches, st.sampled_from([1, 64]))
def test_small_groups_are_never_worse_than_with_one_charge(many: list[list[BlockId]], page_size: int) -> None:
    tokens = np.array([float(tokens_of(b)) for b in range(10)])
    arrays = [np.array(sorted(c), dtype=np.int64) for c in many]

    def saved(merges: list[Merge]) -> int:
        return sum(int(tokens[list(m.common)].sum()) // page_size for m in merges)

    if arrays:
        assert saved(agglomerate_best(arrays, tokens, page_size)) >= saved(agglomerate(arrays, tokens, page_size))


@given(st.lists(contexts, min_size=2, max_size=14))
def test_each_merge_is_the_best_there_is(many: list[list[BlockId]]) -> None:
    """Replays the merges against all pairs: plain Python, ties to the smallest first, then second group."""
    tokens = np.array([float(tokens_of(b)) for b in range(10)])
    groups: dict[int, frozenset[BlockId]] = {i: frozenset(c) for i, c in enumerate(many)}
    merges = agglomerate([np.array(sorted(c), dtype=np.int64) for c in many], tokens, loss=0.0)
    for merge in merges:
        pairs = [(-sum(map(tokens_of, groups[i] & groups[j])), i, j) for i in groups for j in groups if i < j]
        assert min(pairs)[1:] == merge[:2]
        groups[merge.first] &= groups.pop(merge.second)
        assert sorted(groups[merge.first], key=int) == list(merge.common)
    assert not any(groups[i] & groups[j] for i in groups for j in groups if i < j)
