"""``prefixpilot doctor``: whether an engine's prefix cache can work as it is set up, and what mends it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prefixpilot.cli.options import positive_int
from prefixpilot.errors import ConfigError

if TYPE_CHECKING:
    from prefixpilot.engines.doctor import Finding, Report

WIDTH = 100

DESCRIPTION = """\
Ask an engine what it says of its prefix cache: whether it is on, how large its pages and the cache are, whether KV
events and cached_tokens are reported, whether the chat template keeps turn n a prefix of turn n+1, and whether one
process answers. Each finding comes with the flag that mends it. Nothing is sent to the model, unless with --probe.
"""

EPILOG = """\
engines: vLLM, SGLang, llama.cpp, and what hosted providers publish of theirs; of others what can be seen.

--probe sends five short prompts (a hosted provider charges for them): a prompt A of documents, A again, A with its
documents in another order, and a conversation of two turns; and reports what the engine says it reused. It settles what
an engine does not say of itself.

examples:
  prefixpilot doctor http://127.0.0.1:8000
  prefixpilot doctor http://127.0.0.1:8080 --probe
  prefixpilot doctor https://HOST/v1 --key-env API_KEY --model MODEL --probe --json

exit status: 0 nothing to mend, 1 something to mend or no answer, 2 bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="check how an engine's prefix cache is set up",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="base URL of the engine, with or without /v1")
    parser.add_argument("--model", metavar="NAME", help="the model to ask for (default: the first that it lists)")
    parser.add_argument("--probe", action="store_true", help="send prompts, and see what is reused")
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds the key; it is never shown")
    parser.add_argument(
        "--timeout", type=positive_int, default=120, metavar="S", help="seconds for each answer (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Examine an engine. Returns the exit status."""
    from prefixpilot.engines.doctor import Client, examine

    client = Client(args.url, _key(args.key_env), args.timeout)
    mark = uuid4().hex[:12] if args.probe else None
    report = examine(client, args.url, args.model, mark, _tell if sys.stderr.isatty() else lambda what: None)
    print(json.dumps(as_json(report)) if args.json else text(report))
    return 0 if report.sound else 1


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "")
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("--key-env", f"the variable {name} is not set, or holds no key", f"export {name}=KEY first")
    return key


def _tell(what: str) -> None:
    print(f"\r\033[K{what} ...\r", end="", file=sys.stderr, flush=True)


def as_json(report: Report) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    return {
        "url": report.url,
        "sound": report.sound,
        "facts": asdict(report.facts),
        "findings": [asdict(finding) for finding in report.findings],
        "probe": [{"name": step.name, **step.counts._asdict()} for step in report.steps],
    }


def text(report: Report) -> str:
    """The report for people: a table of findings, what mends each below it."""
    rows = [row for finding in report.findings for row in _rows(finding)]
    number = sum(finding.status in ("warn", "fail") for finding in report.findings)
    last = "nothing to mend" if report.sound else f"{number} to mend"
    return "\n".join([report.url, "", *rows, "", last])


def _rows(finding: Finding) -> list[str]:
    head = f"{finding.status:<8}{finding.check:<16}"
    lines = textwrap.wrap(finding.what, WIDTH - len(head), break_on_hyphens=False) or [""]
    indent = " " * len(head)
    fixes = [] if finding.fix is None else textwrap.wrap(f"-> {finding.fix}", WIDTH - len(head), break_on_hyphens=False)
    return [head + lines[0], *(indent + line for line in (*lines[1:], *fixes))]
