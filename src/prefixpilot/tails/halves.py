"""Which of the contexts sent lately hold a block, in two halves; compiled where a wheel was (decision 0054)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from prefixpilot.core import BlockId

try:
    kernels: Any = import_module("prefixpilot.tails._bits")
except ImportError:
    kernels = None


class Halves:
    """A bit set of contexts for each block, by halves: when the newer one is full, the older is forgotten as a whole.

    ``kernels.Halves`` has the same methods, and two more that :class:`~prefixpilot.tails.window.Window` asks there.
    """

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._older: dict[BlockId, int] = {}
        self._newer: dict[BlockId, int] = {}
        self._base = 0
        self._used = 0
        self._before = 0

    def add(self, context: Iterable[BlockId]) -> int:
        """One more context, of distinct blocks; returns how many are held now. O(blocks)."""
        if self._used == self._half:
            self._older, self._newer = self._newer, {}
            self._base, self._used, self._before = self._half - self._base, 0, self._half
        bit, newer = 1 << (self._base + self._used), self._newer
        for block in context:
            newer[block] = newer.get(block, 0) | bit
        self._used += 1
        return self._before + self._used

    def holders(self, block: BlockId) -> int:
        """The slots whose context holds ``block``: those of one half are below ``size / 2``."""
        return self._newer.get(block, 0) | self._older.get(block, 0)

    def counts(self, blocks: Sequence[BlockId]) -> list[int]:
        """How many contexts hold each of these blocks, in parallel."""
        return [self.holders(block).bit_count() for block in blocks]

    def contents(self) -> tuple[dict[BlockId, int], dict[BlockId, int]]:
        """The holders of each block in the older half and in the newer one. Not to be changed."""
        return self._older, self._newer


def halves(size: int) -> Any:
    """Empty ones for ``size`` contexts: compiled where that is possible, else :class:`Halves`."""
    return Halves(size) if kernels is None else kernels.Halves(size)
