"""Memory over a long run: the resident size must not grow once all bounds are reached.

    python -m benchmarks.flat_memory [--requests 200000] [--k 15] [--max-contexts 2000] [--scopes 3]

Requests of k blocks by Zipf over blocks that drift (new ones come, old ones are never asked for again), in a few
scopes that are left for new ones again and again, with eviction by the index's own bound. The first quarter fills; the
bound is 10 % of growth after it.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from benchmarks.machine import save

from prefixpilot import ContextPilot, PilotConfig, Request


def requests(count: int, k: int, scopes: int, rng: random.Random) -> Iterator[Request]:
    """A block is new for 2,000 requests at most; a scope lives for 5,000."""
    cumulative = list(accumulate(1 / (i + 1) for i in range(4000)))
    for number in range(count):
        ids = dict.fromkeys(
            number // 2000 * 2000 + i for i in rng.choices(range(4000), cum_weights=cumulative, k=2 * k)
        )
        scope = f"scope {number // 5000 + rng.randrange(scopes)}"
        yield replace(Request.from_ids(f"r{number}", list(ids)[:k]), scope=scope)


def resident_mib() -> float:
    """Resident size now (Linux)."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096 / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description="Resident size over a long run with eviction.")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--max-contexts", type=int, default=2000)
    parser.add_argument("--max-blocks", type=int, default=20_000)
    parser.add_argument("--scopes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    pilot = ContextPilot(PilotConfig(max_contexts=args.max_contexts, max_blocks=args.max_blocks))
    sizes: list[float] = []
    start = time.perf_counter()
    for number, request in enumerate(requests(args.requests, args.k, args.scopes, random.Random(args.seed)), 1):
        pilot.optimize(request)
        if number % (args.requests // 20) == 0:
            gc.collect()
            sizes.append(round(resident_mib(), 1))
    pilot.check_invariants()
    growth = max(sizes[5:]) / sizes[4] - 1
    save(
        "flat_memory",
        {
            "workload": {
                name: getattr(args, name) for name in ("requests", "k", "max_contexts", "max_blocks", "scopes")
            },
            "seconds": round(time.perf_counter() - start, 1),
            "resident_mib_at_each_twentieth": sizes,
            "growth_after_the_first_quarter": round(growth, 3),
        },
    )
    return 0 if growth < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
