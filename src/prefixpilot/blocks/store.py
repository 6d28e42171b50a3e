"""What is known of each block, bounded: its length, when it was first seen, and (with normalisation) its first text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from prefixpilot.blocks.identity import block_identity, rendered_text
from prefixpilot.config import Normalization
from prefixpilot.core import BlockId, ContextBlock
from prefixpilot.errors import ConfigError, InvariantError

SortKey = tuple[int, int | str | bytes]


def estimate_tokens(text: str) -> int:
    """Length of ``text`` in tokens, estimated as one token per four UTF-8 bytes, at least 1.

    Typical of BPE vocabularies on English prose (within about 20 %); pass a counter where it matters.
    """
    length = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return max(1, -(-length // 4))


class StoredBlock(NamedTuple):
    """One block of a request as the store knows it.

    Attributes:
        block_id: its identity.
        block: what to render: the caller's block, or with normalisation the first-seen one.
        tokens: length, as given, counted or estimated when it was first seen.
        sort_key: order of blocks inside an index node: by id (ints, then strings, then bytes), and for text-only blocks
            by first appearance.
    """

    block_id: BlockId
    block: ContextBlock
    tokens: int
    sort_key: SortKey


class _Known(NamedTuple):
    """What is kept of a block whose text is not: each caller's own block is rendered."""

    tokens: int
    first_seen: int


_Record: TypeAlias = StoredBlock | _Known


class BlockStore:
    """Records of blocks by identity, bounded. ``intern`` is O(length of the text).

    Two generations: a block that is used goes to the newer one; when that is full, the older one is forgotten and the
    newer takes its place. So between the last ``max_blocks / 2`` and ``max_blocks`` blocks used are known, and a use
    is one look-up, where an exact order of use takes a walk through cold memory. What is forgotten is freed little by
    little. Texts are kept only under normalisation, where the first-seen text is rendered for every block equal to it.
    Not thread-safe.
    """

    def __init__(
        self,
        max_blocks: int,
        normalization: Normalization = "none",
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        if max_blocks < 1:
            raise ConfigError("max_blocks", f"is {max_blocks}", "use an int of 1 or more")
        self._generation = max(1, max_blocks // 2)
        self._keeps_older = max_blocks > 1
        self._normalization: Normalization = normalization
        self._as_is = normalization == "none"
        self._count = count_tokens or estimate_tokens
        self._newer: dict[BlockId, _Record] = {}
        self._older: dict[BlockId, _Record] = {}
        self._forgotten: dict[BlockId, _Record] = {}
        self._seen = 0

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def intern(self, block: ContextBlock) -> StoredBlock:
        """The record of ``block``, made on first sight. A block of unknown length and no text counts one token."""
        block_id = block.id if block.text is None else block_identity(block, self._normalization)
        assert block_id is not None  # ContextBlock promises a text or an id
        known = self._newer.get(block_id)
        if known is None:
            known = self._older.pop(block_id, None) or self._learn(block_id, block)
            self._put(block_id, known)
        if isinstance(known, StoredBlock):
            return known
        return _stored(block_id, block, known.tokens, known.first_seen)

    def intern_all(self, blocks: Sequence[ContextBlock]) -> list[StoredBlock]:
        """:meth:`intern` of each, in parallel. What was used lately and has its identity is looked up here, faster."""
        result = []
        for block in blocks:
            block_id = block.id if block.text is None else block._identity if self._as_is else None
            found = None if block_id is None else self._newer.get(block_id)
            if block_id is None or found is None:
                result.append(self.intern(block))
            elif isinstance(found, StoredBlock):
                result.append(found)
            else:
                result.append(_stored(block_id, block, found.tokens, found.first_seen))
        return result

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless the generations are bounded and hold no block twice. O(everything)."""
        most = self._generation
        older = most if self._keeps_older else 0
        bounded = len(self._newer) <= most and len(self._older) <= older
        held = len(self) + len(self._forgotten)
        if not bounded or held > max(2 * most, 2) or not self._newer.keys().isdisjoint(self._older):
            raise InvariantError("block store: a generation is too large, or a block is in two")

    def _put(self, block_id: BlockId, known: _Record) -> None:
        if len(self._newer) >= self._generation:
            self._forgotten = self._older
            self._older = self._newer if self._keeps_older else {}
            self._newer = {}
        self._newer[block_id] = known
        for _ in range(min(2, len(self._forgotten))):
            self._forgotten.popitem()

    def _learn(self, block_id: BlockId, block: ContextBlock) -> _Record:
        tokens, first_seen = self._length(block), self._seen
        self._seen += 1
        if block.text is None or self._normalization != "none":
            return _stored(block_id, block, tokens, first_seen)
        return _Known(tokens, first_seen)

    def _length(self, block: ContextBlock) -> int:
        if block.tokens is not None:
            return block.tokens
        if block.text is None:
            return 1
        tokens = self._count(rendered_text(block)[1:])  # without what parts it from the label
        if type(tokens) is not int or tokens < 0:
            raise ConfigError("count_tokens", f"returned {tokens!r}", "return an int of 0 or more")
        return tokens


def _stored(block_id: BlockId, block: ContextBlock, tokens: int, first_seen: int) -> StoredBlock:
    if block.id is None:
        return _stored_block((block_id, block, tokens, (3, first_seen)))
    kind = 0 if isinstance(block.id, int) else 1 if isinstance(block.id, str) else 2
    return _stored_block((block_id, block, tokens, (kind, block.id)))


_stored_block = partial(tuple.__new__, StoredBlock)
"""``StoredBlock._make`` without the Python frame."""
