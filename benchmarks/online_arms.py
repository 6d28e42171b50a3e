"""Ways to order one request at a time. Each is told the cache's capacity and starts empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.inputs import Trace

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.core import BatchContext, BlockId

Online = Callable[[Trace, int | None], list[BatchContext]]


def arrival(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """As given."""
    del capacity
    return trace.contexts


def popularity(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """The blocks seen most often so far first, then by relevance."""
    del capacity
    seen: Counter[BlockId] = Counter()
    result = []
    for context in trace.contexts:
        result.append(reordered(context, sorted(context.blocks, key=lambda b: -seen[b])))
        seen.update(context.blocks)
    return result


@dataclass(slots=True)
class _Visited:
    count: int = 0
    used: int = 0
    below: dict[BlockId, _Visited] = field(default_factory=dict)


def greedy_walk(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """CacheWeaver's idea: from the root enter the child most often used whose block is in the request, again and again;
    the rest by relevance. A node is passed over once more tokens were prefilled since its last use than the cache
    holds: LRU has evicted it."""
    root, clock = _Visited(), 0
    result = []
    for context in trace.contexts:
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


def pilot(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """``ContextPilot.optimize``."""
    ours = ContextPilot(PilotConfig(cache_tokens=capacity))
    result = []
    for entry, context in zip(trace.workload.requests, trace.contexts, strict=True):
        plan = ours.optimize(entry.request)
        names = [entry.name_of(b.position) for b in plan.blocks if b.location_annotation is None]
        result.append(reordered(context, [name for name in names if name is not None]))
    return result


def reordered(context: BatchContext, order: list[BlockId]) -> BatchContext:
    """``context`` with its blocks in another order."""
    length = dict(zip(context.blocks, context.tokens, strict=True))
    if len(order) != len(length) or set(order) != set(length):
        raise ValueError(f"{context.request_id}: the new order is no permutation of its blocks")
    return BatchContext(context.request_id, tuple(order), tuple(length[b] for b in order))
