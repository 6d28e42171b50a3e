"""Average linkage of many contexts most of which share nothing: equal, bit for bit, to that of a matrix.

Pairs that share nothing are at distance 1, and so is every average of such pairs, exactly. Only the others are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prefixpilot.core import BlockId
from prefixpilot.distance.device import Device
from prefixpilot.distance.pairwise import SparseDistances, distances_on, pairwise_distances, sparse_distances
from prefixpilot.index.linkage import Linkage, Merge, MergeArrays, average_linkage, kernels

_FEW: Final = 4096 if kernels is None else 1024
"""So many clusters or fewer are merged in a matrix, which takes 8 bytes a pair and less time for each merge."""
_VERY_FEW: Final = 256
"""Distances of so many contexts or fewer are a matrix from the start."""
_DENSE: Final = 0.2
"""The same where more than this share of the pairs is stored."""
_SLACK: Final = 1.5

Ints: TypeAlias = NDArray[np.int64]


class _Pairs(NamedTuple):
    """Pairs as one of their clusters stores them, in parallel. Records in one array take three times as long to write.

    Attributes:
        other: the other cluster; -1 once either is gone, or the pairs stand elsewhere.
        twin: the place where the other cluster stores the same pair.
        distance: of the two.
    """

    other: Ints
    twin: Ints
    distance: NDArray[np.float64]

    @classmethod
    def room_for(cls, count: int) -> _Pairs:
        return cls(np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), np.empty(count))

    def at(self, places: Ints) -> _Pairs:
        return _Pairs(self.other.take(places), self.twin.take(places), self.distance.take(places))

    def put(self, places: Ints | slice, other: Ints | int, twin: Ints, distance: NDArray[np.float64]) -> None:
        self.other[places] = other
        self.twin[places] = twin
        self.distance[places] = distance


def link_contexts(
    contexts: Sequence[Sequence[BlockId]], sizes: Sequence[int], alpha: float, device: str | None = None
) -> list[Merge]:
    """UPGMA over Eq. 1 of distinct contexts, by whichever way is faster; the merges are the same.

    Distances are computed on ``device`` of PyTorch if one is given.
    """
    sparse: SparseDistances | None = None
    if device is not None:
        sparse = distances_on(Device.of_torch(device), contexts, alpha)
    elif len(contexts) > _VERY_FEW:
        sparse = sparse_distances(contexts, alpha, most=_DENSE)
    if sparse is None:
        return average_linkage(pairwise_distances(contexts, alpha), sizes)
    if kernels is not None or (len(contexts) > _FEW and 2 * len(sparse.columns) <= _DENSE * len(contexts) ** 2):
        return sparse_average_linkage(sparse, sizes)
    return average_linkage(sparse.matrix(), sizes)


def sparse_average_linkage(distances: SparseDistances, sizes: Sequence[int], few: int = _FEW) -> list[Merge]:
    """UPGMA of contexts whose distances are 1 but for those given.

    Merges by stored pairs while these are nearer than 1 and more than ``few`` clusters are left, then in a matrix.
    About O(merges x stored pairs of a cluster) time; memory about 90 bytes for each of ``distances``, and the matrix.
    """
    if kernels is not None and len(sizes):
        arrays = MergeArrays.room_for(len(sizes) - 1)
        kernels.link_pairs(*distances, np.array(sizes, dtype=np.float64), few, *arrays)
        return arrays.read()
    state = _Sparse(distances, sizes)
    merges = []
    while state.is_worth_it(few) and (merge := state.merge()) is not None:
        merges.append(merge)
    return merges + state.rest()


class _Sparse:
    """State: for each living cluster the pairs that are not at distance 1, each stored with both of its clusters.

    ::

        place       starts[i] .. ends[i]      starts[j] .. ends[j]
        other       [ j   k  .. ]             [ i   m  .. ]
        twin        [ p   .  .. ]             [ q   .  .. ]       p is the place of i with j, q that of j with i
        distance    [ d   .  .. ]             [ d   .  .. ]

    Bounds and nearest neighbours are those of :class:`~prefixpilot.index.linkage.Linkage`, over stored pairs only.
    """

    def __init__(self, distances: SparseDistances, sizes: Sequence[int]) -> None:
        self.n = self.living = len(sizes)
        self.size = np.array(sizes, dtype=np.float64)
        self._lay_out(distances)
        self.alive = np.ones(self.n, dtype=np.bool_)
        self.bound = np.full(self.n, np.inf)
        self.nearest = np.full(self.n, self.n, dtype=np.int64)
        self._at = np.full(self.n, -1, dtype=np.int64)
        self._search_all(distances)

    def _search_all(self, distances: SparseDistances) -> None:
        """The nearest neighbour behind each cluster, of several the first: columns rise."""
        counts = np.diff(distances.ends)
        rows = counts.nonzero()[0]
        if not len(rows):
            return
        self.bound[rows] = np.minimum.reduceat(distances.values, distances.ends[rows])
        ties = (distances.values == np.repeat(self.bound, counts)).nonzero()[0]
        first_of_row = ties[np.searchsorted(ties, distances.ends[rows])]
        self.nearest[rows] = distances.columns[first_of_row]

    def _lay_out(self, distances: SparseDistances) -> None:
        """Each pair with both of its clusters: a cluster's pairs with those before it, then those behind it."""
        columns = distances.columns
        rows = np.repeat(np.arange(self.n), np.diff(distances.ends))
        before = np.bincount(columns, minlength=self.n)
        sizes = before + np.diff(distances.ends)
        self.ends = np.cumsum(sizes)
        self.starts = self.ends - sizes
        self.used = self.stored = 2 * len(columns)
        behind = np.arange(len(columns)) + (self.starts + before - distances.ends[:-1])[rows]
        by_column = np.argsort(columns.astype(np.min_scalar_type(self.n)), kind="stable")
        ahead = np.empty_like(behind)
        offset = self.starts - (np.cumsum(before) - before)
        ahead[by_column] = np.arange(len(columns)) + offset[columns[by_column]]
        self.pairs = _Pairs.room_for(int(_SLACK * self.used) + self.n)
        self.pairs.put(behind, columns, ahead, distances.values)
        self.pairs.put(ahead, rows, behind, distances.values)

    def is_worth_it(self, few: int) -> bool:
        """Whether more than ``few`` clusters are left, and most of them share nothing."""
        return self.living > few and self.stored < _DENSE * self.living**2

    def merge(self) -> Merge | None:
        """Merge the two nearest clusters; ``None`` if no two are nearer than 1."""
        while self.nearest[first := int(self.bound.argmin())] < 0:
            own = slice(self.starts[first], self.ends[first])
            self._search(first, self.pairs.other[own], self.pairs.distance[own])
        distance, second = float(self.bound[first]), int(self.nearest[first])
        if not distance < 1.0:
            return None
        kept, gone = self._take(first, but=second), self._take(second, but=first)
        self.living -= 1
        self.alive[second] = False
        union = self._average(first, second, kept, gone)
        self._store(first, union, len(kept.other))
        self.bound[second] = np.inf
        self.nearest[gone.other[self.nearest[gone.other] == second]] = -1
        self._repair(first, union)
        return Merge(first, second, distance)

    def rest(self) -> list[Merge]:
        """Merge what is left, in a matrix; with no stored pair all are at distance 1, and the first takes all."""
        names = np.flatnonzero(self.alive)
        if not self.stored:
            return [Merge(int(names[0]), int(name), 1.0) for name in names[1:]]
        place = np.full(self.n, -1)
        place[names] = np.arange(len(names))
        matrix = np.ones((len(names), len(names)))
        for row, name in enumerate(names):
            pairs = self._of(int(name))
            matrix[row, place[pairs.other]] = pairs.distance
        linkage = Linkage(matrix, self.size[names])
        merges = [linkage.merge() for _ in range(len(names) - 1)]
        return [Merge(int(names[m.first]), int(names[m.second]), m.distance) for m in merges]

    def _of(self, row: int, but: int = -1) -> _Pairs:
        """The pairs of a cluster, that with ``but`` left out."""
        start = self.starts[row]
        others = self.pairs.other[start : self.ends[row]]
        return self.pairs.at(((others >= 0) & (others != but)).nonzero()[0] + start)

    def _take(self, row: int, but: int) -> _Pairs:
        """The pairs of a cluster, that with ``but`` left out; they leave their places."""
        pairs = self._of(row, but)
        self.pairs.other[self.starts[row] : self.ends[row]] = -1
        return pairs

    def _search(self, row: int, others: Ints, distances: NDArray[np.float64]) -> None:
        """The nearest neighbour behind a cluster, given its pairs; of several the first."""
        behind = np.where(others > row, distances, np.inf)
        nearest = behind[behind.argmin()] if len(behind) else np.inf
        self.bound[row] = nearest
        self.nearest[row] = self.n if nearest == np.inf else others[behind == nearest].min()

    def _average(self, first: int, second: int, kept: _Pairs, gone: _Pairs) -> _Pairs:
        """The pairs of the union: the specification's operations in its order, with 1 for pairs that are not stored.

        Drops the pairs of ``second`` that the others store, where they store one of ``first`` too.
        """
        count = len(kept.other)
        self._at[kept.other] = np.arange(count)
        at = self._at[gone.other]
        self._at[kept.other] = -1
        is_new = at < 0
        new, common = gone.at(is_new.nonzero()[0]), (~is_new).nonzero()[0]
        stop = count + len(new.other)
        union = _Pairs.room_for(stop)
        of_first, of_second = union.distance, np.empty(stop)
        of_first[:count], of_first[count:] = kept.distance, 1.0
        of_second[:count], of_second[count:] = 1.0, new.distance
        of_second[at.take(common)] = gone.distance.take(common)
        size, more = self.size[first], self.size[second]
        self.size[first] = total = size + more
        of_first *= size
        of_second *= more
        of_first += of_second
        of_first /= total
        union.other[:count], union.other[count:] = kept.other, new.other
        union.twin[:count], union.twin[count:] = kept.twin, new.twin
        self.pairs.other[gone.twin.take(common)] = -1
        self.stored -= 2 * (1 + len(common))
        return union

    def _store(self, row: int, union: _Pairs, old: int) -> None:
        """Give a cluster new pairs, at the end of what is used; the others store them as pairs of this cluster.

        The first ``old`` they store so already.
        """
        count = len(union.other)
        if self.used + count > len(self.pairs.other):
            union = self._compact(union)
        start, stop = self.used, self.used + count
        self.pairs.put(slice(start, stop), *union)
        self.pairs.other[union.twin[old:]] = row
        self.pairs.twin[union.twin] = np.arange(start, stop)
        self.pairs.distance[union.twin] = union.distance
        self.starts[row], self.ends[row], self.used = start, stop, stop

    def _compact(self, union: _Pairs) -> _Pairs:
        """Leave out what is gone. Returns ``union`` with the new places of the twins."""
        old = (self.pairs.other[: self.used] >= 0).nonzero()[0]
        moved = np.empty(self.used, dtype=np.int64)
        moved[old] = np.arange(len(old))
        left, self.used = self.pairs.at(old), len(old)
        self.starts, self.ends = np.searchsorted(old, self.starts), np.searchsorted(old, self.ends)
        self.pairs = _Pairs.room_for(int(_SLACK * (self.used + len(union.other))) + self.n)
        self.pairs.put(slice(self.used), left.other, moved[left.twin], left.distance)
        return union._replace(twin=moved[union.twin])

    def _repair(self, first: int, union: _Pairs) -> None:
        """Bounds and nearest neighbours again, as in :class:`~prefixpilot.index.linkage.Linkage`."""
        before = (union.other < first).nonzero()[0]
        rows, distances = union.other.take(before), union.distance.take(before)
        bounds, nearest = self.bound[rows], self.nearest[rows]
        nearer = distances < bounds
        nearest[nearer | ((distances == bounds) & (nearest > first))] = first
        nearest[(nearest == first) & (distances > bounds)] = -1
        self.nearest[rows] = nearest
        self.bound[rows] = np.minimum(bounds, distances)
        self._search(first, union.other, union.distance)
