"""What naming llama.cpp's slots saves, and what keeping them over a restart saves: prefilled tokens on a real server.

    python -m benchmarks.llamacpp_slots [--seeds 1] [--requests 20]

Three generated workloads, none of those on which the constants of the router were chosen: `conversations` (six that
take turns, documents shared among them), `mixed` (half of the requests are single questions on the same documents) and
`agents` (three plain histories that grow, without blocks). Each runs on the embedded engine with SmolLM2-135M cut to
two layers, cold, with the proxy in mode on: slots chosen by llama.cpp (`--slots off`), and named. Requests go one at a
time. Then `conversations` again, with a stop and a start of engine and proxy in the middle: slots forgotten, and kept
on disk. Tokens do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from benchmarks.machine import save

from prefixpilot.bench.streaming_client import stream_chat, wait_until_ready
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.engines.models import find_smollm2
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.testing.tiny_model import cut_model

WORDS = ("harbour", "gate", "opens", "before", "the", "ferry", "and", "closes", "when", "tide", "turns", "old", "pier")
Choice = Literal["off", "auto"]
CHOICES: tuple[Choice, ...] = ("off", "auto")
SYSTEM = {"role": "system", "content": "Answer in one sentence, from the documents if there are any."}


@dataclass(frozen=True, slots=True)
class Step:
    """One request: whose turn it is, its question, and its documents."""

    session: str
    question: str
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sums:
    """Of all requests of a run."""

    requests: int
    prompt_tokens: int
    prefilled_tokens: int


def text(rng: Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def shared_documents(rng: Random, requests: int, single: float) -> Iterator[Step]:
    """Turns of six conversations, and single questions, on popular documents of one shelf."""
    shelf = [f"Document {n}. {text(rng, 90)}" for n in range(24)]
    weights = [1 / (rank + 1) for rank in range(len(shelf))]
    for number in range(requests):
        drawn = tuple(dict.fromkeys(rng.choices(shelf, weights, k=4)))
        alone = rng.random() < single
        yield Step(f"alone-{number}" if alone else f"c{rng.randrange(6)}", text(rng, 12), drawn)


def growing_histories(rng: Random, requests: int) -> Iterator[Step]:
    """Three agents, whose messages bring the results of their tools."""
    for _ in range(requests):
        yield Step(f"a{rng.randrange(3)}", f"Result: {text(rng, 80)}")


def workload(name: str, seed: int, requests: int) -> list[Step]:
    rng = Random(f"{name} {seed}")
    if name == "agents":
        return list(growing_histories(rng, requests))
    return list(shared_documents(rng, requests, 0.5 if name == "mixed" else 0.0))


@contextmanager
def endpoint(model: Path, slots: Choice, directory: Path | None = None) -> Iterator[str]:
    """A proxy before the engine, just started."""
    with (
        EmbeddedEngine(model, slot_directory=directory) as engine,
        serve_in_thread(ProxySettings(engine.base_url, port=0, slots=slots)) as proxy,
    ):
        wait_until_ready(proxy.url)
        yield proxy.url


def run(url: str, steps: Sequence[Step], histories: dict[str, list[dict[str, str]]]) -> Sums:
    """Send them; each history goes on with the replies that it got."""
    prompt = cached = 0
    for step in steps:
        history = histories.setdefault(step.session, [SYSTEM])
        history.append({"role": "user", "content": step.question})
        body: dict[str, Any] = {"model": "m", "messages": history, "max_tokens": 4, "temperature": 0}
        if step.blocks:
            body["context_blocks"] = list(step.blocks)
        answer = stream_chat(url, body, {"X-PrefixPilot-Conversation": step.session} if step.blocks else {})
        history.append({"role": "assistant", "content": answer.text})
        prompt, cached = prompt + answer.prompt_tokens, cached + answer.cached_tokens
    return Sums(len(steps), prompt, prompt - cached)


def named(url: str) -> int:
    """How many requests were sent to a slot of the proxy's choice."""
    with urllib.request.urlopen(f"{url}/stats", timeout=30) as answer:
        return int(json.load(answer)["slots"]["named"])


def restarted(model: Path, steps: Sequence[Step], slots: Choice, directory: Path | None) -> Any:
    """The second half of a workload, behind a restart; and what stopping took, saving included."""
    histories: dict[str, list[dict[str, str]]] = {}
    half = len(steps) // 2
    with endpoint(model, slots, directory) as url:
        run(url, steps[:half], histories)
        began = time.perf_counter()
    stop_s = time.perf_counter() - began
    kept = 0 if directory is None else sum(path.stat().st_size for path in directory.iterdir())
    with endpoint(model, slots, directory) as url:
        return {**asdict(run(url, steps[half:], histories)), "stop_s": round(stop_s, 2), "bytes_on_disk": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--requests", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = cut_model(find_smollm2(), Path(folder) / "two-layers.gguf")
        naming, restart = [], []
        for seed in args.seeds:
            for name in ("conversations", "mixed", "agents"):
                steps = workload(name, seed, args.requests)
                row: dict[str, Any] = {"workload": name, "seed": seed}
                for slots in CHOICES:
                    with endpoint(model, slots) as url:
                        row[slots] = {**asdict(run(url, steps, {})), "named": named(url)}
                naming.append(row)
                print(row, flush=True)
            steps = workload("conversations", seed, args.requests)
            for slots in CHOICES:
                forgotten = restarted(model, steps, slots, None)
                kept = restarted(model, steps, slots, Path(folder) / f"slots-{seed}-{slots}")
                restart.append({"seed": seed, "slots": slots, "forgotten": forgotten, "kept": kept})
                print(restart[-1], flush=True)
    save("llamacpp_slots", {"naming": naming, "restart": restart})


if __name__ == "__main__":
    main()
