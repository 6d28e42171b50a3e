"""Agents that read the same blocks: who reads what, and in which order the calls run. Pure.

Chain-of-Agents (Zhang et al. 2024; paper 7.2): the blocks of a question are cut into segments; worker i reads segment i
and the notes of worker i - 1, a manager answers from the last notes. A worker's prompt is [system][segment][notes]
[question], the same system text for all workers, so one segment is one prefix, whoever reads it.

For many questions over one corpus the chains are laid so that all of them read in one common order: the blocks that
most questions have come first. Then every prefix can be used up before the next one begins, in a cache of any size; and
where a segment has several blocks, chains share the beginning of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, NamedTuple, get_args

from prefixpilot.blocks import block_identity
from prefixpilot.core import BlockId, ContextBlock
from prefixpilot.errors import ConfigError

ReadingOrder = Literal["shared", "given"]


class Step(NamedTuple):
    """One worker's call.

    Attributes:
        question: index of the question.
        worker: place in that question's chain, from 0.
        blocks: what the worker reads, in prompt order.
    """

    question: int
    worker: int
    blocks: tuple[ContextBlock, ...]


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of many questions.

    Attributes:
        steps: all calls of workers, in the order in which to run them; a chain's own steps are in their order.
        lengths: how many workers each question has; fewer than asked for where it has fewer blocks, 0 without blocks.
    """

    steps: tuple[Step, ...]
    lengths: tuple[int, ...]


def lay_chains(contexts: Sequence[Sequence[ContextBlock]], workers: int, order: ReadingOrder = "shared") -> Chains:
    """Cut each question's blocks into at most ``workers`` segments of equal size, and order all calls.

    Every block of a question is read by exactly one of its workers; a block that stands twice is read once.

    Args:
        order: ``shared``: all chains read in one common order, the blocks of most questions first. ``given``: each
            chain reads as its blocks are given (pages of a document, say), and only the calls are ordered: again and
            again the segment that most chains have come to.

    Raises:
        ConfigError: ``workers`` below 1, or an unknown order.
    """
    if type(workers) is not int or workers < 1:
        raise ConfigError("workers", f"is {workers!r}", "use an int of 1 or more")
    if order not in get_args(ReadingOrder):
        raise ConfigError("order", f"is {order!r}", f"use one of: {', '.join(get_args(ReadingOrder))}")
    known = [{block_identity(block): block for block in context} for context in contexts]
    place = _places(known)
    chains = []
    for blocks in known:
        ids = sorted(blocks, key=place.__getitem__) if order == "shared" else list(blocks)
        chains.append([tuple(ids[i] for i in part) for part in _parts(len(ids), workers)])
    pairs = _by_place(chains, place) if order == "shared" else _by_readiness(chains, place)
    steps = [Step(q, w, tuple(known[q][block] for block in chains[q][w])) for q, w in pairs]
    return Chains(tuple(steps), tuple(map(len, chains)))


def _places(known: Sequence[dict[BlockId, ContextBlock]]) -> dict[BlockId, int]:
    """Where each block stands in the common order: by how many questions have it, then by first appearance."""
    times = Counter(chain.from_iterable(known))
    return {block: i for i, (block, _) in enumerate(times.most_common())}


def _parts(count: int, workers: int) -> list[range]:
    """``range(count)`` in at most ``workers`` parts, of sizes that differ by at most one, the larger ones first."""
    size, larger = divmod(count, workers)
    starts = [i * size + min(i, larger) for i in range(workers + 1)]
    return [range(a, b) for a, b in pairwise(starts) if a < b]


def _by_place(chains: Sequence[Sequence[tuple[BlockId, ...]]], place: dict[BlockId, int]) -> list[tuple[int, int]]:
    """Sorted by what is read. Each chain reads upwards, so that its own steps keep their order. O(n log n)."""
    keyed = ((tuple(place[b] for b in part), q, w) for q, parts in enumerate(chains) for w, part in enumerate(parts))
    return [(q, w) for _, q, w in sorted(keyed)]


def _by_readiness(chains: Sequence[Sequence[tuple[BlockId, ...]]], place: dict[BlockId, int]) -> list[tuple[int, int]]:
    """The segment whose turn it is in most chains, again and again. O(steps x segments that are waited for)."""
    waiting: dict[tuple[BlockId, ...], list[tuple[int, int]]] = {}
    for q, parts in enumerate(chains):
        if parts:
            waiting.setdefault(parts[0], []).append((q, 0))
    pairs = []
    while waiting:
        part = min(waiting, key=lambda part: (-len(waiting[part]), [place[block] for block in part]))
        ready = waiting.pop(part)
        pairs += ready
        for q, w in ready:
            if w + 1 < len(chains[q]):
                waiting.setdefault(chains[q][w + 1], []).append((q, w + 1))
    return pairs
