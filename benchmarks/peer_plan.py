"""The peer's side of ``plan_and_optimize.py --peer``: runs where ``contextpilot==0.5.0`` is installed, not ours.

Reads ``{"contexts": [[id, ...], ...], "probes": [...]}`` on stdin; prints one JSON line of timings, last on stdout.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time


def main() -> None:
    given = json.load(sys.stdin)
    pilot = importlib.import_module("contextpilot").ContextPilot(use_gpu=False)
    start = time.perf_counter()
    pilot.reorder(given["contexts"])
    offline_s = time.perf_counter() - start
    times, failed = [], 0
    for context in given["probes"]:
        start = time.perf_counter()
        try:
            pilot.reorder([context])
        except RuntimeError:
            failed += 1
        times.append((time.perf_counter() - start) * 1e3)
    result = {"offline_s": offline_s, "online_median_ms": statistics.median(times), "online_failed": failed}
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
