"""Greedy agglomeration by shared tokens: merge, again and again, the two groups whose common blocks are worth most.

Ordering a batch is building a trie over sets; what is prefilled is the sum of the trie's node weights. A merged group
keeps the intersection of its two parts, so each merge saves exactly the tokens that they share: this is greedy on the
objective. A merge is charged a little for the tokens that either part can no longer share with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prefixpilot.planners.inverted_file import Floats, Ints, InvertedFile

try:
    kernels: Any = import_module("prefixpilot.planners._agglomerate")
except ImportError:  # a pure build
    kernels = None

LOSS: Final = 0.05
"""Share of the tokens dropped from either part that a merge is charged; measured on the traces (docs/log.md)."""

LOSSES: Final = (LOSS, 0.02, 0.1, 0.2, 0.0)
"""The charges that :func:`agglomerate_best` tries."""

_CHUNK: Final = 1 << 16
"""Scores that are computed together at the start."""

Singles: TypeAlias = NDArray[np.float32]


class Merge(NamedTuple):
    """Groups ``first`` and ``second`` become one, named ``first``, that holds ``common`` (block numbers, rising)."""

    first: int
    second: int
    common: tuple[int, ...]


def agglomerate(contexts: Sequence[Ints], tokens: Floats, page_size: int = 1, loss: float = LOSS) -> list[Merge]:
    """Merges of n contexts of distinct blocks, best first, until no two groups share anything worth keeping.

    Args:
        contexts: arrays of block numbers in ``range(len(tokens))``.
        tokens: length of each block.
        page_size: tokens of a page of the engine; what is shared counts in whole pages.
        loss: see :data:`LOSS`.

    Of the best pairs the one with the smallest first, then second group merges. O(n^2) time and 4 n^2 bytes in
    practice, and 4 n bytes per block.
    """
    if len(contexts) < 2:
        return []
    if kernels is not None:
        return _by_kernel(contexts, tokens, page_size, loss)
    return _Agglomeration(contexts, tokens, page_size, loss).run()


def agglomerate_best(contexts: Sequence[Ints], tokens: Floats, page_size: int = 1) -> list[Merge]:
    """:func:`agglomerate` at each of several charges; the merges that save most, the first of equals."""

    def saved(merges: list[Merge]) -> float:
        return sum(float(tokens[list(merge.common)].sum()) // page_size for merge in merges)

    return max((agglomerate(contexts, tokens, page_size, loss) for loss in LOSSES), key=saved)


def _by_kernel(contexts: Sequence[Ints], tokens: Floats, page_size: int, loss: float) -> list[Merge]:
    n, blocks = len(contexts), max(1, len(tokens))
    ends = np.cumsum([0, *map(len, contexts)])
    cells = np.concatenate(contexts) + np.repeat(np.arange(n) * blocks, np.diff(ends))
    cells.sort()
    first, second, stops = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    common = np.empty(len(cells), dtype=np.int64)
    weights = np.asarray(tokens, dtype=np.float64)
    count = kernels.agglomerate(cells % blocks, ends, weights, page_size, loss, first, second, common, stops)
    kept = common.tolist()
    bounds = pairwise([0, *stops[:count].tolist()])
    pairs = zip(first[:count].tolist(), second[:count].tolist(), bounds, strict=True)
    return [Merge(one, other, tuple(kept[start:stop])) for one, other, (start, stop) in pairs]


class _Agglomeration:
    """State: a matrix of scores, and the best partner of each group among those behind it.

    A group's best partner that merges away leaves an upper bound behind, and the search for another is put off until
    that bound is the largest of all. Scores that rise are noticed when they do.

    Attributes:
        member: ``(blocks, n)``, 1 where a group holds a block; anything for groups that are gone.
        score: ``(n, n)``, symmetric, ``-inf`` for pairs that share nothing; anything in the columns of groups that are
            gone.
        gone: 0, or ``-inf`` for groups that are gone.
        best: no score of the group with one behind it is larger; ``-inf`` for groups that are gone.
        partner: the first group behind it at score ``best``; -1 if it has to be searched for.
    """

    def __init__(self, contexts: Sequence[Ints], tokens: Floats, page_size: int, loss: float) -> None:
        n = len(contexts)
        self.tokens = tokens.astype(np.float32)
        self.page_size, self.loss = page_size, loss
        self.groups = [frozenset(c.tolist()) for c in contexts]
        self.weight = np.array([tokens[c].sum() for c in contexts], dtype=np.float32)
        self.member = np.zeros((len(tokens), n), dtype=np.float32)
        self.member[np.concatenate(contexts), np.repeat(np.arange(n), list(map(len, contexts)))] = 1
        file = InvertedFile(contexts, tokens)
        self.score = np.empty((n, n), dtype=np.float32)
        step = max(1, _CHUNK // n)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            shared = file.shared_rows(rows).astype(np.float32)
            self.score[rows] = self._scores(self.weight[rows, None], shared)
        self.gone = np.zeros(n, dtype=np.float32)
        self.best = np.full(n, -np.inf, dtype=np.float32)
        self.partner = np.full(n, n, dtype=np.int32)
        for group in range(n - 1):
            self._search(group)

    def run(self) -> list[Merge]:
        merges: list[Merge] = []
        while True:
            first = int(self.best.argmax())
            if self.best[first] == -np.inf:
                return merges
            if self.partner[first] < 0:
                self._search(first)
            else:
                merges.append(self._merge(first, int(self.partner[first])))

    def _scores(self, weight: Singles, shared: Singles) -> Singles:
        if self.page_size > 1:
            shared = np.floor(shared / self.page_size) * self.page_size
        scores: Singles = self.weight + weight
        scores *= np.float32(-self.loss)
        scores += np.float32(1 + 2 * self.loss) * shared
        np.putmask(scores, shared <= 0, np.float32(-np.inf))
        return scores

    def _search(self, group: int) -> None:
        behind = self.score[group, group + 1 :] + self.gone[group + 1 :]
        place = int(behind.argmax()) if len(behind) else 0
        self.best[group] = behind[place] if len(behind) else -np.inf
        self.partner[group] = group + 1 + place

    def _merge(self, first: int, second: int) -> Merge:
        common = self.groups[first] & self.groups[second]
        self.member[list(self.groups[first] - common), first] = 0
        self.groups[first] = common
        blocks = sorted(common)
        tokens = self.tokens[blocks]
        self.weight[first] = tokens.sum()
        self.gone[second] = self.best[second] = -np.inf
        row = self._scores(self.weight[first], tokens @ self.member[blocks])
        row += self.gone
        row[first] = -np.inf
        self.score[first] = row
        self.score[:, first] = row
        self._repair(first, second, row)
        return Merge(first, second, tuple(blocks))

    def _repair(self, first: int, second: int, row: Singles) -> None:
        """Bounds and partners again; ``row`` is now that of ``first``, and ``second`` is gone."""
        partner, best = self.partner, self.best
        partner[:second][partner[:second] == second] = -1
        moved = (partner[:first] == first).nonzero()[0]
        partner[moved[row[moved] < best[moved]]] = -1
        before = ((row[:first] >= best[:first]) & (row[:first] > -np.inf)).nonzero()[0]
        better = before[(row[before] > best[before]) | (partner[before] > first)]
        partner[better] = first
        best[better] = row[better]
        self._search(first)
