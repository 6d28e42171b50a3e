"""Replicas and routing policies in simulated time: cluster hit rate, TTFT, imbalance, throughput.

    python -m benchmarks.fleet [DIR] [--cache-tokens 350000]

On ids traces of DIR, else on a generated one. Rows: arrival order and ours online, every routing policy, 16 and 32
replicas with all requests there at the beginning (throughput), and 4 replicas with arrivals at 2.5 requests a second
(TTFT), beside one replica with four times the cache. Nothing is timed: prefill takes 10,000 tokens a second.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import save

from prefixpilot.bench import sent_prompts
from prefixpilot.bench.fleet import FleetReport, Service, simulate_fleet
from prefixpilot.bench.replaying import Mode, SentPrompt
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.routing import POLICIES, RoundRobin, router_of
from prefixpilot.workloads import Workload, read_workload
from prefixpilot.workloads.synthetic import topical

TRACES: Final = ("multihoprag_recon", "qasper_evidence", "mtrag_bm25_k15")
AT_ONCE: Final = (16, 32)
FEW: Final = 4
RATE: Final = 2.5
FIGURES: Final = ("hit_rate", "prefilled_tokens", "ttft_p50_s", "ttft_p95_s", "imbalance", "requests_per_s")


def workloads(folder: Path | None) -> Iterator[Workload]:
    """Those that are there."""
    paths = [] if folder is None else [folder / f"ids-{name}.jsonl.gz" for name in TRACES]
    found = [path for path in paths if path.exists()]
    yield from map(read_workload, found) if found else (topical(500).workload(),)


def figures(report: FleetReport) -> dict[str, float]:
    return {name: round(getattr(report, name), 4) for name in FIGURES}


def fleet(
    prompts: list[SentPrompt], policy: str, replicas: int, cache_tokens: int, service: Service
) -> dict[str, float]:
    caches = [RadixPrefixCache(cache_tokens) for _ in range(replicas)]
    return figures(simulate_fleet(prompts, router_of(policy, cache_tokens), caches, service))


def of_workload(workload: Workload, cache_tokens: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    modes: tuple[Mode, ...] = ("arrival", "online")
    for mode in modes:
        for replicas, service in (*((n, Service()) for n in AT_ONCE), (FEW, Service(rate=RATE))):
            prompts = list(sent_prompts(workload, mode, replicas * cache_tokens))
            name = f"{mode}, {replicas} replicas" + ("" if service.rate is None else f", {service.rate:g}/s")
            rows[name] = {policy: fleet(prompts, policy, replicas, cache_tokens, service) for policy in POLICIES}
        whole = list(sent_prompts(workload, mode, FEW * cache_tokens))
        one = simulate_fleet(whole, RoundRobin(), [RadixPrefixCache(FEW * cache_tokens)], Service(rate=RATE))
        rows[f"{mode}, one replica with {FEW} times the cache"] = figures(one)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--cache-tokens", type=int, default=350_000)
    args = parser.parse_args()
    found = {workload.name: of_workload(workload, args.cache_tokens) for workload in workloads(args.folder)}
    for name, rows in found.items():
        print(f"\n{name}, cache {args.cache_tokens:,} tokens a replica")
        for row, policies in rows.items():
            for policy, values in policies.items() if "hit_rate" not in policies else ((" ", policies),):
                print(f"  {row:<44} {policy:<16} " + "  ".join(f"{key} {value:g}" for key, value in values.items()))
    save("fleet", {"cache_tokens": args.cache_tokens, "workloads": found})


if __name__ == "__main__":
    main()
