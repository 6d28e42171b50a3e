"""Chain-of-Agents on a trace: tokens prefilled with and without us, in caches of several sizes.

    python -m benchmarks.chain_of_agents TRACE [--notes 100] [--system 100] [--question 30]

TRACE is a trace of independent requests; with MultihopRAG and 15 workers that is the paper's case (7.2). A worker reads
[system][segment][notes][question], a manager [system][notes][question], each piece as long as the arguments and the
trace say. The program without us has the same layout; it answers one question after the other, 16 at a time, its calls
going to replicas by turns. Caches are modelled (``prefix_cache``), of an equal size for each replica's engine; one
token of each prompt is always computed; what an engine has written (as many tokens as notes have) stays in its cache
behind the prompt, as vLLM and SGLang keep it, until it is evicted.

The sizes are those that the paper's models leave on its cards (:func:`kv_tokens`). Ours is never above what a cache
without bound would have to compute (``floor``), whatever the size; the ratio is what the program without us pays more.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import save

from prefixpilot import ContextBlock
from prefixpilot.prefix_cache import RadixPrefixCache, Segment
from prefixpilot.rag import lay_chains
from prefixpilot.rag.agents import ReadingOrder
from prefixpilot.workloads import read_workload

AT_A_TIME = 16


def kv_tokens(card_gib: int, parameters: float, layers: int, heads: int, width: int) -> int:
    """Tokens that a card's KV cache holds, in thousands: 88 % of its memory (SGLang's default share), less the weights;
    weights and KV of two bytes."""
    memory = 0.88 * card_gib * 2**30 - 2 * parameters
    return int(memory / (2 * layers * heads * width * 2) / 1000) * 1000


QWEN_48GB = kv_tokens(48, 4.02e9, 36, 8, 128)
"""Qwen3-4B on an A6000."""
LLAMA_48GB = kv_tokens(48, 8.03e9, 32, 8, 128)
"""Llama-3.1-8B on an A6000."""
QWEN_80GB = kv_tokens(80, 4.02e9, 36, 8, 128)
"""Qwen3-4B on an H100; Llama-3.1-8B has about as many."""
CACHES = (None, QWEN_80GB, 350_000, QWEN_48GB, LLAMA_48GB, 100_000)


@dataclass(frozen=True)
class Team:
    """Lengths in tokens of what stands around the blocks."""

    workers: int
    system: int
    notes: int
    question: int

    def work(self, blocks: Sequence[ContextBlock], question: int, worker: int) -> list[Segment]:
        read = [Segment(block.id, block.tokens or 0) for block in blocks]
        notes = [Segment(("notes", question, worker), self.notes)] if worker else []
        return [Segment("worker", self.system), *read, *notes, Segment(("question", question), self.question)]

    def manage(self, question: int) -> list[Segment]:
        own = [Segment(("notes", question, -1), self.notes), Segment(("question", question), self.question)]
        return [Segment("manager", self.system), *own]


class Replicas:
    """Engines with a cache each; adds up what they prefill.

    Args:
        reply: tokens that an engine writes for each prompt.
    """

    def __init__(self, count: int, cache_tokens: int | None, reply: int = 0) -> None:
        self._reply = reply
        self._caches = [RadixPrefixCache(cache_tokens) for _ in range(count)]
        self._homes: dict[Any, int] = {}
        self._sent = [0] * count
        self.total = self.prefilled = 0

    def send(self, prompt: Sequence[Segment], home: int) -> None:
        written = Segment(("written", home, self._sent[home]), self._reply)
        access = self._caches[home].access([*prompt, written])
        tokens = access.total_tokens - self._reply
        self.total += tokens
        self.prefilled += tokens - min(access.cached_tokens, tokens - 1)
        self._sent[home] += 1

    def by_turns(self) -> int:
        return sum(self._sent) % len(self._caches)

    def home_of(self, first: Any) -> int:
        """As a team of ours sends it."""
        least = min(range(len(self._sent)), key=self._sent.__getitem__)
        return least if first is None else self._homes.setdefault(first, least)


def plain_calls(contexts: Sequence[Sequence[ContextBlock]], team: Team) -> Iterator[list[Segment]]:
    """Chains side by side, so many at a time, each in its retriever's order."""
    for start in range(0, len(contexts), AT_A_TIME):
        group = range(start, min(start + AT_A_TIME, len(contexts)))
        size = {q: math.ceil(len(contexts[q]) / team.workers) for q in group}
        for worker in range(team.workers):
            for q in group:
                part = contexts[q][worker * size[q] : (worker + 1) * size[q]]
                if part:
                    yield team.work(part, q, worker)
        for q in group:
            yield team.manage(q)


def without_us(contexts: Sequence[Sequence[ContextBlock]], team: Team, replicas: Replicas) -> Replicas:
    for prompt in plain_calls(contexts, team):
        replicas.send(prompt, replicas.by_turns())
    return replicas


def with_us(
    contexts: Sequence[Sequence[ContextBlock]], team: Team, replicas: Replicas, order: ReadingOrder
) -> Replicas:
    chains = lay_chains(contexts, team.workers, order)
    for step in chains.steps:
        replicas.send(team.work(step.blocks, step.question, step.worker), replicas.home_of(step.blocks[0].id))
        if step.worker + 1 == chains.lengths[step.question]:
            replicas.send(team.manage(step.question), replicas.home_of(None))
    return replicas


def floor(contexts: Sequence[Sequence[ContextBlock]], team: Team, order: ReadingOrder) -> int:
    """What one engine whose cache has no bound has to compute in that order."""
    return with_us(contexts, team, Replicas(1, None), order).prefilled


def row(contexts: Sequence[Sequence[ContextBlock]], team: Team, count: int, cache: int | None) -> dict[str, Any]:
    before = without_us(contexts, team, Replicas(count, cache, team.notes))
    row: dict[str, Any] = {"workers": team.workers, "replicas": count, "cache_tokens_each": cache}
    row |= {"total_tokens": before.total, "prefilled_without": before.prefilled}
    orders: tuple[ReadingOrder, ...] = ("shared", "given")
    for order in orders:
        after = with_us(contexts, team, Replicas(count, cache, team.notes), order)
        row[f"prefilled_{order}"] = after.prefilled
        row[f"ratio_{order}"] = round(before.prefilled / after.prefilled, 2)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--notes", type=int, default=100)
    parser.add_argument("--system", type=int, default=100)
    parser.add_argument("--question", type=int, default=30)
    args = parser.parse_args()
    workload = read_workload(args.trace)
    contexts = [entry.request.blocks for entry in workload.requests]
    teams = {workers: Team(workers, args.system, args.notes, args.question) for workers in (15, 5)}
    floors = {workers: floor(contexts, team, "shared") for workers, team in teams.items()}
    rows = [
        row(contexts, teams[workers], count, cache) | {"floor": floors[workers]}
        for workers, count in ((15, 1), (15, 4), (15, 16), (5, 1))
        for cache in (CACHES if count == 1 else CACHES[:2])
    ]
    corpus = sum({block.id: block.tokens or 0 for context in contexts for block in context}.values())
    around = {"notes": args.notes, "system": args.system, "question": args.question}
    about = {"workload": workload.name, "questions": len(contexts), "corpus_tokens": corpus, **around}
    save("chain_of_agents", {**about, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
