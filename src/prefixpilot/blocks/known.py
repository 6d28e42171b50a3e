"""Blocks that came before: the same object for the same words, so that what is known of it is not found anew."""

from __future__ import annotations

from sys import getsizeof

from prefixpilot.core import ContextBlock
from prefixpilot.generations import Generations


class KnownBlocks:
    """Blocks by their text. Bounded; threads may share it.

    A block keeps the hash of its text and its identity (:func:`prefixpilot.blocks.text_digest`); of one that is known
    both are there already. Equal blocks are interchangeable, so nobody can tell but by the time that it takes.

    Args:
        max_bytes: of their texts.
    """

    def __init__(self, max_bytes: int) -> None:
        self._kept: Generations[tuple[str, str | int | None, str | None], ContextBlock] = Generations(max_bytes, _size)

    @property
    def size(self) -> int:
        """Bytes held: an estimate."""
        return self._kept.size

    def of(self, text: str, id: str | int | None = None, title: str | None = None) -> ContextBlock:
        """``ContextBlock(text, id, title)``. O(1) for a ``str`` that came before, O(its length) for one equal to it.

        Raises:
            InvalidRequestError: as that.
        """
        key = text, id, title
        known = self._kept.newer.get(key) or self._kept.get(key)
        if known is None or type(known.id) is not type(id):
            known = ContextBlock(text, id, title)
            self._kept.put(key, known)
        return known

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()

    def check_invariants(self) -> None:
        """Raises InvariantError: see :class:`prefixpilot.generations.Generations`."""
        self._kept.check_invariants()


def _size(block: ContextBlock) -> int:
    return getsizeof(block.text) + getsizeof(block.title) + 1024
