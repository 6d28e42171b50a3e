"""Average linkage (UPGMA), as Algorithm 4 needs it: a readable specification, and a fast version equal to it.

Both repeat the same floating-point operations in the same order, and break ties the same way, so that they agree bit
for bit: of all pairs at the smallest distance the one with the smallest first, then second cluster merges, where a
cluster is named by its smallest member.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    kernels: Any = import_module("prefixpilot.index._linkage")
except ImportError:  # a pure build
    kernels = None

_DENSE: Final = 0.7
"""The matrix is made smaller when a smaller share of its rows are of living clusters."""


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
    """UPGMA. About O(n^2) time in practice; overwrites ``distances``."""
    if kernels is not None and len(sizes):
        merges = MergeArrays.room_for(len(sizes) - 1)
        kernels.link_matrix(np.ascontiguousarray(distances), np.array(sizes, dtype=np.float64), *merges)
        return merges.read()
    linkage = Linkage(distances, sizes)
    return [linkage.merge() for _ in range(len(sizes) - 1)]


class MergeArrays(NamedTuple):
    """Where the compiled linkage writes merges, in parallel."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    distance: NDArray[np.float64]

    @classmethod
    def room_for(cls, count: int) -> MergeArrays:
        return cls(np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), np.empty(count))

    def read(self) -> list[Merge]:
        return list(map(Merge, self.first.tolist(), self.second.tolist(), self.distance.tolist()))


class Linkage:
    """The fast version, one merge at a time: a row for each cluster, living or gone, in the order of their names.

    A cluster looks for its nearest neighbour among the clusters behind it only. Averages of two clusters are seldom
    nearer than both, so a neighbour that merges away leaves a lower bound behind, and the search is repeated only when
    that bound is the smallest of all.

    Attributes:
        names: of the clusters, rising.
        size: their members.
        matrix: symmetric; rows and columns of clusters that are gone hold anything.
        gone: 0, or ``inf`` for clusters that are gone.
        alive: whether it is 0.
        bound: nothing behind the cluster is nearer; ``inf`` if nothing is there, or the cluster is gone.
        nearest: the first row at distance ``bound`` behind it; -1 if that has to be searched for.
        living: how many there are.
    """

    def __init__(self, distances: NDArray[np.float64], sizes: Sequence[int] | NDArray[np.float64]) -> None:
        n = len(sizes)
        self.names = np.arange(n)
        self.size = np.array(sizes, dtype=np.float64)
        self.matrix = distances
        self.gone, self.alive = np.zeros(n), np.ones(n, dtype=np.bool_)
        self.bound = np.full(n, np.inf)
        self.nearest = np.full(n, n, dtype=np.int32)
        self.living = n
        for row in range(n - 1):
            self._search(row)

    def merge(self) -> Merge:
        """Merge the two nearest clusters."""
        if self.living < _DENSE * len(self.names):
            self._compact()
        first = self._closest()
        second = int(self.nearest[first])
        merged = Merge(int(self.names[first]), int(self.names[second]), float(self.bound[first]))
        row = self._average(first, second)
        self.living -= 1
        self.alive[second] = False
        self.gone[second] = self.bound[second] = np.inf
        self.matrix[first] = row
        self.matrix[:, first] = row
        self._repair(first, second, row)
        return merged

    def _closest(self) -> int:
        while self.nearest[row := int(self.bound.argmin())] < 0:
            self._search(row)
        return row

    def _search(self, row: int) -> None:
        behind = self.matrix[row, row + 1 :] + self.gone[row + 1 :]
        place = int(behind.argmin()) if len(behind) else 0
        self.bound[row], self.nearest[row] = behind[place] if len(behind) else np.inf, row + 1 + place

    def _average(self, first: int, second: int) -> NDArray[np.float64]:
        """Distances of the union; the specification's operations in its order."""
        total = self.size[first] + self.size[second]
        row: NDArray[np.float64] = self.size[first] * self.matrix[first]
        row += self.size[second] * self.matrix[second]
        row /= total
        self.size[first] = total
        return row

    def _repair(self, first: int, second: int, row: NDArray[np.float64]) -> None:
        """Bounds and nearest neighbours again; ``row`` is now that of ``first``, and ``second`` is gone."""
        behind = self.nearest[:second]
        behind[behind == second] = -1
        nearest, bound, distances = self.nearest[:first], self.bound[:first], row[:first]
        within = distances <= bound
        within &= self.alive[:first]
        before = within.nonzero()[0]
        if len(before):
            self._come_nearer(first, before, row[before])
        moved = (nearest == first).nonzero()[0]
        if len(moved):
            nearest[moved[distances[moved] > bound[moved]]] = -1
        self._search(first)

    def _come_nearer(self, first: int, before: NDArray[np.int64], distances: NDArray[np.float64]) -> None:
        """Clusters ``before`` have nothing nearer behind them than ``first`` at these distances."""
        bounds, nearest = self.bound[before], self.nearest[before]
        nearest[(distances < bounds) | (nearest > first)] = first
        self.nearest[before] = nearest
        self.bound[before] = distances

    def _compact(self) -> None:
        """Leave out the clusters that are gone."""
        living = np.flatnonzero(self.alive)
        place = np.full(len(self.gone) + 1, len(living), dtype=np.int32)
        place[living] = np.arange(len(living))
        place[-1] = -1
        self.nearest = place[self.nearest[living]]
        for row, old in enumerate(living):
            self.matrix[row, : len(living)] = self.matrix[old].take(living)
        self.matrix = self.matrix[: len(living), : len(living)]
        self.names, self.size, self.bound = self.names[living], self.size[living], self.bound[living]
        self.gone, self.alive = np.zeros(len(living)), np.ones(len(living), dtype=np.bool_)
