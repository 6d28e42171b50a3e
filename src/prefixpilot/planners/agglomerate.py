"""Greedy agglomeration by shared tokens: merge, again and again, the two groups whose common blocks are worth most.

Ordering a batch is building a trie over sets; what is prefilled is the sum of the trie's node weights. A merged group
keeps the intersection of its two parts, so each merge saves exactly the tokens that they share: this is greedy on the
objective. A merge is charged a little for the tokens that either part can no longer share with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixpilot.planners.inverted_file import Floats, Ints, InvertedFile

LOSS: Final = 0.05
"""Share of the tokens dropped from either part that a merge is charged; measured on the traces (docs/log.md)."""


class Merge(NamedTuple):
    """Groups ``first`` and ``second`` become one, named ``first``, that holds ``common`` (block numbers, rising)."""

    first: int
    second: int
    common: tuple[int, ...]


def agglomerate(contexts: Sequence[Ints], tokens: Floats, page_size: int = 1) -> list[Merge]:
    """Merges of n contexts of distinct blocks, best first, until no two groups share anything worth keeping.

    Args:
        contexts: arrays of block numbers in ``range(len(tokens))``.
        tokens: length of each block.
        page_size: tokens of a page of the engine; what is shared counts in whole pages.

    Ties are broken by the order of the contexts. O(n^2) time and 4 n^2 bytes in practice, and 4 n bytes per block.
    """
    return _Agglomeration(contexts, tokens, page_size).run() if len(contexts) > 1 else []


class _Agglomeration:
    """State: a matrix of scores, and the best partner of each group.

    Attributes:
        member: ``(blocks, n)``, 1 where a group holds a block.
        score: ``(n, n)``, symmetric, ``-inf`` for pairs that share nothing and for groups that are gone.
        best, partner: the largest score of each row, and its column; ``-inf`` and -1 for groups that are gone.
    """

    def __init__(self, contexts: Sequence[Ints], tokens: Floats, page_size: int) -> None:
        n = len(contexts)
        self.tokens = tokens.astype(np.float32)
        self.page_size = page_size
        self.groups = [frozenset(c.tolist()) for c in contexts]
        self.weight = np.array([tokens[c].sum() for c in contexts], dtype=np.float32)
        self.member = np.zeros((len(tokens), n), dtype=np.float32)
        file = InvertedFile(contexts, tokens)
        self.score = np.empty((n, n), dtype=np.float32)
        for row, context in enumerate(contexts):
            self.member[context, row] = 1
            self.score[row] = self._scores(row, file.shared_tokens(row).astype(np.float32))
            self.score[row, row] = -np.inf
        self.partner = self.score.argmax(axis=1)
        self.best = self.score[np.arange(n), self.partner]

    def run(self) -> list[Merge]:
        merges: list[Merge] = []
        while True:
            first = int(self.best.argmax())
            if self.best[first] == -np.inf:
                return merges
            merges.append(self._merge(first, int(self.partner[first])))

    def _scores(self, group: int, shared: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.page_size > 1:
            shared = np.floor(shared / self.page_size) * self.page_size
        scores: NDArray[np.float32] = (1 + 2 * LOSS) * shared - LOSS * (self.weight + self.weight[group])
        scores[shared <= 0] = -np.inf
        return scores

    def _merge(self, first: int, second: int) -> Merge:
        common = self.groups[first] & self.groups[second]
        self.member[list(self.groups[second]), second] = 0
        self.member[list(self.groups[first] - common), first] = 0
        self.groups[first] = common
        blocks = sorted(common)
        tokens = self.tokens[blocks]
        self.weight[first] = tokens.sum()
        row = self._scores(first, tokens @ self.member[blocks])
        row[first] = row[second] = -np.inf
        self.score[first] = self.score[:, first] = row
        self.score[second] = self.score[:, second] = -np.inf
        self._repair(first, second, row)
        return Merge(first, second, tuple(blocks))

    def _repair(self, first: int, second: int, row: NDArray[np.float32]) -> None:
        """Best partners again, after the row of ``first`` has changed and ``second`` is gone."""
        self.best[second], self.partner[second] = -np.inf, -1
        lost = np.flatnonzero((self.partner == first) | (self.partner == second))
        better = np.flatnonzero(row > self.best)
        self.partner[better] = first
        self.best[better] = row[better]
        scores = self.score[lost]
        self.partner[lost] = scores.argmax(axis=1)
        self.best[lost] = scores[np.arange(len(lost)), self.partner[lost]]
