"""Ways to order one request at a time. Each is told the cache's capacity and starts empty."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.inputs import Trace

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.bench import baselines
from prefixpilot.bench.baselines import reordered
from prefixpilot.core import BatchContext

Online = Callable[[Trace, int | None], list[BatchContext]]


def arrival(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """As given."""
    del capacity
    return trace.contexts


def popularity(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """The blocks seen most often so far first, then by relevance."""
    del capacity
    return baselines.popularity(trace.contexts)


def greedy_walk(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """CacheWeaver's idea."""
    return baselines.greedy_walk(trace.contexts, capacity)


def pilot(trace: Trace, capacity: int | None) -> list[BatchContext]:
    """``ContextPilot.optimize``."""
    ours = ContextPilot(PilotConfig(cache_tokens=capacity))
    result = []
    for entry, context in zip(trace.workload.requests, trace.contexts, strict=True):
        plan = ours.optimize(entry.request)
        names = [entry.name_of(b.position) for b in plan.blocks if b.location_annotation is None]
        result.append(reordered(context, [name for name in names if name is not None]))
    return result
