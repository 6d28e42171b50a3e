"""The shared-token planner: reorders and schedules a batch so that as many tokens as possible are a cached prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.planners.agglomerate import agglomerate
from prefixpilot.planners.inverted_file import Floats, Ints
from prefixpilot.planners.split import split

WHOLE: Final = 4096
"""Up to so many distinct contexts are agglomerated as one group."""
PART: Final = 1024
"""Size of the groups into which more are split."""

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
    length_of = batch.lengths.__getitem__
    return [
        BatchContext(member.request_id, ordered.blocks, tuple(map(length_of, ordered.blocks)))
        for ordered in _depth_first(batch, page_size, whole, part, on_planned)
        for member in members[ordered.context]
    ]


class _Ordered(NamedTuple):
    context: int
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Distinct contexts with their blocks numbered by rank: the most held first, then by sort key.

    Attributes:
        lengths: of each block.
        names: block of each number.
        tokens: lengths by number.
        arrays: the blocks of each context that some other context holds too, rising.
    """

    contexts: Sequence[BatchContext]
    lengths: dict[BlockId, int]
    names: list[BlockId]
    tokens: Floats
    arrays: list[Ints]

    @classmethod
    def of(cls, contexts: Sequence[BatchContext], sort_key: SortKey) -> _Batch:
        holders = Counter(chain.from_iterable(context.blocks for context in contexts))
        lengths: dict[BlockId, int] = {}
        for context in contexts:
            lengths.update(zip(context.blocks, context.tokens, strict=True))
        shared = [block for block, count in holders.items() if count > 1]
        shared.sort(key=sort_key)
        shared.sort(key=lambda block: -holders[block])
        number = {block: i for i, block in enumerate(shared)}
        arrays = [
            np.array(sorted(number[b] for b in context.blocks if b in number), dtype=np.int64) for context in contexts
        ]
        return cls(contexts, lengths, shared, np.array([lengths[b] for b in shared], dtype=np.float64), arrays)


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
        for merge in agglomerate(np.split(local, ends), batch.tokens[used], page_size):
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
        head = tuple(batch.names[b] for b in above)
        placed = set(head)
        blocks = batch.contexts[node.context].blocks
        result.append(_Ordered(node.context, head + tuple(b for b in blocks if b not in placed)))
    return result
