"""The contexts sent lately, as bit sets: how often blocks stood together is an ``&`` and a count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixpilot.core import BlockId
from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.tails.halves import Halves, halves


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
        self._halves = halves(size)
        self._len = 0

    def __len__(self) -> int:
        """Number of contexts held."""
        return self._len

    def add(self, context: Iterable[BlockId]) -> int:
        """A context of distinct blocks, one or more, was sent; returns how many more are held now. O(blocks)."""
        before = self._len
        held: int = self._halves.add(context)
        self._len = held
        return held - before

    def contexts(self) -> list[list[BlockId]]:
        """The contexts held, oldest first: added to a new window they make one that behaves as this. O(everything)."""
        result: list[list[BlockId]] = []
        for half in self._halves.contents():
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
        found: int = self._halves.holders(block)
        return found

    def holders_of_all(self, blocks: Iterable[BlockId]) -> int:
        """The slots whose context holds each of ``blocks``; every bit is set (-1) for none of them."""
        common = -1
        for holders in self.holders_of_each(blocks):
            common &= holders
        return common

    def holders_of_each(self, blocks: Iterable[BlockId]) -> list[int]:
        """:meth:`holders` of many blocks, in parallel."""
        return [self.holders(block) for block in blocks]

    def counts(self, blocks: Sequence[BlockId]) -> list[int]:
        """How many contexts hold each of these blocks, in parallel."""
        found: list[int] = self._halves.counts(blocks)
        return found

    def most_used(self, rest: Sequence[BlockId], tokens: Sequence[int]) -> list[BlockId] | None:
        """:func:`~prefixpilot.tails.policies.popularity_tokens` by a kernel; ``None`` where there is none for it."""
        if isinstance(self._halves, Halves):
            return None
        found: list[BlockId] | None = self._halves.most_used(tuple(rest), tuple(tokens))
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
        if isinstance(self._halves, Halves):
            return None
        together: list[BlockId] | None = self._halves.co_occurrence(
            prefix, tuple(rest), tuple(tokens), needed, least, most
        )
        return together

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless each half keeps to its own slots. O(everything)."""
        half = self.size // 2
        older, newer = (_all_bits(part.values()) for part in self._halves.contents())
        low = (1 << half) - 1
        apart = (not older & low and not newer & ~low) or (not older & ~low and not newer & low)
        if not apart or older | newer >= 1 << self.size:
            raise InvariantError("window: a half uses the slots of the other")
        if not (older | newer).bit_count() == self._len <= self.size:
            raise InvariantError("window: holds another number of contexts than it counts")


def _all_bits(numbers: Iterable[int]) -> int:
    every = 0
    for bits in numbers:
        every |= bits
    return every
