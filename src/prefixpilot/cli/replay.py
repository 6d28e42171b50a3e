"""``prefixpilot replay``: what a prefix cache of a given size would hit on a workload."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from prefixpilot.cli.options import (
    TRACE_FORMATS,
    add_gate,
    add_planner,
    add_trace,
    nonnegative_int,
    pilot_config,
    positive_int,
)
from prefixpilot.cli.outputs import bound_row, check_distinct, open_outputs, print_summary, summary_stream, table
from prefixpilot.cli.replay_fleet import refuse_fleet_flags, replay_fleet
from prefixpilot.errors import ConfigError

if TYPE_CHECKING:
    from prefixpilot.bench import Rendering, ReplayReport
    from prefixpilot.prefix_cache import PrefixCache

UNBOUNDED = "unbounded"

DESCRIPTION = """\
Send a workload through a model of the engine's prefix cache and report how many prompt tokens it would have served.
No engine is needed: figures are those of the model, of context blocks only (questions have no length in a trace), or
with --rendered of the whole prompt.
"""

EPILOG = f"""\
{TRACE_FORMATS}
Modes:
  arrival   every block in full, in the given order: what you have today
  online    requests are planned one by one as they arrive, knowing nothing of later ones: what `serve` does
  offline   all requests are planned together and sent in the planned order: what `plan` does

The report gives total, cached and prefilled tokens, the hit rate (cached / total), the net hit rate (what the
annotations cost taken off the cached tokens; estimated), and the hit rate over time in about 20 windows of equally many
requests. With --multi-turn annotations are part of the prompt, as is the history of each conversation. Beside the hit
rate stands the bound that no order and no schedule exceeds, in a cache of any size (it is loose: none need reach it);
not for more than 20,000 requests and not with --multi-turn. The report goes to stdout (to stderr with --emit -); with
--json it is one JSON object, null for what was not computed.
With --rendered the prompt is what the engine gets: a head that all prompts share, each block behind its label, the
annotations, a question of its own. The hit rate behind the head leaves that head out on both sides.
--emit writes what was sent in full, one line a request in the order sent: {{"request_id": "r1", "blocks": [4, 9, 17]}}

examples:
  prefixpilot replay trace.jsonl.gz --cache-tokens 350000
  prefixpilot replay trace.jsonl.gz --cache-tokens 350000 --mode offline --emit sent.jsonl
  prefixpilot replay chats/ --cache-tokens 100000 --mode online --multi-turn --json
  prefixpilot replay trace.jsonl.gz --cache-tokens 350000 --page-size 16 --policy lfu

With --replicas the workload goes to several engines in simulated time: cluster hit rate, TTFT, imbalance (largest over
mean of the tokens computed), and throughput, for one routing policy or for all of them.

  prefixpilot replay trace.jsonl.gz --cache-tokens 350000 --mode online --replicas 16 --routing all --rate 20

exit status: 0, or 2 for bad input (the reason is one line on stderr; no output file is left behind)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``replay``."""
    parser = subparsers.add_parser(
        "replay",
        help="what a prefix cache of a given size would hit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace(parser)
    parser.add_argument(
        "--cache-tokens",
        metavar="N",
        required=True,
        type=_cache_tokens,
        help=f"capacity of the engine's KV cache in tokens, or `{UNBOUNDED}`",
    )
    parser.add_argument(
        "--mode",
        choices=("arrival", "online", "offline"),
        default="arrival",
        help="how requests are planned (default %(default)s)",
    )
    add_planner(parser)
    add_gate(parser)
    parser.add_argument(
        "--page-size",
        type=positive_int,
        metavar="N",
        help="model pages of N tokens, of which only full ones hit, as vLLM, and plan in whole pages with --mode "
        "offline (default: token by token, as SGLang)",
    )
    parser.add_argument(
        "--policy", choices=("lru", "lfu", "fifo"), default="lru", help="what is evicted first (default %(default)s)"
    )
    parser.add_argument(
        "--rendered", action="store_true", help="model the whole prompt: head, labels, annotations, question"
    )
    for name, of in (
        ("head", "of what stands in front of the first block, the same in every prompt (template, system text)"),
        ("question", "of what stands behind the blocks, another in every prompt"),
        ("label", "of a block's label and the blank line behind it (default 7)"),
    ):
        parser.add_argument(
            f"--{name}-tokens", type=nonnegative_int, metavar="N", help=f"with --rendered: length in tokens {of}"
        )
    parser.add_argument("--replicas", type=positive_int, metavar="N", help="send to N engines, each with such a cache")
    parser.add_argument(
        "--routing",
        metavar="P",
        help="with --replicas: context-aware (default), round-robin, least-loaded, consistent-hash, prefix-hash or all",
    )
    for name, of in (
        (
            "rate",
            "requests that arrive a second, at random times; with --arrivals, the average that these are stretched "
            "to (default: all are there at the beginning, or as recorded)",
        ),
        ("prefill-rate", "prompt tokens that a replica computes a second (default 10,000)"),
        ("decode-rate", "tokens of an answer a second (default 50)"),
    ):
        parser.add_argument(f"--{name}", type=float, metavar="R", help=f"with --replicas: {of}")
    parser.add_argument(
        "--arrivals",
        metavar="FILE",
        help='with --replicas: requests come when those of FILE did, JSON lines with "timestamp" in milliseconds, in '
        "order of time; past the last one they begin anew",
    )
    parser.add_argument("--answer-tokens", type=nonnegative_int, metavar="N", help="with --replicas (default 100)")
    parser.add_argument("--emit", metavar="OUT", help="write what was sent here, compressed if OUT ends in .gz")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Replay a workload. Returns the exit status."""
    from prefixpilot.bench import simulate
    from prefixpilot.bench.bound import workload_bound
    from prefixpilot.cli.progress import progress
    from prefixpilot.workloads import read_workload

    cache, rendering = _cache(args), _rendering(args)
    if args.replicas is not None:
        return replay_fleet(args, rendering)
    refuse_fleet_flags(args)
    check_distinct(args.trace, emit=args.emit)
    workload = read_workload(args.trace)
    with open_outputs(*([] if args.emit is None else [args.emit])) as emit:
        with progress("replaying", len(workload.requests)) as advance:
            report = simulate(
                workload,
                args.mode,
                cache,
                multi_turn=args.multi_turn,
                config=replace(pilot_config(args), gate=args.gate),
                rendering=rendering,
                on_request=lambda: advance(1),
            )
        for out in emit:
            for sent in report.sent:
                out.write_line({"request_id": sent.request_id, "blocks": list(sent.blocks)})
    bound = None if args.multi_turn or args.rendered else workload_bound(workload)
    text = json.dumps(as_json(report, bound)) if args.json else _text(report, bound)
    print_summary(text, summary_stream(args.emit))
    return 0


def as_json(report: ReplayReport, bound: int | None) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    result = report.result
    return {
        "workload": report.workload,
        "mode": report.mode,
        "multi_turn": report.multi_turn,
        "cache_tokens": report.cache_tokens,
        "requests": len(report.sent),
        "total_tokens": result.total_tokens,
        "cached_tokens": result.cached_tokens,
        "prefilled_tokens": result.prefilled_tokens,
        "evicted_tokens": result.evicted_tokens,
        "hit_rate": result.hit_rate,
        "annotation_tokens": report.annotation_tokens,
        "net_cached_tokens": report.net_cached_tokens,
        "net_hit_rate": report.net_hit_rate,
        **({} if report.rendering is None else _rendered_json(report)),
        "bound_tokens": bound,
        "bound_hit_rate": None if bound is None else bound / max(1, result.total_tokens),
        "windows": [
            {
                "first": window.first,
                "requests": window.requests,
                "total_tokens": window.total_tokens,
                "cached_tokens": window.cached_tokens,
                "hit_rate": window.hit_rate,
            }
            for window in report.windows
        ],
    }


def _rendered_json(report: ReplayReport) -> dict[str, Any]:
    return {
        "rendering": None if report.rendering is None else asdict(report.rendering),
        "hit_rate_behind_head": report.hit_rate_behind_head,
    }


def _text(report: ReplayReport, bound: int | None) -> str:
    result = report.result
    sessions = "sessions are conversations" if report.multi_turn else "requests are independent"
    rendered = report.rendering is not None
    place = "in" if report.multi_turn or rendered else "not in"
    behind = (
        [("behind head", f"{report.hit_rate_behind_head:.4f}, the hit rate of all but the head")] if rendered else []
    )
    why_not = "with --rendered" if rendered else "with --multi-turn" if report.multi_turn else "over 20,000 requests"
    rows = [
        ("workload", f"{report.workload}, {len(report.sent):,} requests"),
        ("mode", f"{report.mode}, {sessions}"),
        ("cache", UNBOUNDED if report.cache_tokens is None else f"{report.cache_tokens:,} tokens"),
        ("total", f"{result.total_tokens:,} tokens"),
        ("cached", f"{result.cached_tokens:,} tokens"),
        ("prefilled", f"{result.prefilled_tokens:,} tokens"),
        ("hit rate", f"{result.hit_rate:.4f}"),
        *behind,
        ("annotations", f"{report.annotation_tokens:,} tokens (estimated; {place} the total)"),
        ("net hit rate", f"{report.net_hit_rate:.4f}, annotations taken off"),
        bound_row(bound, result.total_tokens, why_not),
    ]
    windows = [
        (f"{window.first + 1:,}-{window.first + window.requests:,}", f"{window.hit_rate:.4f}")
        for window in report.windows
    ]
    return f"{table(rows)}\n\n{table([('requests', 'hit rate'), *windows])}"


def _rendering(args: argparse.Namespace) -> Rendering | None:
    """Raises ConfigError for lengths without --rendered."""
    from prefixpilot.bench import Rendering

    names = ("head_tokens", "question_tokens", "label_tokens")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if not args.rendered:
        for name in given:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(flag, "has no place in a prompt of blocks only", "give --rendered too")
        return None
    return Rendering(**given)


def _cache(args: argparse.Namespace) -> PrefixCache:
    from prefixpilot.prefix_cache import POLICIES, PagedPrefixCache, RadixPrefixCache

    policy = POLICIES[args.policy]
    if args.page_size is None:
        return RadixPrefixCache(args.cache_tokens, policy)
    return PagedPrefixCache(args.cache_tokens, args.page_size, policy)


def _cache_tokens(text: str) -> int | None:
    return None if text == UNBOUNDED else positive_int(text)
