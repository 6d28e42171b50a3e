"""Planning cost by batch size: time, peak memory and growth, each size in a fresh process.

    python -m benchmarks.scale [--shared 12000 100000] [--paper 2000 12000] [--large]

Contexts come from the topical generator (prefixpilot.workloads.synthetic): as many blocks as requests. `--large` adds
1,000,000 contexts to the shared-token planner. CPU seconds are those of the planner's process; on a shared machine
wall time says as much about the others. Import of the planner is counted, that of NumPy not. Writes
benchmarks/results/scale[_large][_compiled].json.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

from benchmarks.machine import save

from prefixpilot import COMPILED
from prefixpilot.core import BatchContext, RequestId
from prefixpilot.workloads.synthetic import topical


def plan(planner: str, requests: int, k: int) -> dict[str, float]:
    """Seconds and bytes of one planning of generated contexts, in this process."""
    trace = topical(requests, k)
    contexts = [
        BatchContext(RequestId(str(i)), blocks, tuple(trace.tokens[b] for b in blocks))
        for i, blocks in enumerate(trace.contexts)
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    if planner == "shared-tokens":
        from prefixpilot.planners.shared_tokens import plan_shared_tokens

        order = plan_shared_tokens(contexts, lambda block: block)
        assert len(order) == requests
    else:
        from prefixpilot.index import ContextIndex, build

        index = ContextIndex()
        build(index, contexts, lambda block: block)
        assert len(index) == requests
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "input_mib": round(before / 1024),
        "peak_mib": round(peak / 1024),
    }


def in_fresh_process(planner: str, requests: int, k: int, timeout: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--one", planner, str(requests), "--k", str(k)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    result: dict[str, Any] = {"requests": requests, **json.loads(run.stdout)}
    print(f"{planner:16}{requests:>9}  {result}", flush=True)
    return result


def exponents(rows: list[dict[str, Any]]) -> list[float]:
    """Growth of CPU time between neighbouring sizes: time ~ requests ^ exponent."""
    return [
        round(math.log(b["cpu_s"] / a["cpu_s"]) / math.log(b["requests"] / a["requests"]), 3) for a, b in pairwise(rows)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Planning cost by batch size.")
    parser.add_argument("--shared", nargs="*", type=int, default=[12_000, 100_000], metavar="N")
    parser.add_argument("--paper", nargs="*", type=int, default=[2_000, 12_000], metavar="N")
    parser.add_argument("--large", action="store_true", help="1,000,000 contexts too (minutes, several GiB)")
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--timeout", type=float, default=1500, help="seconds for one size")
    parser.add_argument("--one", nargs=2, metavar=("PLANNER", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(plan(args.one[0], int(args.one[1]), args.k)))
        return 0
    result: dict[str, Any] = {"generator": "topical", "k": args.k}
    sizes = {"paper": args.paper, "shared-tokens": [*args.shared, *([1_000_000] if args.large else [])]}
    for planner, counts in sizes.items():
        rows = [in_fresh_process(planner, count, args.k, args.timeout) for count in counts]
        result[planner] = {"sizes": rows, "growth_exponents": exponents(rows)}
    save(f"scale{'_large' if args.large else ''}{'_compiled' if COMPILED else ''}", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
