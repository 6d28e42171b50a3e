"""How near to the exact optimum planners come, on neighbourhoods of 12 requests of every trace.

    python -m benchmarks.optimum [FOLDER] [--draws 12] [--seed 0]

A neighbourhood is a random request and the 11 that share most tokens with it (fewer where fewer share any). The optimum
is found by dynamic programming over subsets. Writes benchmarks/results/optimum.json.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from benchmarks import inputs, offline_arms
from benchmarks.machine import save

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.index.node import common_prefix
from prefixpilot.planners.optimum import most_saved_tokens

SIZE = 12
ARMS = {"shared tokens": offline_arms.shared_tokens, "paper": offline_arms.paper_depth_first}


def neighbourhoods(contexts: Sequence[BatchContext], draws: int, rng: random.Random) -> list[list[BatchContext]]:
    holders: dict[BlockId, list[int]] = {}
    for i, context in enumerate(contexts):
        for block in context.blocks:
            holders.setdefault(block, []).append(i)
    result = []
    for _ in range(draws):
        centre = rng.randrange(len(contexts))
        shared: Counter[int] = Counter()
        for block, tokens in zip(contexts[centre].blocks, contexts[centre].tokens, strict=True):
            shared.update(dict.fromkeys(holders[block], tokens))
        del shared[centre]
        nearest = sorted(shared, key=lambda i: (-shared[i], i))[: SIZE - 1]
        result.append([contexts[i] for i in (centre, *nearest)])
    return result


def saved(order: Sequence[BatchContext]) -> int:
    """Tokens that each shares as a prefix with the one before."""
    total = 0
    for before, after in pairwise(order):
        total += sum(after.tokens[: common_prefix(before.blocks, after.blocks)])
    return total


def measure(contexts: Sequence[BatchContext], draws: int, seed: int) -> dict[str, Any]:
    groups = neighbourhoods(contexts, draws, random.Random(seed))
    best = [most_saved_tokens(group) for group in groups]
    pairs = [(group, most) for group, most in zip(groups, best, strict=True) if most]
    result: dict[str, Any] = {"draws": draws, "draws_that_share": len(pairs)}
    for name, arm in ARMS.items():
        ratios = [saved(arm(group)) / most for group, most in pairs]
        result[name] = {"mean": round(mean(ratios), 4), "worst": round(min(ratios), 4)} if ratios else None
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Saved tokens over those of the exact optimum.")
    inputs.add_arguments(parser)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    traces = {}
    for trace in inputs.load(args.traces, args.only):
        traces[trace.name] = result = measure(trace.contexts, args.draws, args.seed)
        print(f"{trace.name:24}{result}", flush=True)
    save("optimum", {"seed": args.seed, "size": SIZE, "traces": traces})
    ours = [t["shared tokens"] for t in traces.values() if t["shared tokens"]]
    return 0 if all(o["mean"] >= 0.99 and o["worst"] > 0.93 for o in ours) else 1


if __name__ == "__main__":
    raise SystemExit(main())
