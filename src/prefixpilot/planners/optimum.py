"""The exact optimum of small batches, by dynamic programming over subsets: a yardstick for planners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefixpilot.core import BatchContext
from prefixpilot.errors import InvalidInputError
from prefixpilot.planners.inverted_file import Floats, Ints

LARGEST = 16
"""Most contexts: 2^16 subsets, 3^16 / 2 splits of them, about ten seconds."""


def most_saved_tokens(contexts: Sequence[BatchContext]) -> int:
    """Tokens that the best trie over the contexts saves: what the best orders and schedule hit in a cache of any size.

    saved(m) = tokens common to all of group m + the best of saved(part) + saved(rest) over the splits of m in two;
    saved of one context is 0. O(3^n) time, O(2^n x blocks) bytes.

    Raises:
        InvalidInputError: more than :data:`LARGEST` contexts.
    """
    n = len(contexts)
    if n > LARGEST:
        raise InvalidInputError("contexts", f"has {n}", f"give at most {LARGEST}")
    saved = np.zeros(1 << n)
    common = _common_tokens(contexts)
    for group in range(1, 1 << n):
        low = group & -group
        if group == low:
            continue
        parts = _subsets(group ^ low)[1:]
        saved[group] = common[group] + (saved[parts] + saved[group ^ parts]).max()
    return round(float(saved[-1]))


def _common_tokens(contexts: Sequence[BatchContext]) -> Floats:
    """Tokens of the blocks common to each subset of the contexts, by bit mask; 0 for the empty one."""
    length = {b: t for context in contexts for b, t in zip(context.blocks, context.tokens, strict=True)}
    number = {block: i for i, block in enumerate(length)}
    held = np.ones((1 << len(contexts), len(length)), dtype=np.bool_)
    for i, context in enumerate(contexts):
        own = np.zeros(len(length), dtype=np.bool_)
        own[[number[block] for block in context.blocks]] = True
        held[1 << i : 2 << i] = held[: 1 << i] & own
    held[0] = False
    weights: Floats = np.array(list(length.values()), dtype=np.float64)
    tokens: Floats = held.astype(np.float64) @ weights
    return tokens


def _subsets(group: int) -> Ints:
    """All subsets of a bit mask, the empty one first."""
    subsets = np.zeros(1, dtype=np.int64)
    while group:
        low = group & -group
        subsets = np.concatenate([subsets, subsets + low])
        group ^= low
    return subsets
