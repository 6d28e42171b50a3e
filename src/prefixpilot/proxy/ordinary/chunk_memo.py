"""The chunks of texts that have been cut lately: the same documents come again and again, in other prompts too.

What a text is cut into depends on its characters alone, so that it does not matter whose text it was. Bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from prefixpilot.apis.base import Segment
from prefixpilot.dedup.chunking import Chunk, chunks
from prefixpilot.errors import InvariantError
from prefixpilot.proxy.memory.forms import NamedText

MAX_CHUNKS: Final = 1 << 16
"""Chunks that are kept, of all texts together: about 11 MB. A text counts as one more."""


class ChunkMemo:
    """Chunks by the digest of the characters they were made of; those asked for longest ago go first. Thread-safe:
    texts are cut outside of its lock."""

    def __init__(self, most: int = MAX_CHUNKS) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[Chunk, ...]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._known)

    def chunks(self, text: NamedText, segment: Segment) -> tuple[Chunk, ...]:
        """Those of a text of ``segment``. O(characters), or O(1) if it is known."""
        with self._lock:
            known = self._known.get(text.raw)
            if known is not None:
                self._known.move_to_end(text.raw)
                return known
        made = chunks(segment.text[text.body.start : text.body.end])
        with self._lock:
            self._keep(text.raw, made)
        return made

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._known.clear()
            self._size = 0

    def _keep(self, raw: bytes, made: tuple[Chunk, ...]) -> None:
        if raw in self._known:
            return
        self._known[raw] = made
        self._size += len(made) + 1
        while self._size > self._most:
            self._size -= len(self._known.popitem(last=False)[1]) + 1

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the bound or the count is wrong. O(texts)."""
        size = sum(len(made) + 1 for made in self._known.values())
        if size != self._size or size > self._most:
            raise InvariantError(f"counts {self._size} chunks, holds {size} of {self._most}")
