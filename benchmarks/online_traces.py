"""Traces for the online benchmark: files of block ids, or generated ones of the same shapes."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple


class Trace(NamedTuple):
    """Requests in arrival order, each its distinct block ids by relevance; ``tokens[i]`` is the length of block i."""

    name: str
    requests: list[tuple[int, ...]]
    tokens: list[int]

    @property
    def mean_tokens(self) -> float:
        return sum(self.tokens[b] for blocks in self.requests for b in blocks) / len(self.requests)


def read_traces(folder: Path) -> Iterator[Trace]:
    """Every ``ids-NAME.jsonl.gz``: a head with the tokens of each block, then one request a line."""
    for path in sorted(folder.glob("ids-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            tokens = json.loads(next(lines))["tokens"]
            requests = [tuple(dict.fromkeys(json.loads(line)["blocks"])) for line in lines]
        yield Trace(path.name.removeprefix("ids-").removesuffix(".jsonl.gz"), requests, tokens)


def generated_traces(seed: int = 0) -> Iterator[Trace]:
    """A shared corpus, sessions over a common pool, sessions alone, no overlap, and a prefix trace."""
    rng = random.Random(seed)
    yield Trace("generated_zipf", list(_zipf(rng, 800, 15, 600)), _lengths(rng, 600))
    yield _sessions(rng, "generated_sessions_and_pool", own=5, pooled=10)
    yield _sessions(rng, "generated_sessions", own=15, pooled=0)
    yield Trace("generated_no_overlap", [tuple(range(5 * i, 5 * i + 5)) for i in range(800)], _lengths(rng, 4000))
    yield _prefixes(rng)


def _lengths(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(300, 1100) for _ in range(count)]


def _zipf(rng: random.Random, count: int, k: int, blocks: int) -> Iterator[tuple[int, ...]]:
    cumulative = list(accumulate((i + 1) ** -0.9 for i in range(blocks)))
    for _ in range(count):
        drawn: dict[int, None] = {}
        while len(drawn) < k:
            drawn.update(dict.fromkeys(rng.choices(range(blocks), cum_weights=cumulative, k=k)))
        yield tuple(rng.sample(list(drawn)[:k], k))


def _sessions(rng: random.Random, name: str, own: int, pooled: int, pool: int = 60) -> Trace:
    """Ten turns each, eight at a time: two thirds of the session's blocks, then blocks of the pool."""
    requests, going, fresh = [], dict.fromkeys(range(0), 0), pool
    for _ in range(800):
        while len(going) < 8:
            going[fresh] = 10
            fresh += own + own // 2
        first = rng.choice(list(going))
        mine = rng.sample(range(first, first + own + own // 2), own)
        requests.append((*sorted(mine), *rng.sample(range(pool), pooled)))
        going[first] -= 1
        if not going[first]:
            del going[first]
    return Trace(name, requests, _lengths(rng, fresh))


def _prefixes(rng: random.Random) -> Trace:
    """Each id stands for the whole prompt up to it."""
    ids: dict[tuple[int, ...], int] = {}
    requests = []
    for _ in range(1500):
        path = tuple(min(int(rng.expovariate(0.7)), 9) for _ in range(rng.randint(3, 20)))
        requests.append(tuple(ids.setdefault(path[: i + 1], len(ids)) for i in range(len(path))))
    return Trace("generated_prefixes", requests, _lengths(rng, len(ids)))
