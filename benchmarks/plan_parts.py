"""Planning in parts by Ray: what it saves, what it takes, beside one process.

    python -m benchmarks.plan_parts [--requests 100000] [--parts 8]      (in an environment with Ray)

Contexts come from the topical generator. CPU seconds are those of this process, without the workers; wall time says
as much about the others on a shared machine. Saved tokens: what each context shares with the one before it.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

import ray
from benchmarks.machine import save

from prefixpilot.config import PilotConfig
from prefixpilot.ray.parts import PlannedPart, parts_of, plan_part
from prefixpilot.ray.planning import cluster, plan_parts
from prefixpilot.workloads.planned import PlanCounts
from prefixpilot.workloads.synthetic import topical


def cpu_s() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--not-alone", action="store_true", help="leave out the plan of one process")
    args = parser.parse_args()
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="300")
    config, entries = PilotConfig(), topical(args.requests, args.k).workload().requests
    result: dict[str, Any] = {"requests": args.requests, "k": args.k, "parts": args.parts, "ray": ray.__version__}
    if not args.not_alone:
        wall, cpu = time.perf_counter(), cpu_s()
        alone = plan_part(entries, config).counts
        result["alone"] = _row(alone, time.perf_counter() - wall, cpu_s() - cpu)
        print(result["alone"], flush=True)
    with cluster() as cores:
        wall, cpu = time.perf_counter(), cpu_s()
        cut = parts_of(entries, args.parts, config)
        cutting = time.perf_counter() - wall
        counts: list[PlanCounts] = []

        def done(number: int, part: PlannedPart) -> None:
            counts.append(part.counts)
            print(number, f"{time.perf_counter() - wall:.1f} s", flush=True)

        plan_parts([[entries[i] for i in part] for part in cut], config, done, cores + 1)
        total = sum(counts, PlanCounts())
        result["ray_tasks"] = _row(total, time.perf_counter() - wall, cpu_s() - cpu)
        result["ray_tasks"].update(cores=cores, cutting_s=round(cutting, 1), sizes=[len(part) for part in cut])
    if not args.not_alone:
        result["saved_ratio"] = round(total.predicted_cached_tokens / alone.predicted_cached_tokens, 5)
    save("plan_parts", result)


def _row(counts: PlanCounts, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "requests": counts.requests,
        "predicted_cached_tokens": counts.predicted_cached_tokens,
        "predicted_hit_rate": round(counts.predicted_hit_rate, 4),
        "wall_s": round(wall, 1),
        "cpu_s_of_this_process": round(cpu, 1),
    }


if __name__ == "__main__":
    main()
