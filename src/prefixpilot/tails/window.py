"""The contexts sent lately, as bit sets: how often blocks stood together is an ``&`` and a count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from prefixpilot.core import BlockId
from prefixpilot.errors import ConfigError, InvariantError

try:
    kernels: Any = import_module("prefixpilot.tails._bits")
except ImportError:
    kernels = None


class Window:
    """The last contexts, whatever their order inside: between ``size / 2`` and ``size`` of them.

    ::

        slot         0    1  |  2    3         holders(7) = 0b0101
        context    {7,1} {2} | {7,4} -         (holders(7) & holders(4)).bit_count() = 1 context with both

    Two halves: when the newer is full, the older is forgotten as a whole and its slots are used again. Memory is
    O(contexts x blocks per context), plus ``size`` bits for each distinct block held. Deterministic. Not thread-safe.
    """

    def __init__(self, size: int) -> None:
        if size < 2 or size % 2:
            raise ConfigError("size", f"is {size}", "use an even int of 2 or more")
        self.size = size
        self._older: dict[BlockId, int] = {}
        self._newer: dict[BlockId, int] = {}
        self._slot = 0
        self._len = 0

    def __len__(self) -> int:
        """Number of contexts held."""
        return self._len

    def add(self, context: Iterable[BlockId]) -> int:
        """A context of distinct blocks, one or more, was sent; returns how many more are held now. O(blocks)."""
        half, before = self.size // 2, self._len
        if self._slot % half == 0 and self._newer:
            self._len = min(self._len, half)
            self._older, self._newer = self._newer, {}
        bit, newer = 1 << self._slot, self._newer
        for block in context:
            newer[block] = newer.get(block, 0) | bit
        self._slot = (self._slot + 1) % self.size
        self._len += 1
        return self._len - before

    def contexts(self) -> list[list[BlockId]]:
        """The contexts held, oldest first: added to a new window they make one that behaves as this. O(everything)."""
        result: list[list[BlockId]] = []
        for half in (self._older, self._newer):
            by_slot: dict[int, list[BlockId]] = {}
            for block, bits in half.items():
                while bits:
                    lowest = bits & -bits
                    by_slot.setdefault(lowest.bit_length(), []).append(block)
                    bits ^= lowest
            result.extend(by_slot[slot] for slot in sorted(by_slot))
        return result

    def holders(self, block: BlockId) -> int:
        """The slots whose context holds ``block``, as a bit set; 0 if none does."""
        return self._newer.get(block, 0) | self._older.get(block, 0)

    def holders_of_all(self, blocks: Iterable[BlockId]) -> int:
        """The slots whose context holds each of ``blocks``; every bit is set (-1) for none of them."""
        common = -1
        for holders in self.holders_of_each(blocks):
            common &= holders
        return common

    def holders_of_each(self, blocks: Iterable[BlockId]) -> list[int]:
        """:meth:`holders` of many blocks, in parallel."""
        newer, older = self._newer, self._older
        return [newer.get(block, 0) | older.get(block, 0) for block in blocks]

    def counts(self, blocks: Sequence[BlockId]) -> list[int]:
        """How many contexts hold each of these blocks, in parallel."""
        if kernels is None:
            return [holders.bit_count() for holders in self.holders_of_each(blocks)]
        found: list[int] = kernels.counts(self._newer, self._older, self.size, tuple(blocks))
        return found

    def standing_together(
        self,
        prefix: tuple[BlockId, ...],
        rest: Sequence[BlockId],
        tokens: Sequence[int],
        needed: float,
        least: int,
        most: int,
    ) -> list[BlockId] | None:
        """:func:`~prefixpilot.tails.policies.co_occurrence` by a kernel; ``None`` where there is none for it.

        Args:
            needed, least: contexts that speak for the first block, and for each.
            most: so many blocks or fewer.
        """
        if kernels is None:
            return None
        together: list[BlockId] | None = kernels.co_occurrence(
            self._newer, self._older, self.size, prefix, tuple(rest), tuple(tokens), needed, least, most
        )
        return together

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless each half keeps to its own slots. O(everything)."""
        half = self.size // 2
        low = (1 << half) - 1
        newer_is_high = (self._slot - 1) % self.size >= half
        newer, older = (low << half, low) if newer_is_high else (low, low << half)
        strays = any(bits & ~newer for bits in self._newer.values()) or any(
            bits & ~older for bits in self._older.values()
        )
        if strays or not 0 <= self._len <= self.size:
            raise InvariantError("window: a half uses the slots of the other")
