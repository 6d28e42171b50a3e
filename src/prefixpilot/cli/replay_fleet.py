"""``prefixpilot replay --replicas N``: a workload over several engines, in simulated time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefixpilot.cli.options import pilot_config
from prefixpilot.cli.outputs import print_summary
from prefixpilot.errors import ConfigError

if TYPE_CHECKING:
    from prefixpilot.bench import Rendering
    from prefixpilot.bench.fleet import FleetReport
    from prefixpilot.prefix_cache import PrefixCache

ALL: Final = "all"
DEFAULT: Final = "context-aware"
MAX_REPLICAS: Final = 1_024
"""Each request looks at every replica's load, and each replica has a cache: above that a replay takes hours."""
_FLAGS: Final = ("routing", "rate", "prefill_rate", "decode_rate", "answer_tokens", "arrivals")


def refuse_fleet_flags(args: argparse.Namespace) -> None:
    """Without --replicas they would be ignored.

    Raises:
        ConfigError: names the flag.
    """
    given = next((name for name in _FLAGS if getattr(args, name) is not None), None)
    if given is not None:
        raise ConfigError(f"--{given.replace('_', '-')}", "goes with --replicas only", "add --replicas N")


def replay_fleet(args: argparse.Namespace, rendering: Rendering | None) -> int:
    """Replay over ``args.replicas`` engines, with one policy or with all of them."""
    from prefixpilot.bench import sent_prompts
    from prefixpilot.bench.arrivals import read_arrivals, recorded
    from prefixpilot.bench.fleet import Service, simulate_fleet
    from prefixpilot.cli.progress import progress
    from prefixpilot.routing import POLICIES, router_of
    from prefixpilot.workloads import read_workload

    if args.replicas > MAX_REPLICAS:
        raise ConfigError("--replicas", f"is {args.replicas:,}", f"use at most {MAX_REPLICAS:,}")
    if args.emit is not None:
        raise ConfigError("--emit", "goes without --replicas", "leave one of them out")
    names = POLICIES if args.routing == ALL else (args.routing or DEFAULT,)
    page = args.page_size or 1
    routers = [router_of(name, args.cache_tokens, page) for name in names]
    speeds = {name: getattr(args, name) for name in _FLAGS[1:-1] if getattr(args, name) is not None}
    service = Service(**speeds)
    times = None if args.arrivals is None else read_arrivals(Path(args.arrivals))
    workload = read_workload(args.trace)
    whole = None if args.cache_tokens is None else args.cache_tokens * args.replicas
    reports: dict[str, FleetReport] = {}
    with progress("replaying", len(workload.requests) * len(names)) as advance:
        for name, router in zip(names, routers, strict=True):
            prompts = sent_prompts(
                workload, args.mode, whole, multi_turn=args.multi_turn, config=pilot_config(args), rendering=rendering
            )
            caches = [_cache(args.cache_tokens, page) for _ in range(args.replicas)]
            reports[name] = simulate_fleet(
                prompts,
                router,
                caches,
                service,
                lambda: advance(1),
                None if times is None else recorded(times, args.rate),
            )
    head = f"{workload.name}, {len(workload.requests):,} requests, {args.mode}, {args.replicas} replicas"
    print_summary(json.dumps(_json(head, reports)) if args.json else _table(head, reports), sys.stdout)
    return 0


def _cache(cache_tokens: int | None, page: int) -> PrefixCache:
    from prefixpilot.prefix_cache import PagedPrefixCache, RadixPrefixCache

    return RadixPrefixCache(cache_tokens) if page == 1 else PagedPrefixCache(cache_tokens, page)


_FIGURES: Final = ("hit_rate", "prefilled_tokens", "ttft_p50_s", "ttft_p95_s", "imbalance", "requests_per_s")


def _json(head: str, reports: dict[str, FleetReport]) -> dict[str, Any]:
    policies = {
        name: {
            **{figure: getattr(report, figure) for figure in _FIGURES},
            "makespan_s": report.makespan_s,
            "predicted_tokens": report.predicted_tokens,
            "replicas": [replica._asdict() for replica in report.replicas],
        }
        for name, report in reports.items()
    }
    return {"fleet": head, "routing": policies}


def _table(head: str, reports: dict[str, FleetReport]) -> str:
    rows = [("routing", "hit rate", "computed", "TTFT p50", "TTFT p95", "imbalance", "requests/s")]
    for name, report in reports.items():
        counts = name, f"{report.hit_rate:.4f}", f"{report.prefilled_tokens:,}"
        times = f"{report.ttft_p50_s:.2f} s", f"{report.ttft_p95_s:.2f} s"
        rows.append((*counts, *times, f"{report.imbalance:.2f}", f"{report.requests_per_s:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(row)))]) for row in rows
    ]
    return "\n".join([head, *lines])
