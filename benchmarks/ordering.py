"""Hit rates of ways to order, offline and online, on every trace, in caches of several sizes.

    python -m benchmarks.ordering [FOLDER] [--only NAME ...]

Share of the prompt tokens (blocks only) that a token-exact LRU cache serves. FOLDER holds traces (else generated ones).
The bound is that of any order and any schedule in a cache without bound. Writes benchmarks/results/ordering.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import inputs, offline_arms, online_arms
from benchmarks.inputs import Trace
from benchmarks.machine import save

from prefixpilot.bench.baselines import segments
from prefixpilot.core import BatchContext
from prefixpilot.planners.bound import spanning_forest_bound
from prefixpilot.prefix_cache import RadixPrefixCache, replay

OFFLINE: dict[str, offline_arms.Arm] = {
    "arrival order": offline_arms.arrival,
    "top-down greedy (GGR-like)": offline_arms.top_down,
    "paper + Algorithm 5": offline_arms.paper_algorithm_5,
    "paper + depth-first": offline_arms.paper_depth_first,
    "shared tokens (ours)": offline_arms.shared_tokens,
}
ONLINE: dict[str, online_arms.Online] = {
    "arrival order": online_arms.arrival,
    "popularity so far": online_arms.popularity,
    "greedy trie walk (CacheWeaver's idea)": online_arms.greedy_walk,
    "ContextPilot.optimize (ours)": online_arms.pilot,
}
LONGEST = "longest prefix first (queue of 128)"
LONGEST_UP_TO = 5000
"""Requests; it takes 128 look-ups for each, in Python."""


def hit_rate(order: Sequence[BatchContext], capacity: int | None) -> float:
    return round(replay(RadixPrefixCache(capacity), map(segments, order)).hit_rate, 4)


def measure(trace: Trace, caches: Sequence[int | None]) -> dict[str, Any]:
    capacities = [trace.capacity(size) for size in caches]
    offline, online, seconds = {}, {}, {}
    for name, arm in OFFLINE.items():
        start = time.process_time()
        order = arm(trace.contexts)
        seconds[name] = round(time.process_time() - start, 2)
        offline[name] = [hit_rate(order, capacity) for capacity in capacities]
    if len(trace.contexts) <= LONGEST_UP_TO:
        longest = (offline_arms.longest_prefix_first(trace.contexts, capacity) for capacity in capacities)
        offline[LONGEST] = [hit_rate(order, capacity) for order, capacity in zip(longest, capacities, strict=True)]
    for name, way in ONLINE.items():
        online[name] = [hit_rate(way(trace, capacity), capacity) for capacity in capacities]
    return {
        "requests": len(trace.contexts),
        "tokens": trace.total_tokens,
        "bound": round(spanning_forest_bound(trace.contexts) / trace.total_tokens, 4),
        "offline": offline,
        "offline_cpu_s": seconds,
        "online": online,
    }


def show(name: str, result: dict[str, Any]) -> None:
    print(f"\n{name}: {result['requests']} requests, bound {result['bound']:.3f}")
    for side in ("offline", "online"):
        for arm, rates in result[side].items():
            print(f"  {side:8}{arm:40}" + " / ".join(f"{rate:.3f}" for rate in rates), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hit rates of ways to order.")
    inputs.add_arguments(parser)
    parser.add_argument("--caches", nargs="+", type=int, default=[4, 32], help="sizes in mean requests")
    parser.add_argument("--result", default="ordering", help="name of the JSON file (default %(default)s)")
    args = parser.parse_args()
    caches: list[int | None] = [*args.caches, None]
    traces: dict[str, Any] = {}
    for trace in sorted(inputs.load(args.traces, args.only), key=lambda t: len(t.contexts)):
        traces[trace.name] = measure(trace, caches)
        show(trace.name, traces[trace.name])
    save(args.result, {"caches_in_mean_requests": caches, "traces": traces})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
