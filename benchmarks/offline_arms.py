"""Ways to order and schedule a batch that is known, each from contexts to contexts in execution order."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence

from prefixpilot.bench import baselines
from prefixpilot.bench.baselines import segments
from prefixpilot.core import BatchContext, BlockId
from prefixpilot.index import ContextIndex, build
from prefixpilot.planners.shared_tokens import plan_shared_tokens
from prefixpilot.scheduling import schedule_by_group, schedule_depth_first

Contexts = Sequence[BatchContext]
Arm = Callable[[Contexts], Contexts]


def arrival(contexts: Contexts) -> Contexts:
    """As they come."""
    return contexts


def longest_prefix_first(contexts: Contexts, capacity: int | None) -> Contexts:
    """RadixCache's queue policy; block order as given."""
    order = baselines.longest_prefix_first([segments(context) for context in contexts], capacity)
    return [contexts[i] for i in order]


def top_down(contexts: Contexts) -> Contexts:
    """As GGR: the block that saves most (tokens x (holders - 1)) first, its holders in the same way without it, then
    the other contexts; depth first."""
    lengths = {b: t for c in contexts for b, t in zip(c.blocks, c.tokens, strict=True)}
    result: list[BatchContext] = []
    stack: list[tuple[list[int], tuple[BlockId, ...]]] = [(list(range(len(contexts))), ())]
    while stack:
        group, head = stack.pop()
        parts, rest = _parts(contexts, lengths, group, frozenset(head))
        for i in rest:
            blocks = head + tuple(b for b in contexts[i].blocks if b not in head)
            result.append(BatchContext(contexts[i].request_id, blocks, tuple(lengths[b] for b in blocks)))
        stack.extend((members, (*head, block)) for block, members in reversed(parts))
    return result


def _parts(
    contexts: Contexts, lengths: dict[BlockId, int], group: list[int], placed: frozenset[BlockId]
) -> tuple[list[tuple[BlockId, list[int]]], list[int]]:
    """``group`` by its best block, then what is left by the next, ...; and the contexts that share nothing more."""
    holders: dict[BlockId, list[int]] = {}
    for i in group:
        for block in contexts[i].blocks:
            if block not in placed:
                holders.setdefault(block, []).append(i)
    left = Counter({block: len(held) for block, held in holders.items() if len(held) > 1})
    heap = [(-lengths[block] * (count - 1), n, block) for n, (block, count) in enumerate(left.items())]
    heapq.heapify(heap)
    free = dict.fromkeys(group)
    parts = []
    while heap:
        value, n, block = heapq.heappop(heap)
        now = -lengths[block] * (left[block] - 1)
        if left[block] < 2:
            continue
        if now > value:
            heapq.heappush(heap, (now, n, block))
            continue
        members = [i for i in holders[block] if i in free]
        for i in members:
            del free[i]
            left.subtract(b for b in contexts[i].blocks if b in left)
        parts.append((block, members))
    return parts, list(free)


def _paper(schedule: Callable[[list[tuple[int, ...]]], tuple[int, ...]]) -> Arm:
    def arm(contexts: Contexts) -> Contexts:
        index = ContextIndex()
        build(index, contexts, lambda block: block)
        paths = list(index.paths().items())
        leaves = [index.leaf(paths[i][0]) for i in schedule([path for _, path in paths])]
        return [
            BatchContext(paths[i][0], leaf.blocks, leaf.tokens)
            for i, leaf in zip(schedule([path for _, path in paths]), leaves, strict=True)
        ]

    return arm


paper_algorithm_5 = _paper(schedule_by_group)
paper_depth_first = _paper(schedule_depth_first)


def shared_tokens(contexts: Contexts) -> Contexts:
    """Our default."""
    return plan_shared_tokens(contexts, lambda block: block)
