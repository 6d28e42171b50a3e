"""The shared-token planner: reorders and schedules a batch so that as many tokens as possible are a cached prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.planners.agglomerate import agglomerate, agglomerate_best
from prefixpilot.planners.inverted_file import Floats, Ints, cut
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
        every = list(chain.from_iterable([context.blocks for context in contexts]))
        length_of = dict(zip(every, chain.from_iterable([context.tokens for context in contexts]), strict=True))
        number = {block: i for i, block in enumerate(length_of)}
        flat = np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=len(every))
        lengths = np.fromiter(length_of.values(), dtype=np.float64, count=len(number))
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
    cells = row * (int(values.max(initial=0)) + 1) + values
    cells.sort()
    return cut(cells % (int(values.max(initial=0)) + 1), np.bincount(row, minlength=len(lengths)).tolist())


@dataclass(slots=True)
class _Node:
    """A leaf has a context; an internal node has children, and the blocks that they have in common."""

    common: tuple[BlockId, ...] = ()
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
    arrays = [batch.arrays[i] for i in group.tolist()]
    nodes = {i: _Node(context=context) for i, context in enumerate(group.tolist())}
    used, local = np.unique(np.concatenate([*arrays, np.zeros(0, dtype=np.int64)]), return_inverse=True)
    if len(used):
        names = [batch.names[block] for block in used.tolist()]
        plan = agglomerate_best if len(group) <= SMALL else agglomerate
        for merge in plan(cut(local, map(len, arrays)), batch.tokens[used], page_size):
            common = tuple([names[block] for block in merge.common])
            nodes[merge.first] = _Node(common, children=[nodes[merge.first], nodes.pop(merge.second)])
    return list(nodes.values())


def _walk(batch: _Batch, top: _Node) -> list[_Ordered]:
    result = []
    stack: list[tuple[_Node, dict[BlockId, None]]] = [(top, {})]
    while stack:
        node, above = stack.pop()
        if node.children:
            head = above | dict.fromkeys(node.common)
            stack.extend([(child, head) for child in reversed(node.children)])
        else:
            context = batch.contexts[node.context]
            length = dict(zip(context.blocks, context.tokens, strict=True))
            first = [length.pop(block) for block in above]
            result.append(_Ordered(node.context, (*above, *length), (*first, *length.values())))
    return result
