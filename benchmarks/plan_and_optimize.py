"""Planning cost: a batch of contexts offline, and one request online at the same number of live contexts.

    python -m benchmarks.plan_and_optimize [--contexts 2000] [--k 15] [--blocks 2000] [--seed 0] [--peer PYTHON]
    python -m benchmarks.plan_and_optimize --online-only --contexts 100000

Contexts are k distinct block ids drawn by Zipf (weight 1 / rank) over the blocks. Offline: build, order and schedule
of all (`optimize_batch` on a fresh pilot). Online: `optimize` of new contexts, each evicted again outside the clock,
so that the number of live contexts stays. `--peer` runs `peer_plan.py` on the same contexts in an interpreter that
has `contextpilot==0.5.0`, in the same run. Bounds: offline 2 s, online 0.5 ms at the median.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import save

from prefixpilot import COMPILED, ContextPilot, PilotConfig, Request


def zipf_contexts(count: int, k: int, blocks: int, rng: random.Random) -> list[list[int]]:
    """``count`` lists of ``k`` distinct ids below ``blocks``, id i drawn with weight 1 / (i + 1)."""
    cumulative = list(accumulate(1 / (i + 1) for i in range(blocks)))
    contexts = []
    for _ in range(count):
        drawn: dict[int, None] = {}
        while len(drawn) < k:
            drawn.update(dict.fromkeys(rng.choices(range(blocks), cum_weights=cumulative, k=k)))
        contexts.append(list(drawn)[:k])
    return contexts


def offline(contexts: list[list[int]], repeats: int) -> list[float]:
    """Seconds per ``optimize_batch`` of all contexts on a fresh pilot."""
    requests = [Request.from_ids(f"r{i}", ids) for i, ids in enumerate(contexts)]
    times = []
    for _ in range(repeats):
        pilot = ContextPilot()
        start = time.perf_counter()
        planned = pilot.optimize_batch(requests)
        times.append(time.perf_counter() - start)
        assert sorted(p.position for p in planned) == list(range(len(requests)))
    return times


class Online(NamedTuple):
    """Milliseconds of each ``optimize``, and CPU time of its thread, which a busy machine disturbs less."""

    wall: list[float]
    cpu: list[float]


def online(contexts: list[list[int]], probes: list[list[int]]) -> Online:
    """``optimize`` of each probe with ``contexts`` live. They came online too, one by one."""
    pilot = ContextPilot(PilotConfig(max_contexts=len(contexts) + 1))
    for i, ids in enumerate(contexts):
        pilot.optimize(Request.from_ids(f"r{i}", ids))
    times = Online([], [])
    for i, ids in enumerate(probes):
        request = Request.from_ids(f"probe{i}", ids)
        cpu, start = time.thread_time(), time.perf_counter()
        pilot.optimize(request)
        stop, cpu_stop = time.perf_counter(), time.thread_time()
        times.wall.append((stop - start) * 1e3)
        times.cpu.append((cpu_stop - cpu) * 1e3)
        pilot.evict([f"probe{i}"])
    assert pilot.live_requests == len(contexts)
    return times


def peer(python: str, contexts: list[list[int]], probes: list[list[int]]) -> dict[str, Any]:
    """The same contexts through ``peer_plan.py`` in another interpreter."""
    script = Path(__file__).with_name("peer_plan.py")
    given = json.dumps({"contexts": contexts, "probes": probes})
    run = subprocess.run([python, str(script)], input=given, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    result: dict[str, Any] = json.loads(run.stdout.rstrip("\n").rpartition("\n")[2])
    return result


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def save_online(args: argparse.Namespace, times: Online) -> None:
    """Medians of runs of 50 requests too: on a busy machine the lowest is nearest to what the code takes."""
    wall, cpu = times
    runs = [statistics.median(wall[i : i + 50]) for i in range(0, len(wall), 50)]
    save(
        f"online_latency_{args.contexts}{'_compiled' if COMPILED else ''}",
        {
            "workload": {name: getattr(args, name) for name in ("contexts", "k", "blocks", "probes", "seed")},
            "p50_ms": round(statistics.median(wall), 4),
            "p90_ms": round(percentile(wall, 90), 4),
            "p99_ms": round(percentile(wall, 99), 4),
            "cpu_p50_ms": round(statistics.median(cpu), 4),
            "cpu_p99_ms": round(percentile(cpu, 99), 4),
            "lowest_median_of_50_ms": round(min(runs), 4),
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Planning cost, offline and online.")
    parser.add_argument("--contexts", type=int, default=2000)
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--probes", type=int, default=1000, help="online requests timed")
    parser.add_argument("--repeats", type=int, default=3, help="offline runs timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--online-only", action="store_true", help="writes online_latency_CONTEXTS[_compiled].json")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that has contextpilot==0.5.0")
    args = parser.parse_args()

    rng = random.Random(args.seed)
    contexts = zipf_contexts(args.contexts, args.k, args.blocks, rng)
    probes = zipf_contexts(args.probes, args.k, args.blocks, rng)
    times = online(contexts, probes)
    if args.online_only:
        save_online(args, times)
        return 0
    one_ms = times.wall
    batch_s = statistics.median(offline(contexts, args.repeats))
    result: dict[str, Any] = {
        "workload": {name: getattr(args, name) for name in ("contexts", "k", "blocks", "probes", "seed")},
        "offline_median_s": round(batch_s, 3),
        "online_median_ms": round(statistics.median(one_ms), 4),
        "online_p99_ms": round(percentile(one_ms, 99), 4),
    }
    if args.peer:
        other = peer(args.peer, contexts, probes[:100])
        result["peer"] = other
        result["peer_over_ours"] = {
            "offline": round(other["offline_s"] / batch_s, 1),
            "online": round(other["online_median_ms"] / statistics.median(one_ms), 1),
        }
    save("plan_and_optimize", result)
    return 0 if batch_s < 2 and statistics.median(one_ms) < 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
