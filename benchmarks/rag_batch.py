"""A workload through ``run_batch`` on the simulated engine: its hit rate beside that of replay; killed and resumed.

    python -m benchmarks.rag_batch FOLDER [--cache-tokens 350000] [--concurrency 8] [--only N]

FOLDER is a trace folder with texts whose requests carry a ``query``. Three runs, each in a process of its own on an
engine with a cold cache: one to its end; one that gets SIGKILL once the engine has had half of the requests; and that
one resumed. What was done twice, and what is missing, is counted in the engine's own log of requests.

The engine's cache is ``--cache-tokens`` of the trace's tokens, turned into the engine's own by the lengths of all
blocks. Replay is asked twice: with the trace's lengths and blocks alone, as ``prefixpilot replay`` prints by default,
and with the engine's lengths and the whole prompt (``--rendered``).
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
from benchmarks.machine import save

from prefixpilot import ContextBlock
from prefixpilot.bench import Rendering, simulate
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.rag import BatchRequest, run_batch
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.chat_wire import tokenize
from prefixpilot.workloads import Workload, read_workload

SYSTEM = "Answer from the documents, in one sentence."
AROUND = (f"<|system|>\n{SYSTEM}\n<|user|>\n", "\n\n[Doc 1]")


@dataclass(frozen=True)
class Load:
    """A workload and the question of each request."""

    workload: Workload
    questions: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path, only: int | None) -> Load:
        workload = read_workload(folder)
        lines = (folder / "requests.jsonl").read_text(encoding="utf-8").split("\n")
        questions = tuple(json.loads(line)["query"] for line in lines if line)
        return cls(replace(workload, requests=workload.requests[:only]), questions[:only])

    @property
    def blocks(self) -> dict[str, ContextBlock]:
        return {str(b.id): b for entry in self.workload.requests for b in entry.request.blocks}

    def requests(self) -> list[BatchRequest]:
        pairs = zip(self.workload.requests, self.questions, strict=True)
        return [BatchRequest.asking(e.request.request_id, q, e.request.blocks, SYSTEM) for e, q in pairs]

    def in_engine_tokens(self) -> Load:
        """The same with the lengths that the engine will count."""
        known = {name: replace(b, tokens=len(tokenize(f"\n{b.text}"))) for name, b in self.blocks.items()}
        entries = []
        for entry in self.workload.requests:
            blocks = tuple(known[str(block.id)] for block in entry.request.blocks)
            entries.append(replace(entry, request=replace(entry.request, blocks=blocks)))
        return replace(self, workload=replace(self.workload, requests=tuple(entries)))


def run_here(args: argparse.Namespace) -> None:
    """What the child process does: run the batch, print what the engine counted."""
    client = openai.OpenAI(base_url=args.run, api_key="none", max_retries=0)
    requests = Load.read(args.folder, args.only).in_engine_tokens().requests()
    results = run_batch(client, requests, model="simulated", done=args.done, concurrency=args.concurrency)
    told = [result.usage for result in results]
    print(
        json.dumps(
            {
                "results": len(results),
                "in_the_order_given": [r.request_id for r in results] == [r.request_id for r in requests],
                "failed": sum(result.error is not None for result in results),
                "prompt_tokens": sum(usage.prompt_tokens or 0 for usage in told),
                "cached_tokens": sum(usage.cached_tokens or 0 for usage in told),
            }
        )
    )


def child(args: argparse.Namespace, engine: SimulatedEngine, done: Path) -> list[str]:
    own = [sys.executable, "-m", "benchmarks.rag_batch", str(args.folder), "--run", f"{engine.base_url}/v1"]
    own += ["--done", str(done), "--concurrency", str(args.concurrency)]
    return own if args.only is None else [*own, "--only", str(args.only)]


def names(engine: SimulatedEngine) -> list[str]:
    return [chat.header("x-request-id") or "" for chat in engine.chats]


def whole_run(args: argparse.Namespace, capacity: int, folder: Path) -> dict[str, Any]:
    with SimulatedEngine(cache=RadixPrefixCache(capacity)) as engine:
        command = child(args, engine, folder / "whole")
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        told: dict[str, Any] = json.loads(run.stdout)
        return {**told, "hit_rate": told["cached_tokens"] / told["prompt_tokens"], "received": len(engine.chats)}


def killed_run(args: argparse.Namespace, capacity: int, folder: Path, requests: int) -> dict[str, Any]:
    done = folder / "killed"
    with SimulatedEngine(cache=RadixPrefixCache(capacity)) as engine:
        command = child(args, engine, done)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            engine.wait_for_requests(requests // 2, timeout_s=3600)
            process.send_signal(signal.SIGKILL)
            process.wait()
        before = names(engine)
        kept = {json.loads(line)["request_id"] for line in done.read_text().split("\n")[:-1]}
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        received = Counter(names(engine))
        again = [name for name in received if received[name] > 1]
        return {
            "received_before_the_kill": len(before),
            "on_disk_at_the_kill": len(kept),
            "received_in_all": sum(received.values()),
            "never_received": requests - len(received),
            "on_disk_and_sent_again": sum(name in kept for name in again),
            "under_way_at_the_kill_and_sent_again": len(again),
            **json.loads(run.stdout),
        }


def replayed(load: Load, capacity: int, questions: Sequence[str] | None) -> dict[str, Any]:
    """Offline; the whole prompt if there are questions."""
    rendering = None
    if questions is not None:
        lengths = [len(tokenize(f"\n\n{question}\n<|assistant|>\n")) for question in questions]
        head, label = (len(tokenize(text)) for text in AROUND)
        rendering = Rendering(head, round(sum(lengths) / len(lengths)), label)
    report = simulate(load.workload, "offline", RadixPrefixCache(capacity), rendering=rendering)
    return {"cache_tokens": capacity, "hit_rate": report.result.hit_rate, "total_tokens": report.result.total_tokens}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache-tokens", type=int, default=350_000, help="in tokens of the trace")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--only", type=int, help="the first N requests")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--done", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is not None:
        run_here(args)
        return 0
    load = Load.read(args.folder, args.only)
    counted = load.in_engine_tokens()
    longer = sum(b.tokens or 0 for b in counted.blocks.values()) / sum(b.tokens or 0 for b in load.blocks.values())
    capacity = round(args.cache_tokens * longer)
    with tempfile.TemporaryDirectory() as folder:
        save(
            "rag_batch",
            {
                "workload": load.workload.name,
                "requests": len(load.questions),
                "concurrency": args.concurrency,
                "engine_tokens_per_trace_token": round(longer, 3),
                "replay": replayed(load, args.cache_tokens, None),
                "replay_rendered_in_engine_tokens": replayed(counted, capacity, load.questions),
                "whole_run": whole_run(args, capacity, Path(folder)),
                "killed_at_half_and_resumed": killed_run(args, capacity, Path(folder), len(load.questions)),
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
