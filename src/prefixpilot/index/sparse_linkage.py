"""Average linkage of many contexts most of which share nothing: equal, bit for bit, to :mod:`prefixpilot.index.linkage`.

Pairs that share nothing are at distance 1, and so is every average of such pairs, exactly. Only the others are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from prefixpilot.core import BlockId
from prefixpilot.distance.pairwise import SparseDistances, pairwise_distances, sparse_distances
from prefixpilot.index.linkage import Linkage, Merge, average_linkage

_FEW: Final = 2048
"""So many clusters or fewer are merged in a matrix, which takes 8 bytes a pair and less time for each merge."""
_DENSE: Final = 0.2
"""The same where more than this share of the pairs is stored."""
_SLACK: Final = 1.5

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)


def sparse_average_linkage(distances: SparseDistances, sizes: Sequence[int]) -> list[Merge]:
    """UPGMA of contexts whose distances are 1 but for those given.

    Merges by stored pairs while these are nearer than 1, then in a matrix of the clusters left. About O(merges x stored
    pairs of a cluster) time; memory 40 bytes a stored pair, and the matrix.
    """
    state = _Sparse(distances, sizes)
    merges = []
    while state.is_worth_it() and (merge := state.merge()) is not None:
        merges.append(merge)
    return merges + state.rest()


def link_contexts(contexts: Sequence[Sequence[BlockId]], sizes: Sequence[int], alpha: float) -> list[Merge]:
    """UPGMA over Eq. 1 of distinct contexts, by whichever way is faster; the merges are the same."""
    if len(contexts) > _FEW:
        sparse = sparse_distances(contexts, alpha, most=_DENSE)
        if sparse is not None:
            return sparse_average_linkage(sparse, sizes)
    return average_linkage(pairwise_distances(contexts, alpha), sizes)


class _Row(NamedTuple):
    """The living pairs of one cluster, in parallel.

    Attributes:
        columns: the other clusters, in any order.
        values: distances.
        twins: places where the same pairs are stored for the other cluster.
    """

    columns: Ints
    values: Floats
    twins: NDArray[np.int64]

    def chosen(self, mask: NDArray[np.bool_]) -> _Row:
        return _Row(self.columns[mask], self.values[mask], self.twins[mask])


class _Sparse:
    """State: for each living cluster the pairs that are not at distance 1, each stored with both of its clusters.

    ::

        place       s[i] .. e[i]          .. s[j] .. e[j] ..
        columns     [ j   k  .. ]            [ i   m  .. ]
        values      [ d   .  .. ]            [ d   .  .. ]       inf: the other cluster is gone
        twins       [ p   .  .. ]            [ q   .  .. ]       p is the place of i with j, q that of j with i

    Bounds and nearest neighbours are those of :class:`~prefixpilot.index.linkage.Linkage`, over stored pairs only.
    """

    def __init__(self, distances: SparseDistances, sizes: Sequence[int]) -> None:
        self.n = len(sizes)
        self.size = np.array(sizes, dtype=np.float64)
        self.starts = distances.ends[:-1].copy()
        self.ends = distances.ends[1:].copy()
        self.used = self.stored = len(distances.columns)
        room = int(_SLACK * self.used) + self.n
        self.columns = _with_room(distances.columns, room)
        self.values = _with_room(distances.values, room)
        self.twins = _with_room(np.argsort(distances.columns, kind="stable"), room)
        self.living = self.n
        self.alive = np.ones(self.n, dtype=np.bool_)
        self.bound = np.full(self.n, np.inf)
        self.nearest = np.full(self.n, self.n, dtype=np.int32)
        self._place = np.full(self.n, -1, dtype=np.int32)
        for row in range(self.n):
            self._search(row)

    def is_worth_it(self) -> bool:
        """Whether the clusters left are many, and most of them share nothing."""
        return self.living > _FEW and self.stored < _DENSE * self.living**2

    def merge(self) -> Merge | None:
        """Merge the two nearest clusters; ``None`` if no two are nearer than 1."""
        while self.nearest[first := int(self.bound.argmin())] < 0:
            self._search(first)
        distance, second = float(self.bound[first]), int(self.nearest[first])
        if not distance < 1.0:
            return None
        kept, gone = self._row(first, but=second), self._row(second, but=first)
        union = self._average(first, second, kept, gone)
        self.living -= 1
        self.alive[second] = False
        self._store(first, union)
        self.bound[second] = np.inf
        self.nearest[gone.columns[self.nearest[gone.columns] == second]] = -1
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
            pairs = self._row(int(name))
            matrix[row, place[pairs.columns]] = pairs.values
        linkage = Linkage(matrix, self.size[names])
        merges = [linkage.merge() for _ in range(len(names) - 1)]
        return [Merge(int(names[m.first]), int(names[m.second]), m.distance) for m in merges]

    def _row(self, row: int, but: int = -1) -> _Row:
        """The living pairs of a cluster, that with ``but`` left out."""
        own = slice(int(self.starts[row]), int(self.ends[row]))
        pairs = _Row(self.columns[own], self.values[own], self.twins[own])
        return pairs.chosen((pairs.values != np.inf) & (pairs.columns != but))

    def _search(self, row: int) -> None:
        """The nearest stored neighbour behind a cluster, of several the first."""
        own = slice(int(self.starts[row]), int(self.ends[row]))
        columns = self.columns[own]
        behind = np.where(columns > row, self.values[own], np.inf)
        nearest = behind.min(initial=np.inf)
        self.bound[row] = nearest
        self.nearest[row] = self.n if nearest == np.inf else columns[behind == nearest].min()

    def _average(self, first: int, second: int, kept: _Row, gone: _Row) -> _Row:
        """The pairs of the union: the specification's operations in its order, with 1 for pairs that are not stored.

        Drops the pairs of ``second`` from the rows of the others, or makes them pairs of ``first``.
        """
        self._place[kept.columns] = np.arange(len(kept.columns))
        at = self._place[gone.columns]
        self._place[kept.columns] = -1
        common = at >= 0
        new = gone.chosen(~common)
        others = np.ones(len(kept.columns))
        others[at[common]] = gone.values[common]
        size, more = self.size[first], self.size[second]
        total = size + more
        union = _Row(
            np.concatenate([kept.columns, new.columns]),
            np.concatenate([(size * kept.values + more * others) / total, (size * 1.0 + more * new.values) / total]),
            np.concatenate([kept.twins, new.twins]),
        )
        self.size[first] = total
        self.values[gone.twins[common]] = np.inf
        self.values[union.twins] = union.values
        self.columns[new.twins] = first
        self.stored -= 2 * (1 + int(common.sum()))
        return union

    def _store(self, row: int, pairs: _Row) -> None:
        """Give a cluster new pairs, at the end of what is used."""
        count = len(pairs.columns)
        if self.used + count > len(self.columns):
            pairs = self._compact(row, pairs)
        start, stop = self.used, self.used + count
        self.columns[start:stop], self.values[start:stop], self.twins[start:stop] = pairs
        self.twins[pairs.twins] = np.arange(start, stop)
        self.starts[row], self.ends[row], self.used = start, stop, stop

    def _compact(self, row: int, pairs: _Row) -> _Row:
        """Leave out what is gone; the old pairs of ``row`` too. Returns its new ones, with their twins' new places."""
        places: list[NDArray[np.int64]] = []
        used = 0
        for other in np.flatnonzero(self.alive):
            if other == row:
                continue
            own = np.arange(self.starts[other], self.ends[other])
            places.append(own[self.values[own] != np.inf])
            self.starts[other], self.ends[other] = used, used + len(places[-1])
            used += len(places[-1])
        old = np.concatenate(places)
        moved = np.full(self.used, -1)
        moved[old] = np.arange(used)
        room = int(_SLACK * (used + len(pairs.columns))) + self.n
        self.columns = _with_room(self.columns[old], room)
        self.values = _with_room(self.values[old], room)
        self.twins = _with_room(moved[self.twins[old]], room)
        self.used = used
        return pairs._replace(twins=moved[pairs.twins])

    def _repair(self, first: int, union: _Row) -> None:
        """Bounds and nearest neighbours again, as in :class:`~prefixpilot.index.linkage.Linkage`."""
        before = union.columns < first
        rows, values = union.columns[before], union.values[before]
        bounds = self.bound[rows]
        nearer = values < bounds
        tied = (values == bounds) & (self.nearest[rows] > first)
        self.nearest[rows[nearer | tied]] = first
        self.bound[rows[nearer]] = values[nearer]
        self.nearest[rows[(self.nearest[rows] == first) & (values > bounds)]] = -1
        self._search(first)


def _with_room(array: NDArray[_Number], room: int) -> NDArray[_Number]:
    """The array at the beginning of a longer one."""
    result = np.empty(room, dtype=array.dtype)
    result[: len(array)] = array
    return result
