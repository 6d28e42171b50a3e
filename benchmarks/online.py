"""Online ordering, one request after the other: every fixed policy for what follows the prefix, and the adaptive one.

    python -m benchmarks.online [DIRECTORY] [--policies adaptive relevance] [--traces locomo_k20] [--no-save]

DIRECTORY (or PREFIXPILOT_TRACES) holds `ids-NAME.jsonl.gz` files; without one, traces of the same shapes are generated.
Caches of 16 and 64 mean requests, and unbounded; state empty at the start of each trace. Hit rates are shares of block
tokens on a modelled token-level LRU cache, not an engine: gross, and net of annotation tokens (a net rate counts each
annotation token, estimated as `replay` does, as one cached token less). `arrival` is the given order. Traces of over
10,000 requests are run with arrival, relevance and adaptive only. Exit status 1 if on a control trace (no overlap, or
ids that stand for all before them) the adaptive policy is below arrival order.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from benchmarks.machine import save
from benchmarks.online_traces import Trace, generated_traces, read_traces

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request
from prefixpilot.config import TailOrder
from prefixpilot.core import RequestId
from prefixpilot.prefix_cache import RadixPrefixCache, Segment

POLICIES = ("arrival", *get_args(TailOrder))
CONTROLS = ("psi_nq", "mooncake", "no_overlap", "prefixes")
LARGE = 10_000
CACHES = {"16": 16.0, "64": 64.0, "unbounded": None}


class Run(NamedTuple):
    gross: float
    net: float
    annotated: int
    seconds: float


def replay(trace: Trace, policy: str, capacity: int | None) -> Run:
    """One trace through a fresh pilot and a fresh cache of ``capacity`` tokens."""
    tail: Any = "relevance" if policy == "arrival" else policy
    pilot = ContextPilot(PilotConfig(tail=tail, cache_tokens=capacity))
    cache = RadixPrefixCache(capacity)
    blocks = [ContextBlock(id=i, tokens=n) for i, n in enumerate(trace.tokens)]
    hit = total = extra = annotated = 0
    seconds = 0.0
    for number, ids in enumerate(trace.requests):
        sent = ids
        if policy != "arrival":
            request = Request(tuple([blocks[i] for i in ids]), RequestId(str(number)))
            start = time.perf_counter()
            plan = pilot.optimize(request)
            seconds += time.perf_counter() - start
            sent = tuple(ids[position] for position in plan.order)
            annotated += plan.order_annotation is not None
            extra += plan.annotation_tokens
        access = cache.access([Segment(i, trace.tokens[i]) for i in sent])
        hit += access.cached_tokens
        total += access.total_tokens
    return Run(hit / total, (hit - extra) / total, annotated, seconds)


def measure(trace: Trace, policies: Iterable[str]) -> dict[str, Any]:
    """All policies at all cache sizes, and the adaptive one over the best of the fixed ones of this very run."""
    rows: dict[str, dict[str, Run]] = {}
    for policy in policies:
        capacities = {name: None if size is None else int(size * trace.mean_tokens) for name, size in CACHES.items()}
        rows[policy] = {name: replay(trace, policy, capacity) for name, capacity in capacities.items()}
        print(f"{trace.name:30} {policy:18}", *(f"{run.gross:.4f}" for run in rows[policy].values()), flush=True)
    result: dict[str, Any] = {
        policy: {
            name: {"gross": round(r.gross, 4), "net": round(r.net, 4), "annotated": r.annotated}
            for name, r in runs.items()
        }
        for policy, runs in rows.items()
    }
    fixed = [runs for policy, runs in rows.items() if policy not in ("adaptive", "arrival")]
    if fixed and "adaptive" in rows:
        best = {name: max(runs[name].gross for runs in fixed) for name in CACHES}
        ratios = {n: round(rows["adaptive"][n].gross / best[n], 3) if best[n] else 1.0 for n in CACHES}
        result["adaptive_over_best_fixed"] = ratios
        result["adaptive_ms_per_request"] = round(
            sum(r.seconds for r in rows["adaptive"].values()) / len(CACHES) / len(trace.requests) * 1e3, 3
        )
    return result


def harmed(name: str, result: dict[str, Any]) -> bool:
    """Whether the adaptive policy is below arrival order on a control trace."""
    if not any(control in name for control in CONTROLS) or not {"adaptive", "arrival"} <= result.keys():
        return False
    return any(result["adaptive"][cache]["gross"] < result["arrival"][cache]["gross"] for cache in CACHES)


def main() -> int:
    parser = argparse.ArgumentParser(description="Online hit rates of all policies for what follows the prefix.")
    parser.add_argument("directory", nargs="?", type=Path, default=os.environ.get("PREFIXPILOT_TRACES"))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--traces", nargs="+", help="only these, by name")
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()

    traces = generated_traces() if args.directory is None else read_traces(Path(args.directory))
    results = {}
    for trace in traces:
        if args.traces is None or trace.name in args.traces:
            few = ("arrival", "relevance", "adaptive")
            policies = [p for p in args.policies if len(trace.requests) <= LARGE or p in few]
            results[trace.name] = {"requests": len(trace.requests), **measure(trace, policies)}
    if not args.no_save:
        name = "online_generated" if args.directory is None else "online"
        save(name, {"caches_in_mean_requests": list(CACHES), "traces": results})
    bad = [name for name, result in results.items() if harmed(name, result)]
    if bad:
        print("below arrival order:", *bad)
    return 1 if bad or not results else 0


if __name__ == "__main__":
    sys.exit(main())
