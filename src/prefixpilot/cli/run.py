"""``prefixpilot run``: a Batch file, planned and run on an engine; resumable."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prefixpilot.cli.options import Once, add_planner, engine_url, pilot_config, positive_int
from prefixpilot.cli.outputs import STDOUT, check_distinct, open_outputs, print_summary, summary_stream, table
from prefixpilot.errors import EngineError, TraceError

if TYPE_CHECKING:
    from prefixpilot.rag import BatchRequest, BatchResult
    from prefixpilot.workloads import Workload, WorkloadRequest

FAILED = 1
_READ = ("model", "messages", "context_blocks", "stream")

DESCRIPTION = """\
Plan a Batch file as `plan` does, and run it on an engine that speaks Chat Completions: so many calls at a time, in the
planned order, results in the order of the file.
"""

EPILOG = """\
BATCH is an OpenAI Batch file, compressed with gzip or not: {"custom_id", "method", "url", "body"} a line, chat bodies
with "context_blocks": a list of strings or of {"text", "id", "title"}, most relevant first.

What is written, one line a request in the order of BATCH, as OpenAI's Batch API writes it:
  {"custom_id": "a", "response": {"status_code": 200, "body": {...}}, "error": null}
  {"custom_id": "b", "response": null, "error": {"code": "call_failed", "message": "..."}}

Every call that ends is put on disk at once, in OUT.done or the file given with --done. Run the same line again after
an interruption: what is done is not done again; calls that failed, or were under way, are. Give --done to resume a run
that writes to stdout. Delete the file to begin anew. After 20 failures in a row the run ends, without OUT.

The key is that of OPENAI_API_KEY, if it is set. Needs the extra [openai].

examples:
  prefixpilot run batch.jsonl --engine http://127.0.0.1:8000/v1 -o results.jsonl
  prefixpilot run batch.jsonl.gz --engine http://127.0.0.1:8000/v1 -o results.jsonl.gz --concurrency 32

exit status: 0; 1 if calls have failed (their lines say why); 2 for bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``run``."""
    parser = subparsers.add_parser(
        "run",
        help="run a Batch file on an engine, in the order that hits most",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", metavar="BATCH", help="a Batch file (see below)")
    parser.add_argument(
        "--engine",
        metavar="URL",
        type=engine_url,
        action=Once,
        required=True,
        help="base URL of the API: http://127.0.0.1:8000/v1 (/v1 is added to a URL without a path)",
    )
    parser.add_argument("-o", "--output", metavar="OUT", default=STDOUT, help="write results here (default stdout)")
    parser.add_argument("--done", metavar="FILE", help="what is done, to resume by (default OUT.done)")
    parser.add_argument(
        "--concurrency", type=positive_int, default=8, metavar="N", help="calls at a time (default %(default)s)"
    )
    parser.add_argument("--timeout", type=positive_int, default=600, metavar="S", help="seconds a call may take")
    parser.add_argument(
        "--page-size", type=positive_int, metavar="N", help="tokens of a page of the engine's cache (default 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    add_planner(parser)


def run(args: argparse.Namespace) -> int:
    """Run a Batch file. Returns the exit status."""
    from prefixpilot.pilot import ContextPilot
    from prefixpilot.rag import run_batch
    from prefixpilot.rag.client import Client
    from prefixpilot.workloads import read_workload

    done = args.done or (None if args.output == STDOUT else f"{args.output}.done")
    check_distinct(args.trace, output=args.output, done=done)
    requests = list(_requests(read_workload(args.trace)))
    client = Client(base_url=_api(args.engine), api_key=os.environ.get("OPENAI_API_KEY", "none"), timeout=args.timeout)
    try:
        with open_outputs(args.output) as (out,), client:
            pilot = ContextPilot(pilot_config(args))
            results = run_batch(client, requests, done=done, concurrency=args.concurrency, pilot=pilot)
            for result in results:
                out.write_line(result_line(result))
    except EngineError as error:
        print(f"prefixpilot run: {error}", file=sys.stderr)
        return FAILED
    summary = summarize(results)
    print_summary(json.dumps(summary) if args.json else _text(summary), summary_stream(args.output))
    return FAILED if summary["failed"] else 0


def _api(url: str) -> str:
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1"


def _requests(workload: Workload) -> Iterator[BatchRequest]:
    for entry in workload.requests:
        yield _request(entry)


def _request(entry: WorkloadRequest) -> BatchRequest:
    from prefixpilot.rag import BatchRequest

    body = {} if entry.batch is None else entry.batch.line.get(entry.batch.member)
    if entry.batch is None or entry.batch.member != "body" or not isinstance(body, Mapping) or "messages" not in body:
        raise TraceError(entry.where, "is no request to Chat Completions", "give a Batch file of chat bodies")
    if not isinstance(body.get("model"), str):
        raise TraceError(f"{entry.where}: body.model", "is missing", "name the engine's model")
    if body.get("stream"):
        raise TraceError(f"{entry.where}: body.stream", "has no use in a batch", "leave it out")
    rest = {
        name: value for name, value in body.items() if name not in ("model", "messages", "context_blocks", "stream")
    }
    options: dict[str, Any] = {"model": body["model"], "extra_body": rest}
    request = entry.request
    return BatchRequest(request.request_id, tuple(body["messages"]), request.blocks, options, request.constraints)


def result_line(result: BatchResult) -> dict[str, Any]:
    """What is written for one request."""
    if result.error is not None:
        return {
            "custom_id": result.request_id,
            "response": None,
            "error": {"code": "call_failed", "message": result.error},
        }
    response = {"status_code": 200, "body": result.response}
    return {"custom_id": result.request_id, "response": response, "error": None}


def summarize(results: list[BatchResult]) -> dict[str, Any]:
    """Figures of a run, as ``--json`` prints them. Tokens are the engine's, of all requests that were answered, by this
    run or an earlier one; ``null`` if it did not tell all of them."""
    told = [result.usage for result in results if result.error is None]
    prompt = [usage.prompt_tokens for usage in told]
    cached = [usage.cached_tokens for usage in told]
    total = None if None in prompt else sum(count or 0 for count in prompt)
    hits = None if None in cached else sum(count or 0 for count in cached)
    return {
        "requests": len(results),
        "done_before": sum(result.resumed for result in results),
        "failed": len(results) - len(told),
        "prompt_tokens": total,
        "cached_tokens": hits,
        "hit_rate": None if not total or hits is None else hits / total,
    }


def _resumed(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    before = summary["done_before"]
    if not before:
        return []
    sent = summary["requests"] - before
    return [("this run", f"{sent:,} sent, {before:,} were done before; the figures below are of both together")]


def _text(summary: Mapping[str, Any]) -> str:
    def shown(value: float | None, form: str = ",") -> str:
        return "unknown: the engine did not tell" if value is None else format(value, form)

    return table(
        [
            ("requests", f"{summary['requests']:,}, of which {summary['failed']:,} failed"),
            *_resumed(summary),
            ("prompts", f"{shown(summary['prompt_tokens'])} tokens"),
            ("cached", f"{shown(summary['cached_tokens'])} tokens"),
            ("hit rate", shown(summary["hit_rate"], ".4f")),
        ]
    )
