"""Average linkage (UPGMA), as Algorithm 4 needs it: a readable specification, and a fast version equal to it.

Both repeat the same floating-point operations in the same order, and break ties the same way, so that they agree bit
for bit: of all pairs at the smallest distance the one with the smallest first, then second cluster merges, where a
cluster is named by its smallest member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Merge(NamedTuple):
    """Clusters ``first < second`` become one, named ``first``."""

    first: int
    second: int
    distance: float


def average_linkage_specification(distances: Sequence[Sequence[float]], sizes: Sequence[int]) -> list[Merge]:
    """UPGMA in plain Python. O(n^3) time.

    Args:
        distances: symmetric ``(n, n)``.
        sizes: number of equal members that each start cluster stands for.
    """
    matrix = [list(row) for row in distances]
    size = list(sizes)
    alive = list(range(len(size)))
    merges = []
    while len(alive) > 1:
        value, first, second = min((matrix[i][j], i, j) for i in alive for j in alive if i < j)
        merges.append(Merge(first, second, value))
        total = size[first] + size[second]
        for k in alive:
            if k not in (first, second):
                mean = (size[first] * matrix[first][k] + size[second] * matrix[second][k]) / total
                matrix[first][k] = matrix[k][first] = mean
        size[first] = total
        alive.remove(second)
    return merges


def average_linkage(distances: NDArray[np.float64], sizes: Sequence[int]) -> list[Merge]:
    """UPGMA with a nearest neighbour kept per cluster. About O(n^2) time in practice; overwrites ``distances``."""
    n = len(sizes)
    size = np.array(sizes, dtype=np.float64)
    np.fill_diagonal(distances, np.inf)
    merges: list[Merge] = []
    if n < 2:
        return merges
    nearest = distances.argmin(axis=1)
    smallest = distances[np.arange(n), nearest]
    for _ in range(n - 1):
        first = int(smallest.argmin())
        second = int(nearest[first])
        merges.append(Merge(first, second, float(smallest[first])))
        _merge(distances, size, nearest, smallest, first, second)
    return merges


def _merge(
    distances: NDArray[np.float64],
    size: NDArray[np.float64],
    nearest: NDArray[np.intp],
    smallest: NDArray[np.float64],
    first: int,
    second: int,
) -> None:
    """Fold ``second`` into ``first`` and repair the nearest neighbours of the rows that it concerns."""
    total = size[first] + size[second]
    row = (size[first] * distances[first] + size[second] * distances[second]) / total
    row[first] = np.inf
    distances[first] = row
    distances[:, first] = row
    distances[second] = np.inf
    distances[:, second] = np.inf
    smallest[second] = np.inf
    size[first] = total
    closer = (row < smallest) | ((row == smallest) & (nearest > first) & np.isfinite(row))
    nearest[closer] = first
    smallest[closer] = row[closer]
    stale = np.flatnonzero(((nearest == first) & (row != smallest)) | (nearest == second))
    stale = np.union1d(stale[np.isfinite(smallest[stale])], [first])
    nearest[stale] = distances[stale].argmin(axis=1)
    smallest[stale] = distances[stale, nearest[stale]]
