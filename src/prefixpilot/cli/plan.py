"""``prefixpilot plan``: a whole workload, ordered and scheduled before it runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
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

if TYPE_CHECKING:
    from prefixpilot.core import Plan, PlannedRequest
    from prefixpilot.workloads import Workload, WorkloadRequest

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
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Plan a workload. Returns the exit status."""
    from prefixpilot.bench.bound import workload_bound
    from prefixpilot.cli.progress import progress
    from prefixpilot.pilot import ContextPilot
    from prefixpilot.workloads import read_workload

    check_distinct(args.trace, output=args.output, save_index=args.save_index)
    workload = read_workload(args.trace)
    if args.multi_turn:
        workload = workload.as_conversations()
    paths = [args.output] if args.save_index is None else [args.output, args.save_index]
    with open_outputs(*paths) as (out, *index):
        pilot = ContextPilot(pilot_config(args))
        with progress("planning", len(workload.requests)) as advance:
            schedule = pilot.optimize_batch([entry.request for entry in workload.requests], advance)
        for planned in schedule:
            out.write_line(plan_line(workload.requests[planned.position], planned.plan))
        for snapshot in index:
            snapshot.write_line(pilot.snapshot())
    summary = summarize(workload, schedule, None if args.multi_turn else workload_bound(workload))
    text = json.dumps(summary) if args.json else _text(summary, args.multi_turn)
    print_summary(text, summary_stream(args.output, args.save_index))
    return 0


def plan_line(entry: WorkloadRequest, plan: Plan) -> dict[str, Any]:
    """What is written for one request."""
    from prefixpilot.prompts import render_blocks

    if entry.batch is not None:
        return entry.batch.render(render_blocks(plan))
    line: dict[str, Any] = {
        "request_id": plan.request_id,
        "blocks": [entry.name_of(block.position) for block in plan.blocks],
        "annotation": plan.order_annotation,
    }
    located = [(i, block.location_annotation) for i, block in enumerate(plan.blocks) if block.location_annotation]
    if located:
        line["replaced"] = [{"index": i, "annotation": annotation} for i, annotation in located]
    return line


def summarize(workload: Workload, schedule: Sequence[PlannedRequest], bound: int | None) -> dict[str, Any]:
    """Figures of a plan, as ``--json`` prints them.

    What is cached is predicted for first turns only, under a cache that keeps all that is still needed.
    """
    plans = [planned.plan for planned in schedule]
    predicted = [plan for plan in plans if plan.predicted_cached_tokens is not None]
    block_tokens = sum(block.tokens for plan in plans for block in plan.blocks)
    cached = sum(plan.predicted_cached_tokens or 0 for plan in predicted)
    annotations = sum(plan.annotation_tokens for plan in plans)
    return {
        "workload": workload.name,
        "requests": len(plans),
        "requests_with_blocks": sum(bool(plan.blocks) for plan in plans),
        "requests_reordered": sum(list(plan.order) != sorted(plan.order) for plan in plans),
        "blocks": sum(len(plan.blocks) for plan in plans),
        "blocks_replaced": sum(len(plan.blocks) - len(plan.sent) for plan in plans),
        "block_tokens": block_tokens,
        "predicted_cached_tokens": cached,
        "predicted_for_requests": len(predicted),
        "predicted_hit_rate": cached / max(1, block_tokens),
        "annotation_tokens": annotations,
        "net_cached_tokens": cached - annotations,
        "bound_tokens": bound,
        "bound_hit_rate": None if bound is None else bound / max(1, block_tokens),
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
