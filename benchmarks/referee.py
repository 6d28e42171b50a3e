"""An independent judge of our hit rates: SGLang's own RadixCache counts the orders that we send.

    python -m benchmarks.referee [FOLDER] --sglang-python PYTHON --sglang-path DIRECTORY

PYTHON has torch, a CPU build will do; DIRECTORY is made by `pip install --no-deps --target DIRECTORY sglang==0.5.23`.
No GPU is used: see `tests/sglang/side.py`. One token id stands for 16 tokens of a block, in both models. Writes
benchmarks/results/referee.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

from benchmarks import inputs, offline_arms, online_arms
from benchmarks.inputs import Trace
from benchmarks.machine import save
from tests.sglang.process import RadixCacheProcess

from prefixpilot.bench.baselines import segments
from prefixpilot.core import BatchContext
from prefixpilot.prefix_cache import RadixPrefixCache, Segment, replay

SCALE = 16
OFFLINE: dict[str, offline_arms.Arm] = {
    "arrival order": offline_arms.arrival,
    "paper + Algorithm 5": offline_arms.paper_algorithm_5,
    "shared tokens (ours)": offline_arms.shared_tokens,
}
ONLINE = "ContextPilot.optimize (ours)"


def prompts(order: Sequence[BatchContext]) -> list[list[Segment]]:
    """Prompts in ids, each for SCALE tokens; the last of a block for what is left."""
    return [[Segment(s.key, -(-s.tokens // SCALE)) for s in segments(context)] for context in order]


def total(order: list[list[Segment]]) -> int:
    return sum(segment.tokens for segment in chain.from_iterable(order))


class Referee:
    """SGLang's cache."""

    def __init__(self, process: RadixCacheProcess) -> None:
        self._process = process

    def hit_rate(self, order: list[list[Segment]], capacity: int | None) -> float:
        number: dict[Hashable, int] = {}
        lines = [[(number.setdefault(s.key, len(number)) << 20, s.tokens) for s in prompt] for prompt in order]
        self._process.do("open", page=1, capacity=capacity)
        return float(sum(self._process.do("take", prompts=lines))) / total(order)


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
    traces: dict[str, Any] = {}
    with RadixCacheProcess(args.sglang_python, args.sglang_path) as process:
        for trace in sorted(inputs.load(args.traces, args.only), key=lambda t: len(t.contexts)):
            if len(trace.contexts) <= args.largest:
                traces[trace.name] = judge(trace, caches, Referee(process))
                print(trace.name, traces[trace.name], flush=True)
                save("referee", {"caches_in_mean_requests": caches, "tokens_an_id": SCALE, "traces": traces})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
