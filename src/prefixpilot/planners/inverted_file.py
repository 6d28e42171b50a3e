"""Contexts as arrays, and the tokens that one of them shares with each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


def cut(flat: Ints, lengths: Iterable[int]) -> list[Ints]:
    """``flat`` as arrays of these lengths, one behind the other. ``np.split`` takes ten times as long."""
    return [flat[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


class InvertedFile:
    """Which contexts hold each block.

    Args:
        contexts: arrays of distinct block numbers, each in ``range(len(tokens))``.
        tokens: length of each block.

    Memory is O(total blocks).
    """

    def __init__(self, contexts: Sequence[Ints], tokens: Floats) -> None:
        self.contexts = contexts
        self.tokens = tokens
        self.lengths = np.array([len(c) for c in contexts], dtype=np.int64)
        flat = np.concatenate(contexts) if contexts else np.zeros(0, dtype=np.int64)
        order = np.argsort(flat, kind="stable")
        self._holders = np.repeat(np.arange(len(contexts)), self.lengths)[order]
        self._ends = np.cumsum(np.bincount(flat, minlength=len(tokens)))

    def holders(self, block: int) -> Ints:
        """The contexts that hold a block, rising."""
        return self._holders[self._ends[block - 1] if block else 0 : self._ends[block]]

    def shared_tokens(self, context: int) -> Floats:
        """Tokens that a context shares with each context, itself included. O(n + holders of its blocks)."""
        blocks = self.contexts[context]
        if not len(blocks):
            return np.zeros(len(self.contexts))
        held = [self.holders(int(block)) for block in blocks]
        weights = np.repeat(self.tokens[blocks], [len(h) for h in held])
        shared = np.bincount(np.concatenate(held), weights=weights, minlength=len(self.contexts))
        return shared.astype(np.float64, copy=False)

    def shared_rows(self, rows: slice) -> Floats:
        """:meth:`shared_tokens` of several contexts, ``(rows, n)``, in one sweep."""
        n, count = len(self.contexts), rows.stop - rows.start
        blocks = np.concatenate(self.contexts[rows])
        row = np.repeat(np.arange(count), self.lengths[rows])
        start = np.where(blocks > 0, self._ends[blocks - 1], 0)
        held = self._ends[blocks] - start
        entry = np.repeat(start - (np.cumsum(held) - held), held) + np.arange(int(held.sum()))
        cells = self._holders[entry] + np.repeat(row * n, held)
        shared = np.bincount(cells, weights=np.repeat(self.tokens[blocks], held), minlength=count * n)
        return shared.astype(np.float64, copy=False).reshape(count, n)
