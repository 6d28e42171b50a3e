"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from prefixpilot.config import Annotate, PilotConfig, Planner, Schedule
from prefixpilot.errors import TraceError

STDIN: Final = "-"
TRACE_FORMATS = """\
TRACE is one of, compressed with gzip or not:
  a trace file      first line {"trace": NAME, "tokens": [tokens of block 0, of block 1, ...]}, then a request a line:
                    {"request_id": "r1", "session_id": "s1", "turn": 0, "blocks": [17, 4, 9]}, most relevant block first
  a trace folder    requests.jsonl, as above, and blocks.jsonl: {"block_id": "a", "text": "...", "tokens": 120} a line
  a Batch file      OpenAI Batch: {"custom_id", "method", "url", "body"} a line, chat bodies with "context_blocks":
                    a list of strings or of {"text", "id", "title"}, most relevant first
  a data set        multihoprag:PATH, narrativeqa:PATH, qasper:PATH, mtrag:PATH or locomo:PATH, its files as published;
                    NAME:hub fetches the first three (pip install "prefixpilot[datasets]"). 15 blocks a question, by
                    BM25 (pip install "prefixpilot[bm25]"); qasper/5:PATH takes 5
"""


@contextmanager
def log_file(path: str) -> Iterator[str]:
    """The file of a log, which is read more than once; stdin, for ``-``, is written to a temporary one first.

    Raises:
        TraceError: names stdin, if that is where the log is from.
    """
    if path != STDIN:
        yield path
        return
    with NamedTemporaryFile(prefix="prefixpilot-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        try:
            yield copy.name
        except TraceError as error:
            field = error.field.replace(copy.name, "stdin")
            raise TraceError(field, error.reason, error.remedy) from None


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add TRACE and how its sessions are read."""
    parser.add_argument("trace", metavar="TRACE", help="a trace file, a trace folder or a Batch file (see below)")
    parser.add_argument(
        "--multi-turn",
        action="store_true",
        help="sessions are conversations: turns keep their order, and blocks of earlier turns are not sent again "
        "(without it requests are independent)",
    )


def add_planner(parser: argparse.ArgumentParser) -> None:
    """Add how requests are ordered and scheduled."""
    parser.add_argument(
        "--planner",
        choices=get_args(Planner),
        default=PilotConfig().planner,
        help="how blocks are ordered: by the tokens that contexts share, or by Algorithm 4 of the paper "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--schedule",
        choices=get_args(Schedule),
        default=PilotConfig().schedule,
        help="how requests are ordered: Algorithm 5, or a walk of the tree, which a small cache serves better "
        "(default %(default)s)",
    )

    add_limits(parser)


def add_gate(parser: argparse.ArgumentParser) -> None:
    """Add the gate of single requests."""
    parser.add_argument(
        "--gate",
        action="store_true",
        help="leave requests as they are (given order, no annotation) while ordering does not pay for its annotations; "
        "not where all are planned together",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add what may be done to a request."""
    parser.add_argument(
        "--annotate",
        type=_annotate,
        default=PilotConfig().annotate,
        metavar="N|all",
        help="after the blocks, name at most the N most relevant ones in their order; a label costs 6 to 7 tokens "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--max-displacement",
        type=nonnegative_int,
        metavar="N",
        help="move no block by more than N places from its retriever rank (default: no bound)",
    )


def pilot_config(args: argparse.Namespace) -> PilotConfig:
    """The planner's settings from the arguments."""
    return PilotConfig(
        planner=args.planner,
        schedule=args.schedule,
        annotate=args.annotate,
        max_displacement=args.max_displacement,
        page_size=args.page_size or 1,
    )


def _annotate(text: str) -> Annotate:
    return "all" if text == "all" else nonnegative_int(text)


class Once(argparse.Action):
    """An argument that is given at most once: of several, argparse takes the last without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, name: Any = None
    ) -> None:
        given: set[str] = vars(namespace).setdefault("given_once", set())
        if self.dest in given:
            raise argparse.ArgumentError(self, "is given twice, and one is used here; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, value)


def engine_url(text: str) -> str:
    """An argument that is the base URL of an engine's API: http or https, with a host."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no base URL, such as http://127.0.0.1:8000/v1")
    return text


def nonnegative_int(text: str) -> int:
    """An argument that is an int of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an int of 0 or more")
    return int(text)


def positive_int(text: str) -> int:
    """An argument that is an int of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an int of 1 or more")
    return value
