"""A real engine, llama.cpp, behind the real proxy: what it counts and how long it takes, arms by turns.

    python -m benchmarks.engine [FOLDER] [--part NAME ...] [--requests N] [--repeats N] [--keep DIR]
        [--narrow | --whole]

FOLDER holds traces (else generated ones). The model is SmolLM2-135M cut to two layers: tokenizer, template and cache
are true, its text is nonsense. Parts:

* ``sessions``: independent requests of some 2,500 tokens, cache of 64 of them: counts and times;
* ``turns``: conversations, times to the first token, de-duplication;
* ``nothing``: requests that share next to nothing: no harm is allowed;
* ``peer-online``, ``peer-offline`` (with `--peer-python`): ``sessions`` in the orders of contextpilot 0.5.0, a library.

Arms take turns request by request, each on an engine of its own, so that what else the machine does falls on all. What
is done lies in DIR (default .cache/bench) and is not done again. `--narrow`: a model that computes nearly nothing,
for counts only. `--whole`: the model as it is, for a sample. Writes benchmarks/results/engine.json, else
engine_counts.json and engine_whole.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.inputs import add_arguments
from benchmarks.machine import RESULTS, save, this_machine
from benchmarks.peer_orders import peer_sendings

from prefixpilot.bench.comparison.arms import ArmName
from prefixpilot.bench.comparison.cells import Done, Grid
from prefixpilot.bench.comparison.client import Load
from prefixpilot.bench.comparison.engines import Embedded
from prefixpilot.bench.comparison.others import Sending
from prefixpilot.bench.comparison.prepared import Preparation, prepare
from prefixpilot.bench.comparison.runner import CELLS, Comparison, run_comparison
from prefixpilot.blocks import estimate_tokens
from prefixpilot.engines.models import find_smollm2
from prefixpilot.testing.tiny_model import cut_model, kv_bytes_per_token, narrow_model
from prefixpilot.workloads import Workload, read_workload
from prefixpilot.workloads.synthetic import disjoint, sessions, topical

KEPT: Final = Path(__file__).parents[1] / ".cache" / "bench"
LAYERS: Final = 2
CONTEXT: Final = 32_768
"""Tokens of a prompt at most: conversations grow."""
WHOLE_CONTEXT: Final = 8192
"""Those of the model as it is."""
SESSIONS: Final = 14
"""Whole conversations of the part ``turns``, some 100 requests: the first turns alone would repeat nothing."""
_HEADLINE: Final = ("ids-multihoprag_recon.jsonl.gz",)
_TURNS: Final = ("ids-mtrag_bm25_k15.jsonl.gz", "text-mtrag_k5")
AROUND: Final = 200
"""Tokens of template, labels and question, for the size of the cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """One comparison.

    Attributes:
        files: of the trace, in the order of preference.
        made: in its place.
        prompt_tokens: of the blocks of a request, on average, where the trace has no texts.
        cache: capacity in mean requests (of a conversation: in mean turns).
        sessions: only the first so many conversations; ``None``: all.
    """

    name: str
    files: tuple[str, ...]
    made: Workload
    arms: tuple[ArmName, ...]
    prompt_tokens: int
    cache: int
    multi_turn: bool = False
    sessions: int | None = None

    def workload(self, folder: Path | None) -> Workload:
        """Of the folder, or made."""
        if folder is None:
            return self.made
        found = next((folder / name for name in self.files if (folder / name).exists()), None)
        if found is None:
            raise SystemExit(f"{folder} holds none of: {', '.join(self.files)}")
        workload = read_workload(found)
        named = dict.fromkeys(entry.session_id for entry in workload.requests)
        first = set(list(named)[: self.sessions])
        return Workload(workload.name, tuple(entry for entry in workload.requests if entry.session_id in first))


def parts() -> dict[str, Part]:
    every: tuple[ArmName, ...] = ("arrival", "queue", "deduped", "scheduled")
    ours: tuple[ArmName, ...] = ("arrival", "deduped")
    peer: tuple[ArmName, ...] = ("arrival", "given")
    return {
        part.name: part
        for part in (
            Part("sessions", _HEADLINE, topical(500).workload(), every, 2300, 64),
            Part("turns", _TURNS, sessions(SESSIONS).workload(), ours, 1200, 256, True, SESSIONS),
            Part("peer-online", _HEADLINE, topical(500).workload(), peer, 2300, 64),
            Part("peer-offline", _HEADLINE, topical(500).workload(), peer, 2300, 64),
            Part("nothing", ("ids-psi_nq_k5.jsonl.gz",), disjoint(500).workload(), ours, 740, 64),
        )
    }


def comparison(part: Part, engine: Embedded, args: argparse.Namespace) -> Comparison:
    workload = part.workload(args.traces)
    how = Preparation(args.requests, None, part.prompt_tokens, part.multi_turn)
    texts = [block.text for entry in workload.requests for block in entry.request.blocks]
    blocks = part.prompt_tokens
    if all(text is not None for text in texts):  # those are sent as they are
        blocks = sum(estimate_tokens(text or "") for text in texts) // len(workload.requests)
    grid = Grid(part.arms, (part.cache * (blocks + AROUND),), repeats=args.repeats)
    given: Sequence[Sending] = ()
    if "given" in part.arms:
        given = peer_sendings(args.peer_python, prepare(workload, how), part.name == "peer-online")
    return Comparison(workload, engine, grid, how, Load(max_tokens=1), given, by_turns=True)


def model(kept: Path, *, narrow: bool, uncut: bool) -> Path:
    """Made once."""
    kept.mkdir(parents=True, exist_ok=True)
    whole = find_smollm2()
    if uncut:
        return whole
    path = kept / f"{whole.stem}-{'narrow' if narrow else f'{LAYERS}-layers'}.gguf"
    if path.exists():
        return path
    return narrow_model(whole, path, CONTEXT) if narrow else cut_model(whole, path, LAYERS, CONTEXT)


def run(part: Part, args: argparse.Namespace) -> dict[str, Any]:
    gguf = model(args.keep, narrow=args.narrow, uncut=args.whole)
    context = WHOLE_CONTEXT if args.whole else CONTEXT
    engine = Embedded(gguf, context_tokens=context, kv_bytes_per_token=kv_bytes_per_token(gguf), threads=args.threads)
    compared = comparison(part, engine, args)
    count = len(prepare(compared.workload, compared.how))
    kind = "-narrow" if args.narrow else "-whole" if args.whole else ""
    folder = args.keep / f"{part.name}-{compared.workload.name}-{count}{kind}"
    report = run_comparison(compared, folder, lambda cell, done, cells: print(f"{part.name}: {cell}", flush=True))
    about = {"part": part.name, "repeats": args.repeats, "taken_on": asdict(this_machine())}
    return {**about, **report.as_json(), "curves": curves(folder, compared)}


def curves(folder: Path, compared: Comparison) -> dict[str, list[int]]:
    """Cached tokens so far, by arm, at each twentieth of the first repeat."""
    found: dict[str, list[int]] = {}
    for cell, result in Done(folder / CELLS, compared.key()).results.items():
        if cell.repeat == 0:
            total, points, every = 0, [], max(1, len(result.samples) // 20)
            for number, sample in enumerate(result.samples, 1):
                total += sample.cached_tokens
                if number % every == 0:
                    points.append(total)
            found[cell.arm] = points
    return found


def merged(name: str, done: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the parts of the file that were not run now, each with the machine that it was taken on."""
    path = RESULTS / f"{name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": []}
    now = {each["part"] for each in done}
    kept = [{"taken_on": old["machine"], **each} for each in old["parts"] if each["part"] not in now]
    return [*done, *kept]


def main() -> int:
    known = parts()
    parser = argparse.ArgumentParser(description="A real engine behind the real proxy.")
    add_arguments(parser)
    parser.add_argument("--part", nargs="+", choices=list(known), help="default: all; those of the peer if it is there")
    parser.add_argument("--peer-python", metavar="PYTHON", help="an interpreter that has contextpilot==0.5.0")
    parser.add_argument("--requests", type=int, help="of each part at most")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="DIR")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--narrow", action="store_true", help="counts only, on a model that computes nearly nothing")
    kind.add_argument("--whole", action="store_true", help="the model with all of its layers: for a sample")
    parser.add_argument("--threads", type=int, help="of the engine (default: one for each core)")
    args = parser.parse_args()
    name = "engine_counts" if args.narrow else "engine_whole" if args.whole else "engine"
    wanted = args.part or [part for part in known if args.peer_python or not part.startswith("peer")]
    done = [run(known[part], args) for part in wanted]
    save(name, {"parts": merged(name, done)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
