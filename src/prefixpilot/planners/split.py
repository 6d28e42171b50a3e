"""Top-down split of many contexts into groups that are small enough to agglomerate.

Greedy by the block that saves most, tokens x (holders - 1): its holders form a group, and so on with the rest. A group
that is too large is split again by its next block. Groups that are smaller than they may be are put together with their
neighbours, so that agglomeration finds what the split has parted. Rare blocks come last and tie nothing together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from prefixpilot.planners.inverted_file import Floats, Ints, InvertedFile, cut


def split(contexts: Sequence[Ints], tokens: Floats, limit: int) -> Iterator[Ints]:
    """Groups of at most ``limit`` contexts, as arrays of their numbers; each is in one. O(total blocks x depth)."""
    pending: list[Ints] = []
    stack = [np.arange(len(contexts))]
    while stack:
        group = stack.pop()
        if len(group) > limit:
            stack.extend(reversed(_by_best_block(contexts, tokens, group, limit)))
            continue
        if sum(map(len, pending)) + len(group) > limit:
            yield np.concatenate(pending)
            pending = []
        pending.append(group)
    if pending:
        yield np.concatenate(pending)


def _by_best_block(contexts: Sequence[Ints], tokens: Floats, group: Ints, limit: int) -> list[Ints]:
    own = [contexts[i] for i in group.tolist()]
    blocks, flat = np.unique(np.concatenate(own), return_inverse=True)
    local = cut(flat, map(len, own))
    file = InvertedFile(local, tokens[blocks])
    holders = np.bincount(flat, minlength=len(blocks))
    left = np.where(holders < len(group), holders, 0)
    shared = np.flatnonzero(left > 1)
    heap = list(zip((-tokens[blocks[shared]] * (left[shared] - 1)).tolist(), shared.tolist(), strict=True))
    heapq.heapify(heap)
    free = np.ones(len(group), dtype=np.bool_)
    parts: list[Ints] = []
    while heap:
        value, block = heapq.heappop(heap)
        now = -float(tokens[blocks[block]] * (left[block] - 1))
        if left[block] < 2:
            continue
        if now > value:
            heapq.heappush(heap, (now, block))
            continue
        members = file.holders(block)
        members = members[free[members]]
        free[members] = False
        parts.append(group[members])
        np.subtract.at(left, np.concatenate([local[m] for m in members]), 1)
    rest = group[free]
    parts.extend(np.array_split(rest, -(-len(rest) // limit)) if len(rest) else [])
    return parts
