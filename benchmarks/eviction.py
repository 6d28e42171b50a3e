"""What it costs to forget a request that the engine evicted, by the number of live contexts.

    python -m benchmarks.eviction [--contexts 1000 100000] [--sample 500]

Contexts of 15 blocks come from the topical generator (prefixpilot.workloads.synthetic), planned and sent one by one.
Then every so many-th live request is evicted, shortened to half, or loses a page of its prompt. Reported: the height
of the tree, nodes above the leaf of an evicted request (mean and most), calls of Python functions for one request,
which no other process can change, and CPU microseconds, the best of three parts of the sample.
Writes benchmarks/results/eviction.json.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from benchmarks.machine import save

from prefixpilot.cache_events import PageHash
from prefixpilot.core import RequestId
from prefixpilot.index import ContextIndex
from prefixpilot.residency import ResidentContexts
from prefixpilot.workloads.synthetic import topical

PAGE = 128


def grown(contexts: int) -> tuple[ContextIndex, ResidentContexts, dict[RequestId, PageHash]]:
    """An index that each context joined behind the prefix that it inherits; its pages; and the last page of each."""
    trace = topical(contexts, 15)
    lengths: Any = trace.tokens
    index, resident = ContextIndex(), ResidentContexts(PAGE, contexts)
    last_page: dict[RequestId, PageHash] = {}
    for number, given in enumerate(trace.contexts):
        prefix = index.match_prefix(given).prefix
        blocks = (*prefix, *[block for block in given if block not in prefix])
        request_id = RequestId(f"r{number}")
        index.insert(blocks, tuple(lengths[block] for block in blocks), request_id)
        pages, ends = _pages(blocks, lengths)
        resident.attach(request_id, pages, ends)
        last_page[request_id] = pages[-1]
    return index, resident, last_page


def _pages(blocks: Sequence[Any], tokens: Any) -> tuple[list[PageHash], list[int]]:
    """Names of the full pages of a prompt of these blocks, and where the blocks end."""
    ends: list[int] = []
    pages: list[PageHash] = []
    head = b""
    for block in blocks:
        head = blake2b(repr(block).encode(), digest_size=8, key=head).digest()
        ends.append((ends[-1] if ends else 0) + tokens[block])
        while (len(pages) + 1) * PAGE <= ends[-1]:
            pages.append(PageHash(head + len(pages).to_bytes(4, "big")))
    return pages, ends


def cost(step: Callable[[RequestId], object], requests: Sequence[RequestId]) -> dict[str, float]:
    """Calls and CPU time of one step."""
    quarter = len(requests) // 4
    profile = cProfile.Profile()
    profile.enable()
    for request_id in requests[:quarter]:
        step(request_id)
    profile.disable()
    calls = sum(row[1] for row in pstats.Stats(profile).stats.values()) - 1  # type: ignore[attr-defined]
    times = []
    for part in range(1, 4):
        some = requests[part * quarter : (part + 1) * quarter]
        start = time.process_time()
        for request_id in some:
            step(request_id)
        times.append((time.process_time() - start) / len(some))
    return {"calls": round(calls / quarter, 1), "cpu_us": round(min(times) * 1e6, 2)}


def measure(contexts: int, sample: int) -> dict[str, Any]:
    """All figures for one number of live contexts."""
    index, resident, last_page = grown(contexts)
    every = max(contexts // (3 * sample), 1)
    chosen = [RequestId(f"r{number}") for number in range(0, contexts, every)][: 3 * sample]
    heights = [sum(1 for _ in index.leaf(request_id).ancestors()) for request_id in chosen]
    evicted, shortened, paged = chosen[0::3], chosen[1::3], chosen[2::3]
    return {
        "contexts": contexts,
        "height_mean": round(sum(heights) / len(heights), 2),
        "height_max": max(heights),
        "evict": cost(lambda request_id: index.evict([request_id]), evicted),
        "shorten": cost(lambda request_id: index.shorten(request_id, 7), shortened),
        "page_removed": cost(lambda request_id: resident.remove([last_page[request_id]]), paged),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of forgetting a request, by the number of live contexts.")
    parser.add_argument("--contexts", nargs="*", type=int, default=[1_000, 100_000])
    parser.add_argument("--sample", type=int, default=330, help="requests of each kind")
    args = parser.parse_args()
    save("eviction", {"generator": "topical", "k": 15, "rows": [measure(n, args.sample) for n in args.contexts]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
