"""``prefixpilot trace``: from a log of requests to a trace that `plan` and `replay` read."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from prefixpilot.cli.options import log_file
from prefixpilot.cli.outputs import STDOUTS, check_distinct, open_outputs, print_summary, summary_stream, table
from prefixpilot.errors import ConfigError, MissingExtraError, TraceError

DESCRIPTION = """\
Find the documents in the requests of a log, and write which request held which: a trace for `replay` and `plan`.
"""

EPILOG = """\
LOG is what `prefixpilot analyze` reads. The trace holds numbers only, no word of the log, and may be given away; with
--texts FOLDER the documents are written out, too, as a trace folder.

LOG may also be a public data set, such as multihoprag:PATH (see `prefixpilot plan --help`): what is found for each of
its questions becomes a trace, and questions, answers and evidence stand in the trace folder.

examples:
  prefixpilot trace requests.jsonl -o trace.jsonl.gz
  prefixpilot trace requests.jsonl --texts traces/mine
  prefixpilot trace qasper/5:downloads/ --texts traces/qasper
  prefixpilot replay trace.jsonl.gz --cache-tokens 350000 --mode online --multi-turn

exit status: 0, or 2 for bad input (the reason is one line on stderr; no output file is left behind)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``trace``."""
    parser = subparsers.add_parser(
        "trace",
        help="a trace of the documents in a log of requests",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", metavar="LOG", help="a log of requests")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the trace goes; .gz compresses, - is stdout")
    parser.add_argument("--texts", metavar="FOLDER", help="a trace folder with the documents' texts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the log, and write what was asked for."""
    from prefixpilot.workloads.published import is_published

    if args.output is None and args.texts is None:
        raise ConfigError("--output", "is missing", "give --output FILE, --texts FOLDER, or both")
    if is_published(args.log) and not Path(args.log).exists():
        return _of_data_set(args)
    try:
        from prefixpilot.bench.analysis.tracing import trace_log
    except MissingExtraError:
        raise MissingExtraError("starlette", 'pip install "prefixpilot[proxy]"') from None
    from prefixpilot.workloads.request_log import open_log

    requests, blocks = _in_folder(args.texts)
    check_distinct(args.log, output=args.output, texts=requests)
    wanted = [path for path in (args.output, requests, blocks) if path is not None]
    with ExitStack() as stack, log_file(args.log) as path, open_log(path) as log:
        files = dict(zip(wanted, stack.enter_context(open_outputs(*wanted)), strict=True))
        trace = trace_log(log, (lambda _: None) if blocks is None else files[blocks].write_line)
        if not trace.requests:
            raise TraceError(path, "holds no request with documents", "see what `prefixpilot analyze` finds in it")
        if args.output is not None:
            for line in trace.lines("log"):
                files[args.output].write_line(line)
        for line in trace.requests if requests is not None else ():
            files[requests].write_line(line)
    rows = [
        ("requests", f"{len(trace.requests):,}"),
        ("documents", f"{len(trace.tokens):,}, {sum(trace.tokens):,} tokens (estimated)"),
        ("without documents", f"{trace.without_blocks:,}"),
        ("no request", f"{len(trace.bad):,} lines"),
    ]
    print_summary(table(rows), summary_stream(args.output if args.output in STDOUTS else None))
    return 0


def _of_data_set(args: argparse.Namespace) -> int:
    from prefixpilot.workloads import read_workload
    from prefixpilot.workloads.overlap import overlap_of
    from prefixpilot.workloads.traces import Written

    workload = read_workload(args.log)
    written = Written(workload)
    lines = {
        args.output: written.ids,
        **dict(zip(_in_folder(args.texts), (written.requests, written.blocks), strict=True)),
    }
    wanted = {path: of for path, of in lines.items() if path is not None}
    with open_outputs(*wanted) as files:
        for file, of in zip(files, wanted.values(), strict=True):
            for line in of():
                file.write_line(line)
    rows = [
        ("requests", f"{len(workload.requests):,}"),
        ("documents", f"{len(written.numbers):,}, {sum(written.tokens):,} tokens (estimated)"),
        ("with an answer", f"{sum(bool(entry.answers) for entry in workload.requests):,}"),
        *(
            (name.replace("_", " "), f"{value:,.3f}")
            for name, value in list(overlap_of(workload)._asdict().items())[1:]
        ),
    ]
    print_summary(table(rows), summary_stream(args.output if args.output in STDOUTS else None))
    return 0


def _in_folder(texts: str | None) -> tuple[str | None, str | None]:
    """Where requests and blocks go."""
    folder = None if texts is None else _folder(texts)
    return (None, None) if folder is None else (str(folder / "requests.jsonl"), str(folder / "blocks.jsonl"))


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--texts", f"{path}: {error.strerror}", "give a folder that can be made") from None
    return folder
