"""The peer's half of ``peer_ordering.py``: runs where ``contextpilot==0.5.0`` is installed, not ours.

Reads ``{"batch": [[id, ...], ...], "probes": [[id, ...], ...], "online": bool}`` on stdin. Orders the batch in one
call, then each probe in a call of its own; with ``online`` instead each context of the batch in a call of its own, from
an empty index. The last line of stdout is JSON: seconds, peak memory, order, failures.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any


def main() -> None:
    given = json.load(sys.stdin)
    pilot = importlib.import_module("contextpilot").ContextPilot(use_gpu=False)
    result: dict[str, Any] = {}
    if given["online"]:
        result["order"], result["failed"], result["online_cpu_ms"] = one_by_one(pilot, given["batch"])
    else:
        wall, cpu = time.perf_counter(), cpu_seconds()
        contexts, positions = pilot.reorder(given["batch"])
        result["wall_s"], result["cpu_s"] = time.perf_counter() - wall, cpu_seconds() - cpu
        result["order"] = [[int(p), list(c)] for p, c in zip(positions, contexts)]  # noqa: B905
        _, result["failed"], result["online_cpu_ms"] = one_by_one(pilot, given["probes"])
    own, children = (resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    result["peak_mib"] = round(max(own, children) / 1024)
    print("\n" + json.dumps(result))


def one_by_one(pilot: Any, contexts: list[list[int]]) -> tuple[list[Any], int, list[float]]:
    """A failed call sends its context as given."""
    order, failed, times = [], 0, []
    for position, context in enumerate(contexts):
        start = time.process_time()
        try:
            ordered = list(pilot.reorder([context])[0][0])
        except Exception:  # noqa: BLE001 (whatever the peer raises is a failure of its call)
            failed, ordered = failed + 1, context
        times.append((time.process_time() - start) * 1e3)
        order.append([position, ordered])
    return order, failed, times


def cpu_seconds() -> float:
    usage = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


if __name__ == "__main__":
    main()
