"""What is known of each block, bounded: its length, when it was first seen, and (with normalisation) its first text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from prefixpilot.blocks.identity import block_identity, rendered_text
from prefixpilot.config import Normalization
from prefixpilot.core import BlockId, ContextBlock
from prefixpilot.errors import ConfigError

SortKey = tuple[int, int | str]


def estimate_tokens(text: str) -> int:
    """Length of ``text`` in tokens, estimated as one token per four UTF-8 bytes, at least 1.

    Typical of BPE vocabularies on English prose (within about 20 %); pass a counter where it matters.
    """
    return max(1, -(-len(text.encode("utf-8", "surrogatepass")) // 4))


class StoredBlock(NamedTuple):
    """One block of a request as the store knows it.

    Attributes:
        block_id: its identity.
        block: what to render: the caller's block, or with normalisation the first-seen one.
        tokens: length, as given, counted or estimated when it was first seen.
        sort_key: order of blocks inside an index node: by id, and for text-only blocks by first appearance.
    """

    block_id: BlockId
    block: ContextBlock
    tokens: int
    sort_key: SortKey


class _Known(NamedTuple):
    tokens: int
    first_seen: int
    kept: StoredBlock | None


class BlockStore:
    """Records of blocks by identity, least recently used out first. ``intern`` is O(length of the text).

    Texts are kept only under normalisation, where the first-seen text is rendered for every block equal to it.
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
        self._max = max_blocks
        self._normalization: Normalization = normalization
        self._count = count_tokens or estimate_tokens
        self._known: OrderedDict[BlockId, _Known] = OrderedDict()
        self._seen = 0

    def __len__(self) -> int:
        return len(self._known)

    def intern(self, block: ContextBlock) -> StoredBlock:
        """The record of ``block``, made on first sight. A block of unknown length and no text counts one token."""
        block_id = block.id if block.text is None else block_identity(block, self._normalization)
        assert block_id is not None  # ContextBlock promises a text or an id
        known = self._known.get(block_id)
        if known is None:
            known = self._learn(block_id, block)
        else:
            self._known.move_to_end(block_id)
        return known.kept or _stored(block_id, block, known.tokens, known.first_seen)

    def intern_all(self, blocks: Sequence[ContextBlock]) -> list[StoredBlock]:
        """:meth:`intern` of each, in parallel. A known id without text is looked up here, at half the cost."""
        known, used = self._known.get, self._known.move_to_end
        result = []
        for block in blocks:
            found = known(block.id) if block.text is None and block.id is not None else None
            if found is None or found.kept is None:
                result.append(self.intern(block))
            else:
                used(found.kept.block_id)
                result.append(found.kept)
        return result

    def _learn(self, block_id: BlockId, block: ContextBlock) -> _Known:
        tokens, first_seen = self._length(block), self._seen
        keep = block.text is None or self._normalization != "none"
        known = _Known(tokens, first_seen, _stored(block_id, block, tokens, first_seen) if keep else None)
        self._seen += 1
        self._known[block_id] = known
        if len(self._known) > self._max:
            self._known.popitem(last=False)
        return known

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
    sort_key: SortKey
    if block.id is None:
        sort_key = (2, first_seen)
    else:
        sort_key = (0, block.id) if isinstance(block.id, int) else (1, block.id)
    return StoredBlock(block_id, block, tokens, sort_key)
