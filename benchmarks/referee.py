"""An independent judge of our hit rates: SGLang's own RadixCache counts the orders that we send.

    python -m benchmarks.referee [FOLDER] --sglang-python PYTHON --sglang-path DIRECTORY

PYTHON has torch, a CPU build will do; DIRECTORY is made by `pip install --no-deps --target DIRECTORY sglang==0.5.23`.
No GPU is used: see `benchmarks/referee_side.py`. One token id stands for 16 tokens of a block, in both models. Writes
benchmarks/results/referee.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Hashable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import inputs, offline_arms, online_arms
from benchmarks.inputs import Trace
from benchmarks.machine import save

from prefixpilot.core import BatchContext
from prefixpilot.prefix_cache import RadixPrefixCache, Segment, replay

SCALE = 16
SIDE = Path(__file__).with_name("referee_side.py")
OFFLINE: dict[str, offline_arms.Arm] = {
    "arrival order": offline_arms.arrival,
    "paper + Algorithm 5": offline_arms.paper_algorithm_5,
    "shared tokens (ours)": offline_arms.shared_tokens,
}
ONLINE = "ContextPilot.optimize (ours)"


def prompts(order: Sequence[BatchContext]) -> list[list[Segment]]:
    """Prompts in ids, each for SCALE tokens; the last of a block for what is left."""
    return [[Segment(s.key, -(-s.tokens // SCALE)) for s in offline_arms.segments(context)] for context in order]


def total(order: list[list[Segment]]) -> int:
    return sum(segment.tokens for segment in chain.from_iterable(order))


class Referee:
    """SGLang's cache, in a process of its own."""

    def __init__(self, python: str, directory: str) -> None:
        self._process = subprocess.Popen(
            [python, str(SIDE), directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def hit_rate(self, order: list[list[Segment]], capacity: int | None) -> float:
        number: dict[Hashable, int] = {}
        lines = [[[number.setdefault(s.key, len(number)), s.tokens] for s in prompt] for prompt in order]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"capacity": capacity, "prompts": lines}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the referee's process ended with {self._process.wait(timeout=60)}")
        return float(json.loads(answer)["cached"]) / total(order)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def judge(trace: Trace, caches: Sequence[int | None], referee: Referee) -> dict[str, Any]:
    """For each arm and cache, [ours, theirs]."""
    result: dict[str, Any] = {name: [] for name in (*OFFLINE, ONLINE)}
    orders = {name: arm(trace.contexts) for name, arm in OFFLINE.items()}
    for size in caches:
        orders[ONLINE] = online_arms.pilot(trace, trace.capacity(size))
        for name, order in orders.items():
            scaled = prompts(order)
            capacity = None if size is None else max(1, size * total(scaled) // len(scaled))
            ours = replay(RadixPrefixCache(capacity), scaled).hit_rate
            result[name].append([round(ours, 4), round(referee.hit_rate(scaled, capacity), 4)])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Hit rates by SGLang's RadixCache, beside ours.")
    inputs.add_arguments(parser)
    parser.add_argument("--sglang-python", required=True, metavar="PYTHON", help="interpreter that has torch")
    parser.add_argument("--sglang-path", required=True, metavar="DIRECTORY", help="where SGLang lies")
    parser.add_argument("--caches", nargs="+", type=int, default=[4, 32], help="sizes in mean requests")
    parser.add_argument("--largest", type=int, default=5000, help="leave out traces of more requests")
    args = parser.parse_args()
    caches: list[int | None] = [*args.caches, None]
    referee = Referee(args.sglang_python, args.sglang_path)
    traces: dict[str, Any] = {}
    for trace in sorted(inputs.load(args.traces, args.only), key=lambda t: len(t.contexts)):
        if len(trace.contexts) <= args.largest:
            traces[trace.name] = judge(trace, caches, referee)
            print(trace.name, traces[trace.name], flush=True)
            save("referee", {"caches_in_mean_requests": caches, "tokens_an_id": SCALE, "traces": traces})
    referee.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
