"""1 to 64 replicas in simulated time: what ordering and context-aware routing are worth as a fleet grows.

    python -m benchmarks.fleet_scale DIR [--arrivals conversation_trace.jsonl] [--policies]

DIR holds ids traces; the arrivals are those of the published Mooncake trace, stretched so that each replica has the
same load. First the paper's comparison (Appendix A: 16 and 32 GPUs): given order and round robin against our order and
context-aware routing, all requests there at the beginning, for the number of replicas that so many GPUs may have been.
With `--policies`, every routing policy on a trace of prefixes (no ordering) at the recorded arrivals. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import save

from prefixpilot.bench import sent_prompts
from prefixpilot.bench.arrivals import read_arrivals, recorded
from prefixpilot.bench.fleet import FleetReport, Service, simulate_fleet
from prefixpilot.bench.replaying import Mode, SentPrompt
from prefixpilot.config import PilotConfig
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.ray.parts import parts_of
from prefixpilot.routing import POLICIES, router_of
from prefixpilot.workloads import Workload, read_workload

PAPER: Final = {"multihoprag_recon": (0.05, 0.60, 1.81), "narrativeqa_10doc": (0.06, 0.38, 1.52)}
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
CACHES: Final = (350_000, 1_400_000)
BUSY: Final = 0.7
"""Share of a replica's time that prompts take if nothing is cached."""
PREFIXES: Final = "mooncake_conversation"


def row(report: FleetReport) -> dict[str, float]:
    names = ("hit_rate", "ttft_p50_s", "ttft_p95_s", "imbalance", "requests_per_s")
    return {name: round(getattr(report, name), 4) for name in names}


def fleet(
    prompts: list[SentPrompt], policy: str, count: int, cache_tokens: int, times: list[float] | None = None
) -> FleetReport:
    """``times``: those of the recorded trace, stretched to the load; ``None``: all at once."""
    service = Service()
    arrivals = None
    if times is not None:
        mean = sum(segment.tokens for sent in prompts for segment in sent.prompt) / len(prompts)
        arrivals = recorded(times, BUSY * count * service.prefill_rate / mean)
    caches = [RadixPrefixCache(cache_tokens) for _ in range(count)]
    return simulate_fleet(prompts, router_of(policy, cache_tokens), caches, service, arrivals=arrivals)


def planned(workload: Workload, mode: Mode, cache_tokens: int) -> list[SentPrompt]:
    return list(sent_prompts(workload, mode, cache_tokens))


def in_parts(workload: Workload, count: int, cache_tokens: int) -> tuple[dict[str, float], float]:
    """A part of the batch for each replica, planned by itself (`plan --ray`): figures, and requests a second."""
    entries, reports = workload.requests, []
    for part in parts_of(entries, count, PilotConfig()):
        prompts = planned(Workload(workload.name, tuple(entries[i] for i in part)), "offline", cache_tokens)
        reports.append(fleet(prompts, "round-robin", 1, cache_tokens))
    total = sum(replica.prompt_tokens for report in reports for replica in report.replicas)
    computed = [report.prefilled_tokens for report in reports]
    speed = len(entries) / max(report.makespan_s for report in reports)
    hit_rate, imbalance = 1 - sum(computed) / total, max(computed) * count / sum(computed)
    return {"hit_rate": round(hit_rate, 4), "imbalance": round(imbalance, 4), "requests_per_s": round(speed, 4)}, speed


def beside_the_paper(workload: Workload, times: list[float] | None, counts: Sequence[int]) -> dict[str, Any]:
    """By cache and replicas: hit rates, and throughput as a multiple of given order and round robin."""
    found: dict[str, Any] = {}
    for cache_tokens in CACHES:
        for count in counts:
            given = planned(workload, "arrival", count * cache_tokens)
            plain = fleet(given, "round-robin", count, cache_tokens)
            arms: dict[str, Any] = {"given, round robin": row(plain)}
            modes: tuple[Mode, ...] = ("online", "offline")
            for mode in modes:
                ours = planned(workload, mode, count * cache_tokens)
                report = fleet(ours, "context-aware", count, cache_tokens)
                arms[mode] = {**row(report), "throughput": round(report.requests_per_s / plain.requests_per_s, 3)}
                arms[mode]["prefill"] = round(plain.prefilled_tokens / report.prefilled_tokens, 3)
            arms["parts"], speed = in_parts(workload, count, cache_tokens)
            arms["parts"]["throughput"] = round(speed / plain.requests_per_s, 3)
            if times is not None:
                online = planned(workload, "online", count * cache_tokens)
                arms["given, at recorded arrivals"] = row(fleet(given, "round-robin", count, cache_tokens, times))
                arms["online, at recorded arrivals"] = row(fleet(online, "context-aware", count, cache_tokens, times))
            found[f"{cache_tokens} tokens, {count} replicas"] = arms
            print(workload.name, cache_tokens, count, arms, flush=True)
    return found


def every_policy(workload: Workload, times: list[float], cache_tokens: int, counts: Sequence[int]) -> dict[str, Any]:
    """By replicas and policy, at the recorded arrivals."""
    prompts = planned(workload, "arrival", cache_tokens)
    found: dict[str, Any] = {}
    for count in counts:
        found[str(count)] = {p: row(fleet(prompts, p, count, cache_tokens, times)) for p in POLICIES}
        print(workload.name, count, found[str(count)], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arrivals", type=Path, help="JSON lines with timestamps in milliseconds")
    parser.add_argument("--policies", action="store_true", help="every policy on the trace of prefixes (minutes)")
    parser.add_argument("--cache-tokens", type=int, default=CACHES[0], help="with --policies")
    parser.add_argument("--only", nargs="*", choices=PAPER, default=tuple(PAPER))
    parser.add_argument("--counts", nargs="*", type=int, default=COUNTS, help="numbers of replicas")
    args = parser.parse_args()
    times = None if args.arrivals is None else read_arrivals(args.arrivals)
    traces = {name: args.folder / f"ids-{name}.jsonl.gz" for name in (*PAPER, PREFIXES)}
    result: dict[str, Any] = {"busy": BUSY, "paper": PAPER}
    if args.policies:
        if times is None:
            parser.error("--policies needs --arrivals")
        result["policies"] = every_policy(read_workload(traces[PREFIXES]), times, args.cache_tokens, args.counts)
        save("fleet_policies", result)
        return
    result["workloads"] = {
        name: beside_the_paper(read_workload(traces[name]), times, args.counts) for name in args.only
    }
    save("fleet_scale", result)


if __name__ == "__main__":
    main()
