"""When two context blocks are the same block: a content hash that is stable across processes and machines."""

from __future__ import annotations

import unicodedata
from hashlib import blake2b

from prefixpilot.config import Normalization
from prefixpilot.core import BlockId, ContextBlock

_DIGEST_BYTES = 16


def rendered_text(block: ContextBlock) -> str:
    """What stands behind the block's label in a prompt: a space and its title, or nothing; a line break; its text."""
    return f"\n{block.text or ''}" if block.title is None else f" {block.title}\n{block.text or ''}"


def normalize(text: str, normalization: Normalization) -> str:
    """The form in which texts are compared (never the form that is rendered).

    >>> normalize("a  b\\n", "whitespace")
    'a b'
    """
    if normalization == "unicode":
        text = unicodedata.normalize("NFKC", text)
    return text if normalization == "none" else " ".join(text.split())


def block_identity(block: ContextBlock, normalization: Normalization = "none") -> BlockId:
    """The identity of a block: the hash of its rendered text, or its id where it has no text.

    Kept on the block, but for a normalised one.

    A caller's id is only a name as soon as there is a text: an id whose text has changed is another block, since the
    engine caches bytes. Lone surrogates are hashed as they are, so every ``str`` has an identity.
    """
    if normalization == "none" and block._identity is not None:
        return block._identity
    if block.text is None:
        assert block.id is not None  # ContextBlock promises one of the two
        return block.id
    if normalization == "none":
        identity = "text:" + text_digest(block).hex()
        object.__setattr__(block, "_identity", identity)
        return identity
    return "text:" + _digest(normalize(rendered_text(block), normalization)).hex()


def text_digest(block: ContextBlock) -> bytes:
    """16 bytes over the rendered text, equal in every process; kept on the block. O(bytes) once."""
    digest = block._digest
    if digest is None:
        digest = _digest(rendered_text(block))
        object.__setattr__(block, "_digest", digest)
    return digest


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
