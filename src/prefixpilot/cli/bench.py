"""``prefixpilot bench``: arms side by side on an engine, counts by the engine, times by the client."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prefixpilot.cli.options import TRACE_FORMATS, Once, positive_int
from prefixpilot.cli.outputs import print_summary, write_report
from prefixpilot.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from prefixpilot.bench.comparison.engines import BenchEngine
    from prefixpilot.bench.comparison.others import Sendings
    from prefixpilot.workloads import Workload

T = TypeVar("T")

GENERATED: Final = "generated"

DESCRIPTION = """\
Send the same requests in several ways through an engine, each from a cold cache, and compare what the engine computed
and how long clients waited.
"""

EPILOG = f"""\
{TRACE_FORMATS}  {GENERATED}         topical requests made from a seed (--limit, 100)
Arms:
  arrival     the given order in the same template: the engine's own prefix cache
  queue       that, and of 128 waiting requests the one with the longest cached prefix is next: an engine's own policy
  popularity  the blocks seen most often so far first
  walk        a walk down what was sent, each time to the block used most often
  order       ordered, without the sentence that tells the ranking, nothing left out
  annotated   ordered, with that sentence
  deduped     what `serve` does: and what an earlier turn holds is a reference
  scheduled   what `plan` does: all of it, all requests planned and sent as one batch
  given       the orders of a file (--orders): JSON Lines, {{"number": 3, "order": [2, 0, 1]}} each, in the order sent
ENGINE is `embedded` (llama.cpp, started anew for each cell), `simulated`, or the URL of an engine that runs and that
nobody else uses; its cache is emptied by its own call (vLLM with VLLM_SERVER_DEV_MODE=1, SGLang), else every cell
begins its prompts with a line of its own.

Cells that are complete are kept in OUT/cells.jsonl; run the same line again to go on after an interruption. OUT gets
report.json and report.md, and plots if matplotlib is there (pip install "prefixpilot[bench]").

examples:
  prefixpilot bench {GENERATED} --engine simulated --cache-tokens 20000,80000 --out results
  prefixpilot bench trace.jsonl.gz --engine embedded --prompt-tokens 2000 --limit 100 --repeats 3 --out results
  prefixpilot bench chats/ --engine http://127.0.0.1:8000 --multi-turn --concurrency 1,8 --out results

exit status: 0, or 2 for bad input or an engine that failed (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="arms side by side on an engine",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", metavar="TRACE", help=f"a trace, a Batch file, or `{GENERATED}` (see below)")
    parser.add_argument("--engine", action=Once, metavar="ENGINE", default="embedded", help="default %(default)s")
    parser.add_argument("--out", metavar="OUT", type=Path, required=True, help="folder for cells and reports")
    parser.add_argument("--arms", metavar="A,B", type=_names, help="arms (default: all but given); arrival is needed")
    parser.add_argument("--orders", metavar="FILE", type=Path, help="what the arm `given` sends")
    parser.add_argument(
        "--by-turns", action="store_true", help="arms take turns request by request, each on an engine of its own"
    )
    parser.add_argument(
        "--cache-tokens", metavar="N,M", type=_list_of_sizes, default=(None,), help="capacities of the engine's cache"
    )
    parser.add_argument("--k", metavar="N,M", type=_list_of_sizes, default=(None,), help="blocks of a request at most")
    parser.add_argument("--concurrency", metavar="N,M", type=_list_of_ints, default=(1,), help="requests under way")
    parser.add_argument("--repeats", metavar="N", type=positive_int, default=1, help="of every cell")
    parser.add_argument("--rate", metavar="R", type=float, help="requests a second at random times (open loop)")
    parser.add_argument("--limit", metavar="N", type=positive_int, help="only the first N requests")
    parser.add_argument(
        "--prompt-tokens", metavar="N", type=positive_int, help="mean prompt, where a trace has lengths and no texts"
    )
    parser.add_argument("--multi-turn", action="store_true", help="sessions are conversations")
    parser.add_argument("--max-tokens", metavar="N", type=positive_int, default=8, help="of each reply")
    parser.add_argument("--model", metavar="FILE", type=Path, help="GGUF file for the embedded engine")
    parser.add_argument(
        "--layers",
        metavar="N",
        type=positive_int,
        help="cut it to its first N layers: true caching, fast, its text is nonsense (needs gguf)",
    )
    parser.add_argument(
        "--narrow", action="store_true", help="only its tokenizer, on a model that computes nearly nothing: counts only"
    )
    parser.add_argument("--threads", metavar="N", type=positive_int, help="of the embedded engine (default: all cores)")
    parser.add_argument("--parallel", metavar="N", type=positive_int, default=1, help="slots of the embedded engine")
    parser.add_argument("--prefill-rate", metavar="R", type=float, help="of the simulated engine, tokens a second")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the cells, and write the report."""
    try:
        from prefixpilot.bench.comparison.client import Load
        from prefixpilot.bench.comparison.runner import Comparison, run_comparison
    except MissingExtraError:
        raise MissingExtraError("aiohttp", 'pip install "prefixpilot[proxy]"') from None
    from prefixpilot.bench.comparison.arms import ARMS
    from prefixpilot.bench.comparison.cells import Grid
    from prefixpilot.bench.comparison.prepared import Preparation
    from prefixpilot.bench.comparison.summary import markdown
    from prefixpilot.errors import EngineError

    try:
        engine, model = _engine(args)
    except EngineError as error:
        raise ConfigError("--engine", str(error), "start it, and give its URL") from None
    comparison = Comparison(
        _workload(args),
        engine,
        Grid(args.arms or ARMS, args.cache_tokens, args.k, args.concurrency, args.repeats),
        Preparation(args.limit, None, args.prompt_tokens, args.multi_turn),
        Load(rate=args.rate, max_tokens=args.max_tokens, model=model),
        _orders(args),
        args.by_turns,
    )
    try:
        with _progress() as (on_cell, on_answer):
            report = run_comparison(comparison, args.out, on_cell, on_answer)
    except EngineError as error:
        raise ConfigError("--engine", str(error), "what is complete is kept; run the same line again") from None
    tables = markdown(report.figures, report.predicted)
    write_report(args.out / "report.json", json.dumps(report.as_json(), indent=1) + "\n")
    write_report(args.out / "report.md", tables)
    _plot(args.out, comparison.key(), report.figures)
    print_summary(tables, sys.stdout)
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    from prefixpilot.workloads import read_workload

    if args.trace != GENERATED:
        return read_workload(args.trace)
    from prefixpilot.workloads.synthetic import topical

    return topical(args.limit or 100).workload()


def _engine(args: argparse.Namespace) -> tuple[BenchEngine, str]:
    """And the name of the model to ask for."""
    from prefixpilot.bench.comparison.engines import Running, Simulated

    if args.engine == "simulated":
        return Simulated(args.prefill_rate), "simulated"
    if args.engine == "embedded":
        return _embedded(args), "embedded"
    if not args.engine.startswith(("http://", "https://")):
        raise ConfigError("--engine", f"is {args.engine!r}", "use embedded, simulated, or a URL")
    running = Running(args.engine.rstrip("/").removesuffix("/v1"))
    return running, running.model()


def _embedded(args: argparse.Namespace) -> BenchEngine:
    from prefixpilot.bench.comparison.engines import Embedded
    from prefixpilot.engines.models import resolve_model

    model: Path | None = args.model
    if model is None and args.layers is None and not args.narrow:
        return Embedded(parallel=args.parallel, threads=args.threads)
    from prefixpilot.testing.tiny_model import cut_model, kv_bytes_per_token, narrow_model

    model = whole = resolve_model(model)
    if args.narrow or args.layers is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    if args.narrow:
        model = narrow_model(whole, args.out / f"{whole.stem}-narrow.gguf")
    elif args.layers is not None:
        model = cut_model(whole, args.out / f"{whole.stem}-{args.layers}-layers.gguf", args.layers)
    return Embedded(model, args.parallel, kv_bytes_per_token=kv_bytes_per_token(model), threads=args.threads)


def _orders(args: argparse.Namespace) -> Sendings:
    from prefixpilot.bench.comparison.others import read_sendings

    if ("given" in (args.arms or ())) != (args.orders is not None):
        raise ConfigError("--orders", "belongs to the arm `given`", "name the arm in --arms, and give its file")
    return () if args.orders is None else read_sendings(args.orders)


def _plot(folder: Path, key: dict[str, Any], found: Any) -> None:
    from prefixpilot.bench.comparison.cells import Done
    from prefixpilot.bench.comparison.runner import CELLS

    try:
        from prefixpilot.bench.comparison.plots import plot
    except MissingExtraError as error:
        print_summary(f"no plots: {error}", sys.stderr)
        return
    plot(folder, found, Done(folder / CELLS, key).results.values())


@contextmanager
def _progress() -> Iterator[tuple[Callable[[object, int, int], object], Callable[[], object]]]:
    from tqdm import tqdm

    with tqdm(desc="bench", unit=" requests", disable=None, leave=False) as bar:

        def on_cell(cell: object, done: int, cells: int) -> None:
            bar.set_postfix_str(f"cell {done + 1} of {cells}: {cell}")

        yield on_cell, lambda: bar.update(1)


def _names(text: str) -> tuple[str, ...]:
    from prefixpilot.bench.comparison.arms import ALL_ARMS

    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in ALL_ARMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of: {', '.join(ALL_ARMS)}")
    return names


def _list_of_ints(text: str) -> tuple[int, ...]:
    return _listed(text, positive_int)


def _list_of_sizes(text: str) -> tuple[int | None, ...]:
    return _listed(text, lambda part: None if part == "all" else positive_int(part))


def _listed(text: str, read: Callable[[str], T]) -> tuple[T, ...]:
    return tuple(read(part.strip()) for part in text.split(","))
