"""Side by side with the peer, ``contextpilot==0.5.0``, in one run on the same contexts.

    python -m benchmarks.peer_ordering [FOLDER] --peer-python PYTHON
    python -m benchmarks.peer_ordering [FOLDER] --install-peer DIR      # makes a virtual environment, about 830 MB

Cost: one batch of contexts of 15 blocks (Zipf over 2,000 blocks), then single requests at that index. Quality: hit
rates of its order, batch and one by one, in our model of the engine's cache. CPU seconds, its child processes included,
beside wall time. Writes benchmarks/results/peer_{rates,batch,growth}.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import inputs, offline_arms, online_arms
from benchmarks.inputs import Trace
from benchmarks.machine import save
from benchmarks.ordering import hit_rate

from prefixpilot import ContextPilot, Request
from prefixpilot.bench.baselines import reordered
from prefixpilot.core import BatchContext
from prefixpilot.workloads.synthetic import zipf

PEER = "contextpilot==0.5.0"
PROBES = 100
PARTS = ("rates", "batch", "growth")


def install(folder: Path) -> str:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", PEER], check=True, timeout=1800)
    return str(python)


def peer(python: str, batch: list[list[int]], probes: list[list[int]], online: bool, timeout: float) -> dict[str, Any]:
    script = Path(__file__).with_name("peer_side.py")
    given = json.dumps({"batch": batch, "probes": probes, "online": online})
    run = subprocess.run(
        [python, str(script)], input=given, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True
    )
    result: dict[str, Any] = json.loads(run.stdout.rstrip("\n").rpartition("\n")[2])
    return result


def ours(batch: list[list[int]], probes: list[list[int]]) -> dict[str, Any]:
    """Cost of the same calls of ours. Memory is that of this process: more than the planner's own."""
    requests = [Request.from_ids(f"r{i}", ids) for i, ids in enumerate(batch)]
    pilot = ContextPilot()
    wall, cpu = time.perf_counter(), time.process_time()
    pilot.optimize_batch(requests)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    times = []
    for i, ids in enumerate(probes):
        request = Request.from_ids(f"p{i}", ids)
        start = time.process_time()
        pilot.optimize(request)
        times.append((time.process_time() - start) * 1e3)
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"wall_s": wall, "cpu_s": cpu, "online_cpu_ms": times, "failed": 0, "peak_mib": peak}


def cost(python: str, size: int, timeout: float) -> dict[str, Any]:
    contexts = [list(context) for context in zipf(size + PROBES, seed=7).contexts]
    sides = {
        "ours": ours(contexts[:size], contexts[size:]),
        "peer": peer(python, contexts[:size], contexts[size:], False, timeout),
    }
    result: dict[str, Any] = {"contexts": size}
    for side, measured in sides.items():
        times = sorted(measured["online_cpu_ms"])
        result[side] = {
            "batch_wall_s": round(measured["wall_s"], 3),
            "batch_cpu_s": round(measured["cpu_s"], 3),
            "peak_mib": measured["peak_mib"],
            "online_p50_ms": round(statistics.median(times), 3),
            "online_p99_ms": round(times[len(times) * 99 // 100], 3),
            "online_failed": measured["failed"],
        }
    for name in ("batch_cpu_s", "online_p50_ms"):
        result[f"peer_over_ours_{name}"] = round(result["peer"][name] / result["ours"][name], 1)
    print(result, flush=True)
    return result


def growth(python: str, sizes: Sequence[int], timeout: float) -> list[dict[str, Any]]:
    """Single requests only, from an empty index: CPU time of the 100 after each size."""
    contexts = [list(context) for context in zipf(max(sizes) + PROBES, seed=7).contexts]
    times = {"ours": ours([], contexts)["online_cpu_ms"]}
    given = peer(python, contexts, [], True, timeout)
    times["peer"] = given["online_cpu_ms"]
    rows = []
    for size in sizes:
        row: dict[str, Any] = {"contexts": size, "peer_failed_of_all": given["failed"]}
        for side, measured in times.items():
            window = sorted(measured[size : size + PROBES])
            row[side] = {"p50_ms": round(statistics.median(window), 3), "p99_ms": round(window[PROBES * 99 // 100], 3)}
        row["peer_over_ours_p50"] = round(row["peer"]["p50_ms"] / row["ours"]["p50_ms"], 1)
        print(row, flush=True)
        rows.append(row)
    return rows


def quality(python: str, trace: Trace, timeout: float) -> dict[str, Any]:
    """Hit rates at 4 and 32 mean requests and without bound."""
    batch = [[int(b) for b in context.blocks] for context in trace.contexts]
    capacities = [trace.capacity(size) for size in (4, 32, None)]
    shared = offline_arms.shared_tokens(trace.contexts)
    result: dict[str, Any] = {"ours offline": [hit_rate(shared, capacity) for capacity in capacities]}
    result["ours online"] = [hit_rate(online_arms.pilot(trace, capacity), capacity) for capacity in capacities]
    for label, online in (("peer offline", False), ("peer online", True)):
        given = peer(python, batch, [], online, timeout)
        order: list[BatchContext] = [reordered(trace.contexts[position], ids) for position, ids in given["order"]]
        result[label] = [hit_rate(order, capacity) for capacity in capacities]
        result[f"{label} failed calls"] = given["failed"]
    print(trace.name, result, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=f"Side by side with {PEER}.")
    inputs.add_arguments(parser)
    parser.add_argument("--peer-python", metavar="PYTHON", help=f"interpreter that has {PEER}")
    parser.add_argument("--install-peer", metavar="DIR", type=Path, help="virtual environment to make for it")
    parser.add_argument("--sizes", nargs="*", type=int, default=[500, 1000, 2000], help="contexts of a batch")
    parser.add_argument("--largest", type=int, default=1000, help="leave out traces of more requests")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one call of the peer's process")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run (default all)")
    args = parser.parse_args()
    if not args.peer_python and not args.install_peer:
        parser.error("give --peer-python or --install-peer")
    python = args.peer_python or install(args.install_peer)
    if "rates" in args.parts:
        traces = [t for t in inputs.load(args.traces, args.only) if len(t.contexts) <= args.largest]
        rates = {trace.name: quality(python, trace, args.timeout) for trace in traces}
        save("peer_rates", {"peer": PEER, "hit_rate": rates})
    if "batch" in args.parts:
        save("peer_batch", {"peer": PEER, "cost": [cost(python, size, args.timeout) for size in args.sizes]})
    if "growth" in args.parts:
        save("peer_growth", {"peer": PEER, "growth": growth(python, args.sizes, args.timeout)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
