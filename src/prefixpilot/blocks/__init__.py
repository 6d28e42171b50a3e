"""Context blocks: what makes two of them the same, and a bounded store of what is known of each."""

from prefixpilot.blocks.identity import block_identity, normalize, rendered_text, text_digest
from prefixpilot.blocks.known import KnownBlocks
from prefixpilot.blocks.store import BlockStore, StoredBlock, estimate_tokens

__all__ = [
    "BlockStore",
    "KnownBlocks",
    "StoredBlock",
    "block_identity",
    "estimate_tokens",
    "normalize",
    "rendered_text",
    "text_digest",
]
