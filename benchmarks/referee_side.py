"""SGLang's half of ``referee.py``: runs where ``sglang`` is installed, not ours.

Reads ``{"runs": [{"capacity": tokens or null, "prompts": [[[block, length], ...], ...]}, ...]}`` on stdin; the last
line of stdout is JSON: the hit rate of each run, counted by SGLang's RadixCache, and the version.
"""

from __future__ import annotations

import importlib
import json
import sys
from array import array
from importlib.metadata import version
from typing import Any


class Allocator:
    """What the simulated cache frees goes nowhere."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def free(self, indices: Any) -> None:
        del indices

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        del indices, start_pos


def hit_rate(prompts: list[list[list[int]]], capacity: int | None) -> float:
    torch = importlib.import_module("torch")
    radix = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    cache = radix.RadixCache.create_simulated(mock_allocator=Allocator(torch.device("cpu")), page_size=1)
    cached = total = 0
    for prompt in prompts:
        tokens = array("q", [(block << 20) + i for block, length in prompt for i in range(length)])
        hit = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(tokens, None))).device_prefix_len
        cached, total = cached + hit, total + len(tokens)
        over = 0 if capacity is None else cache.evictable_size() + len(tokens) - hit - capacity
        if over > 0:
            cache.evict(base.EvictParams(num_tokens=over))
        value = torch.arange(len(tokens), dtype=torch.int64)
        cache.insert(base.InsertParams(key=radix.RadixKey(tokens, None), value=value))
    return cached / total if total else 0.0


def main() -> None:
    given = json.load(sys.stdin)
    rates = [hit_rate(run["prompts"], run["capacity"]) for run in given["runs"]]
    print("\n" + json.dumps({"rates": rates, "version": version("sglang")}))


if __name__ == "__main__":
    main()
