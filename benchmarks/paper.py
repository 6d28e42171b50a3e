"""The small tables of the paper, made anew: hit rates by k, by cache and over time, sessions side by side, own costs.

    python -m benchmarks.paper [FOLDER] [--only NAME ...] [--smoke]

FOLDER holds traces (else generated ones of the same shapes). Hit rates: blocks only, token by token, LRU, the cache
empty at the start. Sessions side by side: the simulated engine behind the real proxy, which computes one prompt at a
time, 100,000 tokens a second. Costs: CPU time of one thread. `--smoke`: small, for the tests. Writes
benchmarks/results/paper.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import inputs
from benchmarks.inputs import Trace
from benchmarks.machine import save
from benchmarks.plan_and_optimize import zipf_contexts

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.bench import Mode, baselines, simulate
from prefixpilot.bench.comparison.cells import Grid
from prefixpilot.bench.comparison.client import Load
from prefixpilot.bench.comparison.engines import Simulated
from prefixpilot.bench.comparison.prepared import Preparation
from prefixpilot.bench.comparison.runner import Comparison, run_comparison
from prefixpilot.core import ConversationId, Request, RequestId
from prefixpilot.dedup import deduplicate
from prefixpilot.index import ContextIndex
from prefixpilot.ordering import order_blocks
from prefixpilot.planners.bound import spanning_forest_bound
from prefixpilot.prefix_cache import RadixPrefixCache, ReplayResult, replay
from prefixpilot.workloads import Workload
from prefixpilot.workloads.synthetic import disjoint, sessions

QUEUE: Final = "longest prefix first"
MODES: Final[dict[str, Mode]] = {"arrival": "arrival", "ours online": "online", "ours offline": "offline"}
ARMS: Final = ("arrival", QUEUE, "ours online", "ours offline")


class Size(NamedTuple):
    """How much is measured.

    Attributes:
        requests: of a trace at most; ``None``: all.
        ks, caches: blocks of a request at most; capacities in mean requests, ``None`` without bound.
        live, probes: contexts in the index, and requests that are timed on it.
        concurrencies, turns: sessions side by side, and requests sent of them.
        rate: prompt tokens a second of the simulated engine.
    """

    requests: int | None
    ks: tuple[int, ...]
    caches: tuple[int | None, ...]
    live: int
    probes: int
    concurrencies: tuple[int, ...]
    turns: int
    rate: float


WHOLE: Final = Size(None, (3, 5, 10, 15), (4, 16, 64, 256, None), 2000, 1000, (2, 4, 8, 16, 32), 192, 100_000.0)
SMOKE: Final = Size(40, (3, 15), (4, None), 100, 50, (2, 4), 12, 500_000.0)
LARGEST: Final = 3000
"""Requests; longer traces are left out of what is replayed many times."""


def cut(trace: Trace, requests: int | None, k: int | None = None) -> Trace:
    """The first requests, each with its first k blocks."""
    entries = trace.workload.requests[:requests]
    shortened = (replace(e, request=replace(e.request, blocks=e.request.blocks[:k])) for e in entries)
    return Trace(Workload(trace.name, tuple(shortened)))


def replayed(trace: Trace, arm: str, capacity: int | None) -> ReplayResult:
    if arm != QUEUE:
        return simulate(trace.workload, MODES[arm], RadixPrefixCache(capacity)).result
    prompts = [baselines.segments(context) for context in trace.contexts]
    order = baselines.longest_prefix_first(prompts, capacity)
    return replay(RadixPrefixCache(capacity), [prompts[i] for i in order])


def rates(trace: Trace, capacity: int | None) -> dict[str, float]:
    return {arm: round(replayed(trace, arm, capacity).hit_rate, 4) for arm in ARMS}


def bound(trace: Trace) -> float:
    return round(spanning_forest_bound(trace.contexts) / trace.total_tokens, 4)


def over_time(trace: Trace, capacity: int | None) -> dict[str, Any]:
    """Hit rate of each twentieth of the requests, and cached tokens so far."""
    found = {}
    for arm in ARMS:
        result = replayed(trace, arm, capacity)
        windows = result.windows(20)
        found[arm] = {
            "hit_rates": [round(window.hit_rate, 4) for window in windows],
            "cached_tokens": list(accumulate(window.cached_tokens for window in windows)),
            "requests": list(accumulate(window.requests for window in windows)),
        }
    return found


def hit_rates(traces: Sequence[Trace], size: Size) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for trace in (cut(each, size.requests) for each in traces):
        row: dict[str, Any] = {"requests": len(trace.contexts), "bound": bound(trace)}
        row["by_cache"] = [{"requests": c, **rates(trace, trace.capacity(c))} for c in size.caches]
        row["by_k"] = []
        for k in size.ks:
            shorter = cut(trace, None, k)
            row["by_k"].append({"k": k, "bound": bound(shorter), **rates(shorter, trace.capacity(64))})
        row["over_time"] = over_time(trace, trace.capacity(64))
        found[trace.name] = row
        print(f"{trace.name}: {row['by_cache'][-1]}", flush=True)
    return found


def cpu_ms(call: Callable[[int], object], count: int) -> dict[str, float]:
    """Of each call, from 0 to ``count``."""
    times = []
    for i in range(count):
        start = time.thread_time_ns()
        call(i)
        times.append((time.thread_time_ns() - start) / 1e6)
    return {"mean_ms": round(statistics.mean(times), 4), "p50_ms": round(statistics.median(times), 4)}


def components(size: Size) -> dict[str, Any]:
    """Of one request, on an index of so many live contexts of 15 blocks."""
    rng = random.Random(0)
    contexts, probes = (zipf_contexts(count, 15, 2000, rng) for count in (size.live, size.probes))
    index, tokens = ContextIndex(), (500,) * 15
    for i, ids in enumerate(contexts):
        prefix = index.match_prefix(ids).prefix
        ordered = tuple(ids[at] for at in order_blocks(ids, prefix))
        index.insert(ordered, tokens, RequestId(f"r{i}"))
    prefixes = [index.match_prefix(ids).prefix for ids in probes]
    seen = [set(contexts[i % len(contexts)]) for i in range(len(probes))]
    whole = ContextPilot(PilotConfig(max_contexts=2 * (size.live + size.probes)))
    for i, ids in enumerate(contexts):
        whole.optimize(Request.from_ids(f"r{i}", ids))
    first = [Request.from_ids(f"p{i}", ids) for i, ids in enumerate(probes)]
    second = [
        replace(each, request_id=RequestId(f"s{i}"), conversation_id=ConversationId(f"c{i}"))
        for i, each in enumerate(first)
    ]
    turns = [replace(each, request_id=RequestId(f"t{i}")) for i, each in enumerate(second)]
    parts = {
        "search, Algorithm 1": lambda i: index.search(probes[i]),
        "search, ours": lambda i: index.match_prefix(probes[i]),
        "order": lambda i: order_blocks(probes[i], prefixes[i]),
        "de-duplicate": lambda i: deduplicate(probes[i], seen[i]),
        "optimize, alone: all of it": lambda i: whole.optimize(first[i]),
        "optimize, first turn": lambda i: whole.optimize(second[i]),
        "optimize, second turn": lambda i: whole.optimize(turns[i]),
    }
    return {"live": size.live, "k": 15, "parts": {name: cpu_ms(call, size.probes) for name, call in parts.items()}}


def zero_overlap(size: Size) -> dict[str, Any]:
    """A job in which no block comes twice: what planning adds, and that nothing is changed."""
    made = disjoint(max(size.live // 2, 20), k=15)
    requests = [entry.request for entry in made.workload().requests]
    online, offline = ContextPilot(), ContextPilot()
    start = time.thread_time()
    plans = [online.optimize(request) for request in requests]
    online_s = time.thread_time() - start
    start = time.thread_time()
    planned = offline.optimize_batch(requests)
    offline_s = time.thread_time() - start
    untouched = sum(
        not plan.annotation_tokens and [b.position for b in plan.blocks] == list(range(len(plan.blocks)))
        for plan in [*plans, *(entry.plan for entry in planned)]
    )
    return {
        "requests": len(requests),
        "online_cpu_s": round(online_s, 4),
        "offline_cpu_s": round(offline_s, 4),
        "sent_as_given": untouched / (2 * len(requests)),
    }


def side_by_side(size: Size, folder: Path) -> dict[str, Any]:
    """Sessions of several turns at once."""
    workload = sessions(max(size.concurrencies) + 4, turns=6).workload()
    grid = Grid(("arrival", "queue", "deduped"), (400_000,), (None,), size.concurrencies)
    how = Preparation(size.turns, None, 3000, multi_turn=True)
    report = run_comparison(Comparison(workload, Simulated(size.rate), grid, how, Load(max_tokens=1)), folder)
    return {"prefill_tokens_per_s": size.rate, **report.as_json()}


def main() -> int:
    parser = argparse.ArgumentParser(description="The small tables of the paper.")
    inputs.add_arguments(parser)
    parser.add_argument("--smoke", action="store_true", help="small, for the tests")
    args = parser.parse_args()
    size = SMOKE if args.smoke else WHOLE
    traces = sorted(inputs.load(args.traces, args.only), key=lambda t: len(t.contexts))
    traces = [trace for trace in traces if len(trace.contexts) <= LARGEST][: 1 if args.smoke else None]
    result: dict[str, Any] = {"seed": 0, "traces": hit_rates(traces, size)}
    result["components"], result["zero_overlap"] = components(size), zero_overlap(size)
    with tempfile.TemporaryDirectory() as folder:
        result["side_by_side"] = side_by_side(size, Path(folder))
    save("paper", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
