"""How long ``import prefixpilot`` takes: a fresh interpreter each time, the import alone timed inside it.

    python -m benchmarks.import_time [--runs 15]

The bound is 150 ms at the median (docs/structure.md); the result goes to benchmarks/results/import_time.json.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from benchmarks.machine import save

CODE = "import time; t = time.perf_counter(); import prefixpilot; print((time.perf_counter() - t) * 1e3)"


def import_ms() -> float:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    return float(run.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="Time `import prefixpilot` in fresh interpreters.")
    parser.add_argument("--runs", type=int, default=15, help="interpreters to start (default %(default)s)")
    runs = parser.parse_args().runs
    import_ms()  # writes the byte code
    times = [import_ms() for _ in range(runs)]
    save(
        "import_time",
        {
            "runs": runs,
            "median_ms": round(statistics.median(times), 1),
            "min_ms": round(min(times), 1),
            "max_ms": round(max(times), 1),
        },
    )
    return 0 if statistics.median(times) < 150 else 1


if __name__ == "__main__":
    sys.exit(main())
