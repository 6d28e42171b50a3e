"""Generated workloads, in the shapes of the real ones: same seed, same workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prefixpilot.core import ContextBlock, Request, RequestId
from prefixpilot.workloads.base import Workload, WorkloadRequest


@dataclass(frozen=True, slots=True)
class SyntheticTrace:
    """What a generator makes.

    Attributes:
        name: says which, and how large.
        contexts: distinct block numbers each, most relevant first.
        tokens: length of each block.
        sessions: of each context; empty if each is a session of its own. Turns are in order.
    """

    name: str
    contexts: Sequence[tuple[int, ...]]
    tokens: Sequence[int]
    sessions: Sequence[int] = field(default=())

    def workload(self) -> Workload:
        """The same as requests. O(total blocks)."""
        blocks = [ContextBlock(id=number, tokens=length) for number, length in enumerate(self.tokens)]
        turns: dict[int, int] = {}
        requests = []
        for number, context in enumerate(self.contexts):
            session = self.sessions[number] if self.sessions else number
            turns[session] = turn = turns.get(session, -1) + 1
            request = Request(tuple(blocks[b] for b in context), RequestId(f"r{number}"))
            requests.append(WorkloadRequest(request, f"s{session}", turn, f"{self.name}:{number + 1}"))
        return Workload(self.name, tuple(requests))


def zipf(requests: int, k: int = 15, blocks: int = 2000, exponent: float = 1.0, seed: int = 0) -> SyntheticTrace:
    """Each context k blocks drawn by popularity, weight ``1 / rank ** exponent``, in the order drawn."""
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng, blocks)
    names = rng.permutation(blocks)
    popularity = _cumulative(blocks, exponent)
    contexts = []
    for _ in range(requests):
        drawn: dict[int, None] = {}
        _draw(rng, popularity, names, k, drawn)
        contexts.append(tuple(drawn))
    return SyntheticTrace(f"zipf-{requests}", contexts, tokens)


def topical(requests: int, k: int = 15, seed: int = 0) -> SyntheticTrace:
    """As many blocks as requests, in topics of 60; a request takes 70 % of its blocks from one topic.

    Topics are popular by Zipf 0.8, blocks in a topic by Zipf 0.7; the rest of a request is uniform over all blocks; its
    order is random. Blocks have 300 to 1,100 tokens. Rare random blocks tie every topic to every other.
    """
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng, requests)
    names = rng.permutation(requests)
    size = min(_TOPIC, requests)
    topics = np.searchsorted(_cumulative(max(1, requests // _TOPIC), 0.8), rng.random(requests))
    inside = _cumulative(size, 0.7)
    own = min(round(0.7 * k), size)
    contexts = []
    for topic in topics.tolist():
        drawn: dict[int, None] = {}
        _draw(rng, inside, names[topic * size : (topic + 1) * size], own, drawn)
        while len(drawn) < min(k, requests):
            drawn.setdefault(int(rng.integers(requests)))
        found = list(drawn)
        contexts.append(tuple(found[i] for i in rng.permutation(len(found)).tolist()))
    return SyntheticTrace(f"topical-{requests}", contexts, tokens)


def sessions(count: int, turns: int = 8, k: int = 10, blocks: int = 5000, seed: int = 0) -> SyntheticTrace:
    """Conversations that take turns: 40 % of a turn's blocks stood in earlier turns, the rest is new to its session.

    Half of what is new comes from the session's own part of the corpus, half by popularity (Zipf 0.8).
    """
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng, blocks)
    names = rng.permutation(blocks)
    popularity = _cumulative(blocks, 0.8)
    seen: list[dict[int, None]] = [{} for _ in range(count)]
    homes = rng.integers(0, max(1, blocks - _HOME), size=count).tolist()
    contexts, owners = [], []
    for session in _interleaved(rng, count, turns):
        known = list(seen[session])
        again = rng.permutation(len(known))[: round(0.4 * k)].tolist()
        drawn = dict.fromkeys(known[i] for i in again)
        home = range(homes[session], min(blocks, homes[session] + _HOME))
        drawn.update(
            dict.fromkeys(rng.choice(home, size=min(len(home), (k - len(drawn)) // 2), replace=False).tolist())
        )
        _draw(rng, popularity, names, k - len(drawn), drawn)
        seen[session].update(drawn)
        found = list(drawn)
        contexts.append(tuple(found[i] for i in rng.permutation(len(found)).tolist()))
        owners.append(session)
    return SyntheticTrace(f"sessions-{count}x{turns}", contexts, tokens, owners)


def disjoint(requests: int, k: int = 5, seed: int = 0) -> SyntheticTrace:
    """No block twice: nothing to gain, no harm allowed."""
    rng = np.random.default_rng(seed)
    contexts = [tuple(range(i * k, (i + 1) * k)) for i in range(requests)]
    return SyntheticTrace(f"disjoint-{requests}", contexts, _tokens(rng, requests * k))


_TOPIC = 60
_HOME = 40


def _tokens(rng: np.random.Generator, blocks: int) -> list[int]:
    lengths: list[int] = rng.integers(300, 1101, size=blocks).tolist()
    return lengths


def _cumulative(ranks: int, exponent: float) -> NDArray[np.float64]:
    weights = 1 / np.arange(1, ranks + 1) ** exponent
    cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    return cumulative


def _draw(
    rng: np.random.Generator,
    popularity: NDArray[np.float64],
    names: NDArray[np.int64],
    count: int,
    drawn: dict[int, None],
) -> None:
    """Add ``count`` new names to ``drawn``; there must be as many."""
    wanted = len(drawn) + count
    while len(drawn) < wanted:
        for rank in np.searchsorted(popularity, rng.random(wanted - len(drawn))).tolist():
            drawn.setdefault(int(names[min(rank, len(names) - 1)]))


def _interleaved(rng: np.random.Generator, count: int, turns: int) -> Iterator[int]:
    """Each session ``turns`` times, in random order."""
    yield from rng.permutation(np.repeat(np.arange(count), turns)).tolist()
