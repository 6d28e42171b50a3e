"""Content-defined chunking: cuts a text where its own words say so, so that an insertion moves only the cuts near it.

The scheme is FastCDC's (Xia et al., USENIX ATC 2016): no cut before a minimum, a strict condition up to the normal
size, a loose one behind it, a forced cut at the maximum. The unit is not the byte but the line (a long one falls into
sentences, a sentence without end into words), so that every cut stands where a reader would cut, and one checksum a
line is enough.
"""

from __future__ import annotations

import re
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

_SENTENCE: Final = re.compile(r"[^.!?;]++[.!?;]*+\s*+|[.!?;]++\s*+")


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
    found = []
    start = end = 0
    before = 0
    for atom in _atoms(text):
        checksum = crc32(atom.encode("utf-8", "surrogatepass"))
        end += len(atom)
        if _cuts(end - start, crc32(checksum.to_bytes(4, "big"), before)):
            found.append(Chunk(start, end, text_digest(text[start:end])))
            start = end
        before = checksum
    if start < end:
        found.append(Chunk(start, end, text_digest(text[start:end])))
    return tuple(found)


def _cuts(size: int, checksum: int) -> bool:
    if size < MIN_CHARACTERS:
        return False
    if size >= MAX_CHARACTERS:
        return True
    return not checksum & (_STRICT if size < NORMAL_CHARACTERS else _LOOSE)


def _atoms(text: str) -> Iterator[str]:
    """Lines with their ends; long ones in sentences, and those in pieces."""
    for line in _lines(text):
        if len(line) <= _LONG_LINE:
            yield line
        else:
            for sentence in _SENTENCE.findall(line):
                yield from _words(sentence)


def _lines(text: str) -> Iterator[str]:
    *lines, last = text.split("\n")
    for line in lines:
        yield line + "\n"
    if last:
        yield last


def _words(sentence: str) -> Iterator[str]:
    """A long sentence in pieces of some words, cut behind a space where there is one."""
    start = 0
    while len(sentence) - start > _LONG_LINE:
        space = sentence.rfind(" ", start, start + _LONG_LINE)
        end = space + 1 if space > start else start + _LONG_LINE
        yield sentence[start:end]
        start = end
    yield sentence[start:]
