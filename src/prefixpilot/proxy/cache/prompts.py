"""A prompt in the engine's tokens: what ``/tokenize`` answers, and where the blocks of a plan end in it. Pure."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from prefixpilot.core import Plan
from prefixpilot.prompts import render_block

MAX_TOKENS: Final = 4_000_000
_WORD_MARK: Final = "\u2581"
_BYTE_SPACE: Final = "\u0120"
_BYTE_NEWLINE: Final = "\u010a"


class EnginePrompt(NamedTuple):
    """A prompt as the engine reads it.

    Attributes:
        token_ids: unsigned, below 2**32.
        pieces: the UTF-8 bytes of each token, in parallel; empty where they are not known.
    """

    token_ids: array[int]
    pieces: tuple[bytes, ...] = ()

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.token_ids)


class BlockSpan(NamedTuple):
    """Where a block of a plan stands.

    Attributes:
        start: tokens of the prompt before the one that holds its first byte.
        end: tokens up to and with the one that holds its last byte.
    """

    start: int
    end: int


def read_tokenized(data: bytes) -> EnginePrompt | None:
    """What vLLM's ``/tokenize`` answers: ``{"tokens": [...], "token_strs": [...]}``; ``None`` if it is not that.

    O(bytes). ``token_strs`` may be missing, or of another length; then the pieces are not known.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    ids = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(ids, list) or not ids or len(ids) > MAX_TOKENS:
        return None
    try:
        token_ids = array("I", ids)
    except (TypeError, OverflowError):
        return None
    return EnginePrompt(token_ids, _pieces(document.get("token_strs"), len(ids)))


def _pieces(strings: Any, count: int) -> tuple[bytes, ...]:
    if not isinstance(strings, list) or len(strings) != count or not all(isinstance(s, str) for s in strings):
        return ()
    return token_bytes(strings)


def token_bytes(strings: Sequence[str]) -> tuple[bytes, ...]:
    """The bytes that tokens stand for, from the names that a tokenizer gives them.

    Byte-level BPE writes each byte as a character of its own (a space as U+0120), SentencePiece a space as U+2581 and
    lone bytes as ``<0x0A>``. Which of them it is shows in the names; names with neither are taken as they are.

    >>> token_bytes(["\u0120caf", "\u00c3\u00a9"])
    (b' caf', b'\\xc3\\xa9')
    >>> token_bytes(["\u2581the", "<0x0A>"])
    (b' the', b'\\n')
    """
    joined = "".join(strings)
    if _BYTE_SPACE in joined or _BYTE_NEWLINE in joined:
        table = _byte_level()
        return tuple(b"".join(table.get(c) or c.encode() for c in string) for string in strings)
    if _WORD_MARK in joined:
        return tuple(map(_word_piece, strings))
    return tuple(string.encode("utf-8", "surrogatepass") for string in strings)


def _word_piece(string: str) -> bytes:
    if len(string) == 6 and string.startswith("<0x") and string.endswith(">"):
        try:
            return bytes.fromhex(string[3:5])
        except ValueError:
            pass
    return string.replace(_WORD_MARK, " ").encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1)
def _byte_level() -> dict[str, bytes]:
    """Byte-level BPE's characters: printable Latin-1 stands for itself, the others follow from U+0100 on, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    moved = {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(rest)}
    return {**{chr(byte): bytes([byte]) for byte in plain}, **moved}


def block_spans(plan: Plan, prompt: EnginePrompt) -> tuple[BlockSpan, ...]:
    """Where each block of a plan's head stands, in order. O(bytes of the prompt).

    They are looked for one behind the other, as we render them; where the first is not found so, by their texts alone,
    as an application rendered them. A template may trim a message, and puts other text around it. Stops at the first
    one that is not found.
    """
    whole = b"".join(prompt.pieces)
    ends = list(accumulate(map(len, prompt.pieces)))
    rendered = [_bytes(render_block(block, plan.templates)) for block in plan.head if block.block.text is not None]
    found = _found(rendered, whole) or _found([_bytes(block.block.text or "") for block in plan.head], whole)
    return tuple(BlockSpan(bisect_right(ends, start), bisect_left(ends, end) + 1) for start, end in found)


def _found(texts: Sequence[bytes], whole: bytes) -> list[tuple[int, int]]:
    """Where each text begins and ends, as far as they stand there one behind the other."""
    found: list[tuple[int, int]] = []
    for text in texts:
        at = whole.find(text, found[-1][1] if found else 0)
        if at < 0 or not text:
            break
        found.append((at, at + len(text)))
    return found


def _bytes(text: str) -> bytes:
    return text.strip().encode("utf-8", "surrogatepass")


def estimated_spans(plan: Plan, prompt_tokens: int) -> tuple[BlockSpan, ...]:
    """Where they stand by the plan's own lengths, where no tokens are known, and nothing of what stands before them.

    Never past ``prompt_tokens``.
    """
    ends = [min(end, prompt_tokens) for end in accumulate(block.tokens for block in plan.head)]
    return tuple(BlockSpan(start, end) for start, end in pairwise([0, *ends]))
