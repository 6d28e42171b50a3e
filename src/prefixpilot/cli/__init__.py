"""The command ``prefixpilot``: one small module per command, each with ``add_parser(subparsers)`` and ``run(args)``."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from types import FrameType
from typing import Any, Final, NoReturn

from prefixpilot import COMPILED, __version__
from prefixpilot.errors import ConfigError, InvalidInputError, MissingExtraError

BAD_INPUT = 2
_FLAG: Final = re.compile(r"--[a-z][\w-]*")
INTERRUPTED = 130
BROKEN_PIPE = 141

DESCRIPTION = """\
Order, schedule and de-duplicate the context blocks of prompts, so that an LLM engine's KV prefix cache hits.
An independent implementation of ContextPilot (MLSys 2026).
"""

_FORM = "compiled" if COMPILED else "pure Python"

EPILOG = """\
start here:
  prefixpilot demo                                         before and after, on a small engine that comes along
  prefixpilot doctor http://127.0.0.1:8000                 is your engine's prefix cache set up well
  prefixpilot serve --engine http://127.0.0.1:8000         the proxy in front of your engine
  prefixpilot top http://127.0.0.1:8765                    how that proxy does, live
  prefixpilot analyze requests.jsonl --html report.html    what your own log of requests would gain
  prefixpilot plan batch.jsonl -o planned.jsonl            a Batch file in the order that hits most
  prefixpilot run batch.jsonl --engine URL -o out.jsonl    run it in that order on your engine
  prefixpilot bench generated --engine URL --out results   arms side by side on an engine
  prefixpilot quality qasper/ --out results                whether answers stay as good
  prefixpilot replay trace.jsonl --cache-tokens 350000     what a cache of that size would hit

prefixpilot COMMAND --help says what each one reads and writes, with examples.
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}{self._hint(message)}; see {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but what a command does not know is told by that command, which knows its flags."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known, rest

    def _hint(self, message: str) -> str:
        """The flags that are nearly those that are not known."""
        words = message.partition("unrecognized arguments: ")[2].split()
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = sorted(set(_FLAG.findall(self.format_help()))) if flags else []
        near = [found for flag in flags for found in get_close_matches(flag, known, 1, 0.7)]
        return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. Commands import what they need when they run."""
    from prefixpilot.cli import analyze, bench, demo, doctor, plan, quality, replay, run, serve, top, trace

    parser = _Parser(
        prog="prefixpilot",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"prefixpilot {__version__} ({_FORM})")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    modules = {
        "analyze": analyze,
        "plan": plan,
        "run": run,
        "replay": replay,
        "serve": serve,
        "top": top,
        "demo": demo,
        "bench": bench,
        "quality": quality,
        "doctor": doctor,
        "trace": trace,
    }
    for name, module in modules.items():
        module.add_parser(subparsers)
        subparsers.choices[name].set_defaults(command=name, run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, or 2 for bad input with its reason on one line of stderr."""
    args = build_parser().parse_args(argv)
    try:
        if sys.stdout is None:
            raise ConfigError("stdout", "is closed", "open it, if only to /dev/null")
        with _ended_by_signals():
            status = int(args.run(args))
            sys.stdout.flush()
    except (InvalidInputError, MissingExtraError) as error:
        reason = str(error).replace("\n", "\\n")
        print(f"prefixpilot {args.command}: {reason}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except OSError as error:  # files name themselves; what is left is our own output
        _discard_stdout()
        with suppress(OSError):
            print(f"prefixpilot {args.command}: {error.strerror or error}; stdout must be writable", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command the way Ctrl-C does, so that it leaves nothing half-written behind.

    A server puts its own handlers in their place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _discard_stdout() -> None:
    """Nobody reads it any more: let the flush at exit go nowhere instead of failing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
