"""An independent count of hit rates: the same orders through SGLang's own RadixCache.

    python -m benchmarks.referee [FOLDER] --sglang-python PYTHON

PYTHON has ``sglang`` (0.5.23; `pip install --no-deps` and a CPU build of torch are enough for its radix_cache module,
with what that imports). Lengths are counted in units of 32 tokens, in both caches, so that token arrays stay
small. Writes benchmarks/results/referee.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import inputs, offline_arms, online_arms
from benchmarks.inputs import Trace
from benchmarks.machine import save

from prefixpilot.core import BatchContext
from prefixpilot.prefix_cache import RadixPrefixCache, Segment, replay

UNIT = 32


def orders(trace: Trace) -> dict[str, Sequence[BatchContext]]:
    return {
        "arrival order": trace.contexts,
        "shared tokens (ours)": offline_arms.shared_tokens(trace.contexts),
        "ContextPilot.optimize (ours)": online_arms.pilot(trace, None),
    }


def shortened(order: Sequence[BatchContext]) -> list[list[tuple[int, int]]]:
    return [[(int(b), max(1, t // UNIT)) for b, t in zip(c.blocks, c.tokens, strict=True)] for c in order]


def main() -> int:
    parser = argparse.ArgumentParser(description="The same orders through SGLang's RadixCache.")
    inputs.add_arguments(parser)
    parser.add_argument("--sglang-python", required=True, metavar="PYTHON", help="interpreter that has sglang")
    parser.add_argument("--largest", type=int, default=1000, help="leave out traces of more requests")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for trace in inputs.load(args.traces, args.only):
        if len(trace.contexts) > args.largest:
            continue
        for arm, order in orders(trace).items():
            prompts = shortened(order)
            mean = sum(length for prompt in prompts for _, length in prompt) // len(prompts)
            for size in (4, 32, None):
                capacity = None if size is None else size * mean
                segments = ([Segment(*pair) for pair in prompt] for prompt in prompts)
                rate = replay(RadixPrefixCache(capacity), segments).hit_rate
                cache = "no bound" if size is None else str(size)
                rows.append({"trace": trace.name, "arm": arm, "cache": cache, "ours": round(rate, 4)})
                runs.append({"capacity": capacity, "prompts": prompts})
    script = Path(__file__).with_name("referee_side.py")
    command = [args.sglang_python, str(script)]
    done = subprocess.run(
        command, input=json.dumps({"runs": runs}), stdout=subprocess.PIPE, text=True, timeout=900, check=True
    )
    answer = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    for row, rate in zip(rows, answer["rates"], strict=True):
        row["sglang"] = round(rate, 4)
        print(row)
    save("referee", {"sglang": answer["version"], "unit_tokens": UNIT, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
