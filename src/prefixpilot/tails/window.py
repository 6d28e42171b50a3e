"""The contexts sent lately, as bit sets: how often blocks stood together is an ``&`` and a count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from prefixpilot.core import BlockId
from prefixpilot.errors import ConfigError, InvariantError


class Window:
    """The last ``size`` contexts, whatever their order inside.

    ::

        slot         0    1    2    3          holders(7) = 0b0101
        context    {7,1} {2} {7,4}  -          (holders(7) & holders(4)).bit_count() = 1 context with both

    A ring: each context takes the slot of the oldest once all are in use. Memory is O(contexts x blocks per context)
    plus ``size`` bits for each distinct block held. Deterministic. Not thread-safe.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError("size", f"is {size}", "use an int of 1 or more")
        self.size = size
        self._contexts: deque[tuple[BlockId, ...]] = deque()
        self._holders: dict[BlockId, int] = {}
        self._slot = 0

    def __len__(self) -> int:
        """Number of contexts held."""
        return len(self._contexts)

    def add(self, blocks: Iterable[BlockId]) -> None:
        """A context was sent. O(blocks)."""
        context = tuple(dict.fromkeys(blocks))
        if len(self._contexts) == self.size:
            self._clear_slot(self._contexts.popleft())
        bit, holders = 1 << self._slot, self._holders
        for block in context:
            holders[block] = holders.get(block, 0) | bit
        self._contexts.append(context)
        self._slot = (self._slot + 1) % self.size

    def holders(self, block: BlockId) -> int:
        """The slots whose context holds ``block``, as a bit set; 0 if none does."""
        return self._holders.get(block, 0)

    def holders_of_all(self, blocks: Iterable[BlockId]) -> int:
        """The slots whose context holds each of ``blocks``; every bit is set (-1) for none of them."""
        common = -1
        for block in blocks:
            common &= self._holders.get(block, 0)
        return common

    def _clear_slot(self, context: tuple[BlockId, ...]) -> None:
        """Forget the oldest context, which is in the slot that is taken next."""
        keep, holders = ~(1 << self._slot), self._holders
        for block in context:
            holders[block] &= keep
            if not holders[block]:
                del holders[block]

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless the bit sets say what the contexts do. O(everything)."""
        expected: dict[BlockId, int] = {}
        oldest = (self._slot - len(self._contexts)) % self.size
        for age, context in enumerate(self._contexts):
            for block in context:
                expected[block] = expected.get(block, 0) | 1 << (oldest + age) % self.size
        if expected != self._holders or len(self._contexts) > self.size:
            raise InvariantError("window: the bit sets are not those of its contexts")
