"""``prefixpilot quality``: whether answers stay as good when prompts are ordered and de-duplicated."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prefixpilot.cli.options import TRACE_FORMATS, Once, nonnegative_int, positive_int
from prefixpilot.cli.outputs import print_summary, write_report
from prefixpilot.errors import ConfigError

if TYPE_CHECKING:
    from prefixpilot.bench.quality.cases import Sampling
    from prefixpilot.bench.quality.runner import Result

DESCRIPTION = """\
Ask an engine the questions of a workload in several ways, and score its answers against the reference answers: F1 and
exact match as in SQuAD, the likelihood of the reference answer, and how much of the evidence the prompt holds.
"""

EPILOG = f"""\
{TRACE_FORMATS}
Requests need a question and a reference answer ("query" and "answer" in a trace folder). All of them are planned, and
a sample of them is asked.

Arms, each compared with arrival and with the one before it:
  arrival     the given order, all blocks in full
  order       ordered, without the sentence that tells the ranking, nothing left out
  annotated   ordered, with that sentence
  deduped     what `serve` does: and what an earlier turn holds is a reference
  scheduled   what `plan` does: all requests planned as one batch
ENGINE is `embedded` (llama.cpp), `transformers` (in this process; pip install "prefixpilot[quality]"), or the URL of a
llama.cpp or vLLM server; others do not say how likely a given answer is.

With --judge, a model behind an OpenAI-compatible API compares each answer with that of arrival, twice, in both orders.

Answers are kept in OUT/answers.jsonl as they come; run the same line again to go on after an interruption, or with a
larger --sample. OUT gets report.json and report.md.

examples:
  prefixpilot quality qasper/ --engine embedded --k 5 --sample 50 --only-changed --out results
  prefixpilot quality chats/ --engine http://127.0.0.1:8000 --multi-turn --min-turn 1 --out results

exit status: 0, or 2 for bad input or an engine that failed (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``quality``."""
    parser = subparsers.add_parser(
        "quality",
        help="whether answers stay as good",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a trace folder with questions and answers (see below)")
    add("--engine", action=Once, metavar="ENGINE", default="embedded", help="default %(default)s")
    add("--out", metavar="OUT", type=Path, required=True, help="folder for answers and reports")
    add("--arms", metavar="A,B", default="arrival,order,annotated,deduped", help="default %(default)s")
    add("--sample", metavar="N", type=positive_int, help="ask N requests, drawn by the seed (default: all)")
    add("--seed", metavar="N", type=nonnegative_int, default=0, help="of the sample (default %(default)s)")
    add("--only-changed", action="store_true", help="only requests for which an arm sends another prompt than arrival")
    add("--k", metavar="N", type=positive_int, help="blocks of a request at most")
    add(
        "--max-prompt-tokens",
        metavar="N",
        type=positive_int,
        default=7000,
        help="longer ones are left out (%(default)s)",
    )
    add("--multi-turn", action="store_true", help="sessions are conversations, with reference answers as their past")
    add("--min-turn", metavar="N", type=nonnegative_int, default=0, help="only questions with N turns before them")
    add("--annotate", metavar="N|all", type=_annotate, help="how many blocks the order annotation names")
    add("--max-tokens", metavar="N", type=positive_int, default=32, help="of an answer (default %(default)s)")
    add("--score-tokens", metavar="N", type=positive_int, default=32, help="of the reference (default %(default)s)")
    add("--minutes", metavar="N", type=positive_int, help="leave the rest for another run after N minutes")
    add("--model", metavar="FILE", type=Path, help="GGUF file (or folder, for transformers); default SmolLM2-135M")
    add("--judge", metavar="URL", help="compare answers by a model behind an OpenAI-compatible API")
    add("--judge-model", metavar="NAME", help="its name")
    add("--judge-key-env", metavar="VAR", help="environment variable that holds its key")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask what is not answered yet, and write the report."""
    from prefixpilot.bench.quality.base import Bounds
    from prefixpilot.bench.quality.cases import draw_cases
    from prefixpilot.bench.quality.engines import opened
    from prefixpilot.bench.quality.report import markdown, report
    from prefixpilot.bench.quality.runner import run_cases
    from prefixpilot.errors import EngineError
    from prefixpilot.workloads import read_workload

    if (args.judge is None) != (args.judge_model is None):
        missing = "--judge-model" if args.judge_model is None else "--judge"
        raise ConfigError(missing, "is missing", "give both, a URL and the name of the model that judges")
    how = _sampling(args)
    workload = read_workload(args.trace)
    drawn, about = draw_cases(workload, how), {"workload": workload.name, **_about(how)}
    bounds = Bounds(args.max_tokens, args.score_tokens)
    try:
        with opened(args.engine, args.model) as engine, _progress(len(drawn.cases) * len(how.arms)) as on_answer:
            is_late = _deadline(args.minutes)
            results = run_cases(engine, drawn.cases, bounds, args.out, about, on_answer, is_late)
            judged = _judged(args, results, {**about, "engine": engine.name, "bounds": list(bounds)})
            name = engine.name
    except EngineError as error:
        raise ConfigError("--engine", str(error), "what is complete is kept; run the same line again") from None
    if not results:
        raise ConfigError("--minutes", f"is {args.minutes}: no case was complete", "allow more")
    counts = {"requests": drawn.requests, "scorable": drawn.scorable, "changed": drawn.changed}
    found = report(results, {**about, "engine": name, "bounds": bounds._asdict(), **counts, **_where()})
    tables = markdown(found) if judged is None else f"{markdown(found)}\n{judged.table}"
    write_report(
        args.out / "report.json",
        json.dumps({**found.as_json(), **({} if judged is None else {"judged": judged.rows})}, indent=1) + "\n",
    )
    write_report(args.out / "report.md", tables)
    print_summary(tables, sys.stdout)
    return 0


class _Judged(NamedTuple):
    rows: list[dict[str, Any]]
    table: str


def _judged(args: argparse.Namespace, results: Sequence[Result], about: dict[str, Any]) -> _Judged | None:
    """What the judge finds, if there is one."""
    if args.judge is None:
        return None
    from prefixpilot.bench.quality.judge import Judge, judge_results, judged_markdown

    key = None if args.judge_key_env is None else os.environ.get(args.judge_key_env)
    found = judge_results(Judge(args.judge, args.judge_model, key), results, args.out, about)
    rows = [{**entry._asdict(), "net": entry.net._asdict()} for entry in found]
    return _Judged(rows, judged_markdown(found, args.judge_model))


def _sampling(args: argparse.Namespace) -> Sampling:
    from prefixpilot.bench.quality.cases import Sampling

    given = {} if args.annotate is None else {"annotate": args.annotate}
    return Sampling(
        arms=tuple(name.strip() for name in args.arms.split(",")),
        sample=args.sample,
        seed=args.seed,
        k=args.k,
        max_prompt_tokens=args.max_prompt_tokens,
        min_turn=args.min_turn,
        multi_turn=args.multi_turn,
        only_changed=args.only_changed,
        **given,
    )


def _about(how: Sampling) -> dict[str, Any]:
    """What answers depend on, beside the prompts, which are known by their digests."""
    return {
        **{name: getattr(how, name) for name in ("seed", "k", "max_prompt_tokens", "multi_turn", "min_turn")},
        **{name: getattr(how, name) for name in ("only_changed", "annotate")},
    }


def _where() -> dict[str, Any]:
    import prefixpilot
    from prefixpilot.bench.demo_report import installed_versions, this_machine

    machine = this_machine()
    packages = installed_versions("xllamacpp", "transformers", "torch")
    return {
        "machine": {"cpu": machine.cpu, "cores": machine.cores, "system": machine.system},
        "versions": {"prefixpilot": prefixpilot.__version__, **packages},
    }


def _deadline(minutes: int | None) -> Callable[[], bool]:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    return lambda: end is not None and time.monotonic() > end


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], object]]:
    from prefixpilot.cli.progress import progress

    with progress("asking", total) as advance:
        yield lambda: advance(1)


def _annotate(text: str) -> int | str:
    return "all" if text == "all" else nonnegative_int(text)
