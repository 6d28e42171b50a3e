"""An upper bound on what any order and any schedule of a batch can save."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.planners.inverted_file import InvertedFile


def spanning_forest_bound(contexts: Sequence[BatchContext]) -> int:
    """Weight of the maximum spanning forest over pairwise shared tokens, for a cache of any size, empty at the start.

    In any execution order what a request hits is at most what it shares with one earlier request, so the hits are the
    weights of a forest. The bound is loose: no order need reach it. Prim's algorithm, O(n^2) time, O(n) memory.
    """
    number: dict[BlockId, int] = {}
    tokens: list[int] = []
    arrays = []
    for context in contexts:
        for block, length in zip(context.blocks, context.tokens, strict=True):
            if number.setdefault(block, len(tokens)) == len(tokens):
                tokens.append(length)
        arrays.append(np.array([number[b] for b in context.blocks], dtype=np.int64))
    file = InvertedFile(arrays, np.array(tokens, dtype=np.float64))
    best = np.zeros(len(contexts))
    outside = np.ones(len(contexts), dtype=np.bool_)
    total = 0.0
    for _ in contexts:
        nearest = int(np.where(outside, best, -1.0).argmax())
        total += best[nearest]
        outside[nearest] = False
        np.maximum(best, file.shared_tokens(nearest), out=best)
    return round(total)
