"""Eq. 1 between all pairs of many contexts: equal, bit for bit, to :func:`prefixpilot.distance.distance`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixpilot.core import BlockId


def pairwise_distances(contexts: Sequence[Sequence[BlockId]], alpha: float = 0.001) -> NDArray[np.float64]:
    """Distances between contexts of distinct blocks, as a symmetric ``(n, n)`` matrix with a zero diagonal.

    Works row by row through an inverted file (block -> contexts that hold it), so that time is O(n^2 + pairs of
    holders summed over blocks) and memory beside the result is O(total blocks).
    """
    n = len(contexts)
    holders, positions = _inverted_file(contexts)
    lengths = np.array([len(context) for context in contexts], dtype=np.int64)
    result = np.ones((n, n), dtype=np.float64)
    for row, context in enumerate(contexts):
        if not context:
            continue
        columns = np.concatenate([holders[block] for block in context])
        moved = np.concatenate([np.abs(positions[block] - place) for place, block in enumerate(context)])
        shared = np.bincount(columns, minlength=n)
        displacement = np.bincount(columns, weights=moved, minlength=n)
        hit = np.flatnonzero(shared)
        longest = np.maximum(lengths[row], lengths[hit])
        result[row, hit] = 1.0 - shared[hit] / longest + alpha * (displacement[hit] / shared[hit])
    np.fill_diagonal(result, 0.0)
    return result


def _inverted_file(
    contexts: Sequence[Sequence[BlockId]],
) -> tuple[dict[BlockId, NDArray[np.int64]], dict[BlockId, NDArray[np.int64]]]:
    holders: dict[BlockId, list[int]] = {}
    positions: dict[BlockId, list[int]] = {}
    for row, context in enumerate(contexts):
        for position, block in enumerate(context):
            holders.setdefault(block, []).append(row)
            positions.setdefault(block, []).append(position)
    return (
        {block: np.array(rows, dtype=np.int64) for block, rows in holders.items()},
        {block: np.array(places, dtype=np.int64) for block, places in positions.items()},
    )
