"""Eq. 1 between all pairs of many contexts: equal, bit for bit, to :func:`prefixpilot.distance.distance`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prefixpilot.core import BlockId
from prefixpilot.distance.device import Device, PairSums, pair_sums

try:
    kernels: Any = import_module("prefixpilot.distance._overlaps")
except ImportError:  # a pure build
    kernels = None

_CHUNK: Final = 1 << 16
"""Elements of the result that are computed together: a few arrays of so many stay in a core's cache."""
_POPULAR: Final = 16
"""A block that at least one in so many contexts hold is counted for all contexts at once, others holder by holder."""

_SAMPLES: Final = 64

Ints: TypeAlias = NDArray[np.int64]


def pairwise_distances(contexts: Sequence[Sequence[BlockId]], alpha: float = 0.001) -> NDArray[np.float64]:
    """Distances between contexts of distinct blocks, as a symmetric ``(n, n)`` matrix with a zero diagonal.

    Counts shared blocks and displacements exactly, through an inverted file (block -> contexts that hold it, and
    where), some rows at a time. O(n^2 + pairs of holders summed over blocks) time; memory beside the result is O(total
    blocks + 16 n k) for contexts of k blocks.
    """
    n = len(contexts)
    result = np.empty((n, n), dtype=np.float64)
    counts = _Overlaps(contexts)
    step = max(1, _CHUNK // max(n, 1))
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        sums = counts.of(rows)
        hit = np.flatnonzero(sums)
        row, column = np.divmod(hit, n)
        result[rows] = 1.0
        result[rows].reshape(-1)[hit] = counts.distances(row + first, column, sums[hit], alpha)
    np.fill_diagonal(result, 0.0)
    return result


class SparseDistances(NamedTuple):
    """Distances of each context to those behind it that it shares a block with; all others are 1.

    Attributes:
        ends: ``(n + 1,)``; those of context i are ``ends[i]`` to ``ends[i + 1]`` of the other two.
        columns: the contexts behind it, rising for each context.
        values: the distances, in parallel.
    """

    ends: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]

    def matrix(self) -> NDArray[np.float64]:
        """What :func:`pairwise_distances` returns."""
        n = len(self.ends) - 1
        result = np.ones((n, n))
        rows = np.repeat(np.arange(n), np.diff(self.ends))
        result[rows, self.columns] = self.values
        result[self.columns, rows] = self.values
        np.fill_diagonal(result, 0.0)
        return result


def distances_on(device: Device, contexts: Sequence[Sequence[BlockId]], alpha: float = 0.001) -> SparseDistances:
    """As :func:`sparse_distances`, the same figures, with pairs compared on another device."""
    counts = _Overlaps(contexts)
    return _collected(counts, pair_sums(counts.padded(), counts.unit, device), alpha)


def sparse_distances(
    contexts: Sequence[Sequence[BlockId]], alpha: float = 0.001, *, most: float = 1.0, chunk: int = _CHUNK
) -> SparseDistances | None:
    """As :func:`pairwise_distances`, of the pairs that share a block only, each once. Memory O(such pairs).

    About ``chunk`` shared blocks are looked at together.

    ``None`` if more than the share ``most`` of the pairs of some contexts are such: of every n / 64-th context.
    """
    n = len(contexts)
    counts = _Overlaps(contexts)
    sampled = range(0, n, max(1, n // _SAMPLES))
    if sum(int(np.count_nonzero(counts.of(slice(i, i + 1)))) for i in sampled) > most * n * len(sampled):
        return None
    return _collected(counts, counts.pairs_behind(chunk), alpha)


def _collected(counts: _Overlaps, parts: Iterable[PairSums], alpha: float) -> SparseDistances:
    ends = np.zeros(counts.n + 1, dtype=np.int64)
    columns, values = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for pairs in parts:
        row, column = np.divmod(pairs.cells, counts.n)
        ends[1:] += np.bincount(row, minlength=counts.n)
        columns.append(column)
        values.append(counts.distances(row, column, pairs.sums, alpha))
    return SparseDistances(np.cumsum(ends), np.concatenate(columns), np.concatenate(values))


class _Overlaps:
    """Shared blocks and displacements between some contexts and all: sums of ``unit + displacement``, that hold both.

    Attributes:
        unit: more than all displacements of one pair together.
        order: the places of ``blocks``, block by block.
        ends: the blocks of context i are ``ends[i - 1]`` to ``ends[i]`` of ``blocks`` and ``places``.
        holders, held_at: of each block in turn, the contexts that hold it and where; block b has ``count[b]`` of them,
            from ``start[b]`` on.
        table: ``(popular blocks, n)``, places, negative where a context does not hold the block.
        row_of: the row of each block in the table; -1 for those that are not popular.
    """

    def __init__(self, contexts: Sequence[Sequence[BlockId]]) -> None:
        self.n = len(contexts)
        self.lengths = np.array([len(c) for c in contexts], dtype=np.int64)
        longest = int(self.lengths.max(initial=0))
        self.unit = longest**2 + 1
        every = list(chain.from_iterable(contexts))
        number = {block: i for i, block in enumerate(dict.fromkeys(every))}
        total = len(every)
        self.blocks = np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=total)
        self.ends = np.concatenate([[0], np.cumsum(self.lengths)])
        owner = np.repeat(np.arange(self.n), self.lengths)
        self.places = np.arange(total) - self.ends[owner]
        self.order = np.argsort(self.blocks, kind="stable")
        self.holders, self.held_at = owner[self.order], self.places[self.order]
        self.count = np.bincount(self.blocks, minlength=len(number))
        self.start = np.cumsum(self.count) - self.count
        popular = np.flatnonzero(self.count * _POPULAR >= self.n)
        self.row_of = np.full(len(number), -1)
        self.row_of[popular] = np.arange(len(popular))
        in_table = self.row_of[self.blocks] >= 0
        smallest = np.min_scalar_type(-self.unit * (longest + 1))
        self.table = np.full((len(popular), self.n), -1, dtype=smallest)
        self.table[self.row_of[self.blocks[in_table]], owner[in_table]] = self.places[in_table]

    def distances(
        self, rows: Ints, columns: Ints, sums: NDArray[np.float64] | Ints, alpha: float
    ) -> NDArray[np.float64]:
        """Distances of pairs that share a block, from their sums."""
        shared: NDArray[np.float64] = np.floor(sums / self.unit)
        displacement = sums - shared * self.unit
        longest = np.maximum(self.lengths[rows], self.lengths[columns])
        result: NDArray[np.float64] = 1.0 - shared / longest + alpha * (displacement / shared)
        return result

    def padded(self) -> Ints:
        """``(n, longest)``: the blocks of each context by rank, -1 behind the last."""
        result = np.full((self.n, int(self.lengths.max(initial=0))), -1)
        result[np.repeat(np.arange(self.n), self.lengths), self.places] = self.blocks
        return result

    def pairs_behind(self, chunk: int) -> Iterator[PairSums]:
        """All pairs of a context and one behind it that share a block, some rows at a time.

        Each block of a context meets the holders behind it; a sort brings what belongs to one pair together.
        """
        place = np.empty(len(self.blocks), dtype=np.int64)
        place[self.order] = np.arange(len(place))
        behind = self.start[self.blocks] + self.count[self.blocks] - place - 1
        met = np.concatenate([[0], np.cumsum(behind)])[self.ends]
        first = 0
        while first < self.n:
            stop = max(first + 1, int(np.searchsorted(met, met[first] + chunk, side="right")) - 1)
            if kernels is None:
                own = slice(self.ends[first], self.ends[stop])
                yield self._pairs(place[own], behind[own])
            else:
                yield self._by_kernel(first, stop, place, behind, int(met[stop] - met[first]))
            first = stop

    def _by_kernel(self, first: int, stop: int, place: Ints, behind: Ints, room: int) -> PairSums:
        """:meth:`_pairs` of the rows ``first`` to ``stop``, ``room`` of them or fewer."""
        cells, sums = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        holders = self.ends, place, behind, self.holders, self.held_at
        count = kernels.pair_sums(first, stop, *holders, self.unit, cells, sums)
        return PairSums(cells[:count], sums[:count])

    def _pairs(self, places: Ints, behind: Ints) -> PairSums:
        """Of the holders at these places, each with so many that follow in the same list of holders.

        Pair and sum are sorted as one integer: n^2 x 4 k^2 has to stay below 2^63.
        """
        before = np.cumsum(behind) - behind
        other = np.repeat(places + 1 - before, behind) + np.arange(int(behind.sum()))
        terms = np.abs(self.held_at[other] - np.repeat(self.held_at[places], behind)) + self.unit
        cells = np.repeat(self.holders[places] * self.n, behind) + self.holders[other]
        bits = (2 * self.unit).bit_length()
        packed = np.sort(cells << bits | terms)
        cells = packed >> bits
        begins = np.flatnonzero(np.diff(cells, prepend=-1))
        sums = np.add.reduceat(packed & ((1 << bits) - 1), begins) if len(begins) else packed
        return PairSums(cells[begins], sums)

    def of(self, rows: slice) -> NDArray[np.float64]:
        """The sums of rows with all contexts, flattened. Whole numbers, exact below 2^53."""
        own = slice(self.ends[rows.start], self.ends[rows.stop])
        row = np.repeat(np.arange(rows.stop - rows.start), self.lengths[rows])
        blocks, places = self.blocks[own], self.places[own]
        popular = self.row_of[blocks] >= 0
        rare = ~popular
        sums = self._rare(row[rare], blocks[rare], places[rare], rows.stop - rows.start)
        by_row = sums.reshape(-1, self.n)
        for r in np.unique(row[popular]):
            chosen = popular & (row == r)
            held = self.table[self.row_of[blocks[chosen]]]
            terms = np.abs(held - places[chosen, None].astype(held.dtype))
            terms += held.dtype.type(self.unit)
            terms *= held >= 0
            by_row[r] += terms.sum(axis=0, dtype=held.dtype)
        return sums

    def _rare(self, row: Ints, blocks: Ints, places: Ints, rows: int) -> NDArray[np.float64]:
        count = self.count[blocks]
        before = np.cumsum(count) - count
        entry = np.repeat(self.start[blocks] - before, count) + np.arange(int(count.sum()))
        terms = np.abs(self.held_at[entry] - np.repeat(places, count)) + self.unit
        cells = self.holders[entry] + np.repeat(row * self.n, count)
        return np.bincount(cells, weights=terms, minlength=rows * self.n).astype(np.float64, copy=False)
