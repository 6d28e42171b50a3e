"""``prefixpilot plan``: a whole workload, ordered and scheduled before it runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prefixpilot.cli.options import TRACE_FORMATS, add_planner, add_trace, pilot_config, positive_int
from prefixpilot.cli.outputs import (
    STDOUT,
    bound_row,
    check_distinct,
    open_outputs,
    print_summary,
    summary_stream,
    table,
)
from prefixpilot.cli.plan_ray import check_ray_flags, plan_by_ray

if TYPE_CHECKING:
    from prefixpilot.cli.outputs import Output
    from prefixpilot.workloads import Workload
    from prefixpilot.workloads.planned import PlanCounts

DESCRIPTION = """\
Plan a batch of requests that are all known beforehand: order the blocks of each so that many share a prefix, and
schedule the requests so that those which share run one after the other. Nothing is sent to an engine.
"""

EPILOG = f"""\
{TRACE_FORMATS}
What is written, one line a request IN EXECUTION ORDER (send them in this order):
  for traces     {{"request_id": "r1", "blocks": [4, 9, 17], "annotation": "Please read the context in ..."}}
                 blocks in prompt order; the annotation goes behind them, before the question; null if nothing moved
                 [Doc n] is the n-th block that stands in full, counted along the conversation
                 If blocks stand in full earlier, also "replaced": [{{"index": 1, "annotation": "Please refer ..."}}]:
                 put that text in the place of blocks[index]
  for Batch      the same Batch lines, ready to run: blocks rendered in front of the newest user message, context_blocks
                 removed, custom_ids and everything else as they were

A summary follows: on stdout if the plan goes to a file (-o), else on stderr; with --json it is one JSON object. It has
the bound that no order and no schedule of these requests exceeds, in a cache of any size (loose: none need reach it);
not for more than 20,000 requests and not with --multi-turn (null in JSON).

examples:
  prefixpilot plan batch.jsonl -o planned.jsonl
  prefixpilot plan trace.jsonl.gz --schedule paper -o plan.jsonl.gz --json
  prefixpilot plan batch.jsonl -o planned.jsonl --save-index index.json.gz
  prefixpilot serve --engine http://127.0.0.1:8000 --index index.json.gz
  prefixpilot plan batch.jsonl --ray --parts 8 --keep-parts -o planned.jsonl
      then run each file of planned.jsonl.parts/ on one engine: what shares documents is in one part

exit status: 0, or 2 for bad input (the reason is one line on stderr; no output file is left behind)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``plan``."""
    parser = subparsers.add_parser(
        "plan",
        help="order and schedule a whole workload before it runs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        default=STDOUT,
        help="write the plan here, compressed if OUT ends in .gz (default stdout)",
    )
    add_planner(parser)
    parser.add_argument(
        "--page-size",
        type=positive_int,
        metavar="N",
        help="tokens of a page of the engine's cache: a shared prefix counts in whole pages (default 1)",
    )
    parser.add_argument(
        "--save-index", metavar="FILE", help="write the index too, for `serve --index FILE` (JSON; compressed if .gz)"
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="plan parts side by side by Ray, on all cores here or on the cluster of RAY_ADDRESS (extra `ray`); if "
        "stopped, the same command goes on where it was",
    )
    parser.add_argument(
        "--parts",
        type=positive_int,
        metavar="N",
        help="with --ray: in so many parts that share little (default: 4 a core, of 2,000 requests or more)",
    )
    parser.add_argument(
        "--keep-parts",
        action="store_true",
        help="with --ray: leave the parts in OUT.parts/, a file each, to run each on a replica of its own",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Plan a workload. Returns the exit status."""
    from prefixpilot.bench.bound import workload_bound
    from prefixpilot.workloads import read_workload

    check_distinct(args.trace, output=args.output, save_index=args.save_index)
    check_ray_flags(args)
    workload = read_workload(args.trace)
    if args.multi_turn:
        workload = workload.as_conversations()
    paths = [args.output] if args.save_index is None else [args.output, args.save_index]
    with open_outputs(*paths) as (out, *index):
        counts = plan_by_ray(args, workload, out) if args.ray else _plan_here(args, workload, out, *index)
    summary = summarize(workload.name, counts, None if args.multi_turn else workload_bound(workload))
    text = json.dumps(summary) if args.json else _text(summary, args.multi_turn)
    print_summary(text, summary_stream(args.output, args.save_index))
    return 0


def _plan_here(args: argparse.Namespace, workload: Workload, out: Output, *index: Output) -> PlanCounts:
    from prefixpilot.cli.progress import progress
    from prefixpilot.pilot import ContextPilot
    from prefixpilot.workloads.planned import PlanCounts, planned_line

    pilot = ContextPilot(pilot_config(args))
    with progress("planning", len(workload.requests)) as advance:
        schedule = pilot.optimize_batch([entry.request for entry in workload.requests], advance)
    for planned in schedule:
        out.write_line(planned_line(workload.requests[planned.position], planned.plan))
    for snapshot in index:
        snapshot.write_line(pilot.snapshot())
    return PlanCounts.of(planned.plan for planned in schedule)


def summarize(name: str, counts: PlanCounts, bound: int | None) -> dict[str, Any]:
    """Figures of a plan, as ``--json`` prints them."""
    return {
        "workload": name,
        **asdict(counts),
        "predicted_hit_rate": counts.predicted_hit_rate,
        "net_cached_tokens": counts.net_cached_tokens,
        "bound_tokens": bound,
        "bound_hit_rate": None if bound is None else bound / max(1, counts.block_tokens),
    }


def _text(summary: dict[str, Any], multi_turn: bool) -> str:
    predicted_for = f"predicted, for {summary['predicted_for_requests']:,} requests"
    return table(
        [
            ("workload", summary["workload"]),
            ("requests", f"{summary['requests']:,}, of which {summary['requests_with_blocks']:,} have context blocks"),
            ("blocks", f"{summary['blocks']:,} with {summary['block_tokens']:,} tokens"),
            ("reordered", f"{summary['requests_reordered']:,} requests"),
            ("replaced", f"{summary['blocks_replaced']:,} blocks that stand in full earlier in the prompt"),
            ("cached", f"{summary['predicted_cached_tokens']:,} tokens ({predicted_for})"),
            ("hit rate", f"{summary['predicted_hit_rate']:.4f} of the blocks' tokens (predicted)"),
            ("annotations", f"{summary['annotation_tokens']:,} tokens (estimated)"),
            ("net cached", f"{summary['net_cached_tokens']:,} tokens, annotations taken off"),
            bound_row(
                summary["bound_tokens"],
                summary["block_tokens"],
                "with --multi-turn" if multi_turn else "over 20,000 requests",
            ),
        ]
    )
