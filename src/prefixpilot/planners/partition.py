"""A batch in parts that share as little as possible, so that each is planned by itself: elsewhere, at the same time.

The cut is the one that :mod:`~prefixpilot.planners.shared_tokens` makes of a large batch anyway, into groups around the
block that saves most; a part is a run of such groups. So what a part shares with the next is what the planner of the
whole batch would have given up too, and each part can go to a replica of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.errors import ConfigError
from prefixpilot.planners.inverted_file import Floats, Ints
from prefixpilot.planners.shared_tokens import PART
from prefixpilot.planners.split import split


def partition(contexts: Sequence[BatchContext], parts: int, group: int = PART) -> list[list[int]]:
    """Positions of the contexts of each part, rising; every position is in one part, equal contexts in the same.

    Args:
        contexts: distinct blocks each.
        parts: how many at most; fewer if there are fewer groups. They are even in tokens, as far as whole groups allow.
        group: contexts of a group at most; small batches are cut into smaller ones, so that there are enough.

    Raises:
        ConfigError: ``parts`` or ``group`` is below 1.

    O(total blocks x depth of the split).
    """
    for name, value in (("parts", parts), ("group", group)):
        if type(value) is not int or value < 1:
            raise ConfigError(name, f"is {value!r}", "use an int of 1 or more")
    equal: dict[frozenset[BlockId], list[int]] = {}
    for position, context in enumerate(contexts):
        equal.setdefault(frozenset(context.blocks), []).append(position)
    members = list(equal.values())
    arrays, tokens = _numbered([contexts[positions[0]] for positions in members])
    groups = split(arrays, tokens, min(group, -(-len(members) // (4 * parts))) if members else group)
    found = [[position for i in group for position in members[i]] for group in groups if len(group)]
    weights = [sum(sum(contexts[position].tokens) for position in positions) for positions in found]
    return [sorted(chain.from_iterable(run)) for run in _runs(found, weights, parts)]


def _numbered(contexts: Sequence[BatchContext]) -> tuple[list[Ints], Floats]:
    """The blocks that more than one context holds, as rising numbers; and their lengths by number."""
    every = list(chain.from_iterable(context.blocks for context in contexts))
    number = {block: i for i, block in enumerate(dict.fromkeys(every))}
    flat = np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=len(every))
    lengths = np.zeros(len(number))
    lengths[flat] = np.fromiter(chain.from_iterable(c.tokens for c in contexts), dtype=np.int64, count=len(every))
    shared = np.bincount(flat, minlength=len(number)) > 1
    flat = np.where(shared[flat], np.cumsum(shared)[flat] - 1, -1) if len(number) else flat
    ends = np.cumsum([0, *(len(context.blocks) for context in contexts)]).tolist()
    return [np.sort(row[row >= 0]) for row in (flat[a:b] for a, b in pairwise(ends))], lengths[shared]


def _runs(groups: Sequence[list[int]], weights: Sequence[int], parts: int) -> Iterator[list[list[int]]]:
    """Neighbouring groups together, into at most so many runs of about equal weight."""
    total, reached, run = sum(weights), 0, list[list[int]]()
    closed = 0
    for group, weight in zip(groups, weights, strict=True):
        middle = reached + weight / 2
        if run and middle * parts > total * (closed + 1):
            yield run
            closed, run = closed + 1, []
        run.append(group)
        reached += weight
    if run:
        yield run
