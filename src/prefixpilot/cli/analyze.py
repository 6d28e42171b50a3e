"""``prefixpilot analyze``: what a log of requests shares, and what is in the way."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefixpilot.cli.options import STDIN, log_file, positive_int
from prefixpilot.cli.outputs import check_distinct, print_summary, table
from prefixpilot.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from prefixpilot.bench.analysis import Analysis

DESCRIPTION = """\
Read a log of requests to models and say how much of the prompts a prefix cache has already, as the requests come and as
PrefixPilot would send them, what changes in front of the conversation, and which setting mends it. No engine is asked,
nothing leaves the machine.
"""

EPILOG = """\
LOG is JSON Lines, compressed with gzip or not; a line is one of
  the body of a request                {"model": ..., "messages": [...]}, "input" or "prompt"
  a line of a Batch file               OpenAI {"custom_id", "method", "url", "body"}, Anthropic {"custom_id", "params"}
  an object that holds the body        as "request" or "body", with "url", "headers", "response" if they were logged
A body may be a string of JSON. Lines that hold no request are counted and told, and so is a compressed file that ends
too early; reading goes on. LOG `-` is stdin.

The summary goes to stdout, or with --json the whole analysis as one JSON object. --html FILE writes a page of its own.

examples:
  prefixpilot analyze requests.jsonl --html report.html
  kubectl logs gateway | prefixpilot analyze -
  prefixpilot analyze batch.jsonl.gz --cache-tokens 1000000 --price 2.5 --json

exit status: 0, or 2 for bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``analyze``."""
    parser = subparsers.add_parser(
        "analyze",
        help="what a log of requests shares, and what is in the way",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", metavar="LOG", help="a log of requests (see below)")
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    parser.add_argument("--json", action="store_true", help="print the whole analysis as JSON")
    parser.add_argument(
        "--cache-tokens",
        metavar="N|unbounded",
        type=_cache_tokens,
        default=400_000,
        help="capacity of the engine's KV cache in tokens (default %(default)s)",
    )
    parser.add_argument(
        "--prefill-rate",
        metavar="N",
        type=float,
        default=5_000.0,
        help="tokens a second that the engine prefills: makes the expected TTFT of the page (default %(default)s)",
    )
    parser.add_argument("--price", metavar="P", type=float, help="of a million uncached input tokens: adds the cost")
    parser.add_argument("--no-schedule", action="store_true", help="do not look at all requests as one batch")
    parser.add_argument("--no-text", action="store_true", help="no words of the log in the report, nor its name")
    parser.add_argument(
        "--processes", metavar="N", type=positive_int, help="that work side by side (default: one a core)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Analyse, and write what was asked for."""
    try:
        from prefixpilot.bench.analysis import AnalysisOptions, PageOptions, analyze, render_page
    except MissingExtraError:
        raise MissingExtraError("starlette", 'pip install "prefixpilot[proxy]"') from None
    check_distinct(args.log, html=args.html)
    page = PageOptions(args.prefill_rate, args.price, show_text=not args.no_text)
    options = AnalysisOptions(args.cache_tokens, schedule=not args.no_schedule, processes=args.processes)
    with _share() as tell, log_file(args.log) as log:
        analysis = analyze(log, options, tell)
    if args.no_text or args.log == STDIN:
        analysis = replace(analysis, log="log")
    if args.html is not None:
        _write(Path(args.html), render_page(analysis, page))
    if args.json:
        print(json.dumps(analysis.as_json(show_text=page.show_text)))
    else:
        print_summary(_summary(analysis), sys.stdout)
    return 0


@contextmanager
def _share() -> Iterator[Callable[[float], object]]:
    from tqdm import tqdm

    with tqdm(total=100, desc="analyze", unit="%", disable=None, leave=False) as bar:
        yield lambda share: bar.update(round(share * 100) - bar.n)


def _summary(analysis: Analysis) -> str:
    rows = [("requests", f"{analysis.requests:,} in {analysis.conversations:,} conversations")]
    if analysis.refused:
        rows.append(("refused", f"{analysis.refused:,} with context_blocks that cannot be used"))
    if analysis.bad_lines:
        first = analysis.bad_examples[0]
        rows.append(("no request", f"{analysis.bad_lines:,} lines; line {first.number} {first.reason}"))
    rows += [(arm.name, f"{arm.hit_rate:.4f}  {arm.prefilled_tokens:,} tokens to compute") for arm in analysis.arms]
    blocks = analysis.blocks
    rows.append(("documents", f"{blocks.blocks:,}, {blocks.tokens:,} tokens; {blocks.repeated_tokens:,} seen before"))
    for seen in analysis.unproved:
        why = "documents may stand there, but nothing shows where they begin and end: they stay"
        rows.append(("edges not proved", f"{seen.texts:,} texts of {seen.format}, first in line {seen.line}; {why}"))
    for finding in analysis.findings:
        example = finding.example
        where = f"line {example.line} {example.where} at {example.offset}"
        rows.append((f"changes: {finding.cause}", f"{finding.requests:,} requests, first in {where}; {finding.remedy}"))
    return table(rows)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--html", f"{path}: {error.strerror}", "give a file that can be written") from None


def _cache_tokens(text: str) -> int | None:
    return None if text == "unbounded" else positive_int(text)
