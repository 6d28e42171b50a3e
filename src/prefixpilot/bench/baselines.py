"""What others do: ways to order blocks and to choose among waiting requests, as yardsticks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.prefix_cache import RadixPrefixCache, Segment

QUEUE: Final = 128
"""Waiting requests that longest-prefix-match looks at; SGLang falls back to arrival order beyond as many."""


def popularity(contexts: Sequence[BatchContext]) -> list[BatchContext]:
    """The blocks seen most often so far first, then by relevance. O(blocks log blocks)."""
    seen: Counter[BlockId] = Counter()
    result = []
    for context in contexts:
        result.append(reordered(context, sorted(context.blocks, key=lambda b: -seen[b])))
        seen.update(context.blocks)
    return result


@dataclass(slots=True)
class _Visited:
    count: int = 0
    used: int = 0
    below: dict[BlockId, _Visited] = field(default_factory=dict)


def greedy_walk(contexts: Sequence[BatchContext], capacity: int | None) -> list[BatchContext]:
    """CacheWeaver's idea: from the root enter the child most often used whose block is in the request, again and again;
    the rest by relevance. A node is passed over once more tokens were prefilled since its last use than the cache
    holds: LRU has evicted it. O(blocks of a request squared), for each."""
    root, clock = _Visited(), 0
    result = []
    for context in contexts:
        length = dict(zip(context.blocks, context.tokens, strict=True))
        node, order, rest = root, [], dict.fromkeys(context.blocks)
        while True:
            held = [(node.below[b], b) for b in rest if b in node.below]
            held = [(n, b) for n, b in held if capacity is None or clock - n.used <= capacity]
            if not held:
                break
            node, block = max(held, key=lambda pair: pair[0].count)
            order.append(block)
            del rest[block]
        order.extend(rest)
        clock += sum(length[b] for b in rest)
        node = root
        for block in order:
            node = node.below.setdefault(block, _Visited())
            node.count, node.used = node.count + 1, clock
        result.append(reordered(context, order))
    return result


def longest_prefix_first(
    prompts: Sequence[Sequence[Segment]], capacity: int | None, sessions: Sequence[str] | None = None
) -> list[int]:
    """RadixCache's queue policy: of the waiting requests the one with the longest cached prefix runs next. The queue is
    full all the time.

    Args:
        prompts: in arrival order.
        capacity: of the cache, in tokens; ``None``: without bound.
        sessions: of each prompt; one waits for those of its session that came before it. ``None``: none waits.

    Returns:
        the positions of the prompts, in the order in which they run. O(prompts * QUEUE) look-ups.
    """
    cache = RadixPrefixCache(capacity)
    waiting = list(range(min(QUEUE, len(prompts))))
    coming = iter(range(len(waiting), len(prompts)))
    result = []
    while waiting:
        ready = waiting if sessions is None else list(_first_of_each(waiting, sessions))
        chosen = max(ready, key=lambda i: (cache.match_prefix(prompts[i]), -i))
        cache.access(prompts[chosen])
        waiting.remove(chosen)
        result.append(chosen)
        waiting.extend(i for i in [next(coming, None)] if i is not None)
    return result


def _first_of_each(waiting: Sequence[int], sessions: Sequence[str]) -> Iterator[int]:
    seen = set()
    for i in waiting:
        if sessions[i] not in seen:
            seen.add(sessions[i])
            yield i


def segments(context: BatchContext) -> list[Segment]:
    """The prompt of a context: its blocks."""
    return [Segment(block, length) for block, length in zip(context.blocks, context.tokens, strict=True)]


def reordered(context: BatchContext, order: Sequence[BlockId]) -> BatchContext:
    """``context`` with its blocks in another order.

    Raises:
        ValueError: that is no permutation of its blocks.
    """
    length = dict(zip(context.blocks, context.tokens, strict=True))
    if len(order) != len(length) or set(order) != set(length):
        raise ValueError(f"{context.request_id}: the new order is no permutation of its blocks")
    return BatchContext(context.request_id, tuple(order), tuple(length[b] for b in order))
