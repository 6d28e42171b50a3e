"""The shared-token planner: reorders and schedules a batch so that as many tokens as possible are a cached prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.planners.agglomerate import agglomerate, agglomerate_best
from prefixpilot.planners.inverted_file import Floats, Ints
from prefixpilot.planners.split import split

WHOLE: Final = 4096
"""Up to so many distinct contexts are agglomerated as one group."""
PART: Final = 1024
"""Size of the groups into which more are split."""
SMALL: Final = 128
"""Groups up to so many contexts are agglomerated several times, and the best result is taken."""

SortKey = Callable[[BlockId], Any]


def plan_shared_tokens(
    contexts: Sequence[BatchContext],
    sort_key: SortKey,
    page_size: int = 1,
    *,
    whole: int = WHOLE,
    part: int = PART,
    on_planned: Callable[[int], object] = lambda contexts: None,
) -> list[BatchContext]:
    """The contexts reordered, in depth-first order of the trie that they make; equal ones follow each other.

    In that order no reuse that the trie offers is lost in an LRU cache of any size that holds one context. Inside a
    node blocks that more contexts hold come first, then by ``sort_key``; what a context shares with no other keeps the
    retriever's order.

    Args:
        contexts: distinct blocks each, in the retriever's order.
        page_size: tokens of a page of the engine's cache; a shared prefix counts in whole pages.
        whole, part: group sizes, see :data:`WHOLE` and :data:`PART`.
        on_planned: called after each group, with its number of distinct contexts.

    Near-linear: O(n x part) time, O(total blocks + part^2) memory.
    """
    groups: dict[frozenset[BlockId], list[BatchContext]] = {}
    for context in contexts:
        groups.setdefault(frozenset(context.blocks), []).append(context)
    batch = _Batch.of([members[0] for members in groups.values()], sort_key)
    members = list(groups.values())
    return [
        BatchContext(member.request_id, ordered.blocks, ordered.tokens)
        for ordered in _depth_first(batch, page_size, whole, part, on_planned)
        for member in members[ordered.context]
    ]


class _Ordered(NamedTuple):
    context: int
    blocks: tuple[BlockId, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Distinct contexts with their blocks numbered by rank: the most held first, then by sort key.

    Attributes:
        names: block of each number.
        tokens: lengths by number.
        arrays: the blocks of each context that some other context holds too, rising.
    """

    contexts: Sequence[BatchContext]
    names: list[BlockId]
    tokens: Floats
    arrays: list[Ints]

    @classmethod
    def of(cls, contexts: Sequence[BatchContext], sort_key: SortKey) -> _Batch:
        number: dict[BlockId, int] = {}
        total = sum(len(context.blocks) for context in contexts)
        every = chain.from_iterable(context.blocks for context in contexts)
        flat = np.fromiter((number.setdefault(b, len(number)) for b in every), dtype=np.int64, count=total)
        lengths = np.zeros(len(number))
        lengths[flat] = np.fromiter(chain.from_iterable(c.tokens for c in contexts), dtype=np.int64, count=total)
        holders = np.bincount(flat, minlength=len(number)).tolist()
        shared = [block for block, count in zip(number, holders, strict=True) if count > 1]
        shared.sort(key=sort_key)
        shared.sort(key=lambda block: -holders[number[block]])
        old = np.array([number[block] for block in shared], dtype=np.int64)
        rank = np.full(len(number), -1)
        rank[old] = np.arange(len(old))
        return cls(contexts, shared, lengths[old], _rows(rank[flat], [len(c.blocks) for c in contexts]))


def _rows(flat: Ints, lengths: Sequence[int]) -> list[Ints]:
    """``flat`` cut into rows; of each its non-negative values, rising."""
    kept = flat >= 0
    row = np.repeat(np.arange(len(lengths)), lengths)[kept]
    values = flat[kept]
    values = values[np.lexsort((values, row))]
    ends = np.searchsorted(row, np.arange(len(lengths) + 1)).tolist()
    return [values[a:b] for a, b in pairwise(ends)]


@dataclass(slots=True)
class _Node:
    """``common``: rising block numbers. A leaf has a context, an internal node children."""

    common: tuple[int, ...]
    context: int = -1
    children: list[_Node] = field(default_factory=list)


def _depth_first(
    batch: _Batch, page_size: int, whole: int, part: int, on_planned: Callable[[int], object]
) -> list[_Ordered]:
    n = len(batch.contexts)
    result: list[_Ordered] = []
    for group in split(batch.arrays, batch.tokens, whole if n <= whole else part):
        for top in _forest(batch, group, page_size):
            result.extend(_walk(batch, top))
        on_planned(len(group))
    return result


def _forest(batch: _Batch, group: Ints, page_size: int) -> list[_Node]:
    """The trees of one group, in order of their first context."""
    arrays = [batch.arrays[i] for i in group]
    nodes = {i: _Node(tuple(array.tolist()), int(group[i])) for i, array in enumerate(arrays)}
    used, local = np.unique(np.concatenate(arrays), return_inverse=True) if arrays else (np.zeros(0), np.zeros(0))
    if len(used):
        ends = np.cumsum([len(a) for a in arrays])[:-1]
        plan = agglomerate_best if len(group) <= SMALL else agglomerate
        for merge in plan(np.split(local, ends), batch.tokens[used], page_size):
            common = tuple(used[list(merge.common)].tolist())
            nodes[merge.first] = _Node(common, children=[nodes[merge.first], nodes.pop(merge.second)])
    return list(nodes.values())


def _walk(batch: _Batch, top: _Node) -> list[_Ordered]:
    result = []
    stack: list[tuple[_Node, tuple[int, ...]]] = [(top, ())]
    while stack:
        node, above = stack.pop()
        if node.children:
            inherited = set(above)
            prefix = above + tuple(b for b in node.common if b not in inherited)
            stack.extend((child, prefix) for child in reversed(node.children))
            continue
        context = batch.contexts[node.context]
        length = dict(zip(context.blocks, context.tokens, strict=True))
        head = {batch.names[b]: None for b in above}
        blocks = (*head, *(b for b in context.blocks if b not in head))
        result.append(_Ordered(node.context, blocks, tuple(map(length.__getitem__, blocks))))
    return result
