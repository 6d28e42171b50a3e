"""Content-defined chunking: cuts a text where its own words say so, so that an insertion moves only the cuts near it.

The scheme is FastCDC's (Xia et al., USENIX ATC 2016): no cut before a minimum, a strict condition up to the normal
size, a loose one behind it, a forced cut at the maximum. The unit is not the byte but the line (a long one falls into
sentences, a sentence without end into words), so that every cut stands where a reader would cut, and one checksum a
line is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

MIN_CHARACTERS: Final = 128
NORMAL_CHARACTERS: Final = 512
MAX_CHARACTERS: Final = 2048
_STRICT: Final = 0b11111
_LOOSE: Final = 0b11
"""Bits of a checksum that must be 0 at a cut: one line in 32 before the normal size, one in 4 behind it."""
_LONG_LINE: Final = 256

_FULL_STOP: Final = ". "


class Chunk(NamedTuple):
    """Characters ``start`` to ``end`` of a text, and the digest of what stands there (16 bytes)."""

    start: int
    end: int
    digest: bytes


def text_digest(text: str) -> bytes:
    """Digest of a text, 16 bytes (blake2b); every ``str`` has one, lone surrogates too."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def chunks(text: str) -> tuple[Chunk, ...]:
    """The chunks of a text, in order; joined they are the text. O(length).

    Where a cut stands depends only on the two lines (or sentences) before it and on how far back the last cut is. So
    two texts with a common stretch have common chunks in it, but for the first few.

    >>> [text[c.start:c.end] for text in ["a text\\n"] for c in chunks(text)]
    ['a text\\n']
    """
    data = text.encode() if text.isascii() else None  # then bytes count as characters do
    found = []
    start = before = at = 0
    for end in _ends(text):
        own = crc32(text[at:end].encode("utf-8", "surrogatepass") if data is None else data[at:end])
        size = end - start
        if size >= MIN_CHARACTERS:
            mask = 0 if size >= MAX_CHARACTERS else _STRICT if size < NORMAL_CHARACTERS else _LOOSE
            if not crc32(own.to_bytes(4, "big"), before) & mask:
                found.append(Chunk(start, end, text_digest(text[start:end])))
                start = end
        before, at = own, end
    if start < at:
        found.append(Chunk(start, at, text_digest(text[start:at])))
    return tuple(found)


def _ends(text: str) -> list[int]:
    """Where lines end; in long ones sentences, and the pieces of long sentences. The last is the end of the text."""
    ends = []
    at = 0
    for line in text.split("\n"):
        length = len(line) + 1
        if length <= _LONG_LINE:
            at += length
            ends.append(at)
            continue
        for sentence in line.split(_FULL_STOP):
            length = len(sentence) + len(_FULL_STOP)
            if length > _LONG_LINE:
                ends += (at + end for end in _words(sentence))
            at += length
            ends.append(at)
        at -= len(_FULL_STOP) - 1  # what ends the last one is a line break
        ends[-1] = at
    ends[-1] = at - 1  # and that of the text is none
    return ends


def _words(sentence: str) -> Iterator[int]:
    """Ends of the pieces of some words of a long sentence, behind a space where there is one; but for the last."""
    start = 0
    while len(sentence) - start > _LONG_LINE:
        space = sentence.rfind(" ", start, start + _LONG_LINE)
        start = space + 1 if space > start else start + _LONG_LINE
        yield start
