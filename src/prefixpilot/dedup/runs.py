"""Partial overlap: long runs of one text that stand, word for word, inside other texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from prefixpilot.dedup.chunking import Chunk

MAX_SOURCES: Final = 4
"""Places kept of each chunk: boilerplate stands in many texts, and any place of it is as good."""

_ENDS: Final = ((5, 120), (8, 160), (12, 240), (16, 320))
"""Words and characters of the quotes at the ends of a run: the first few, and more where these stand elsewhere too."""


class Run(NamedTuple):
    """Characters ``start`` to ``end`` that stand, equal, at ``source_start`` to ``source_end`` of source ``source``."""

    start: int
    end: int
    source: int
    source_start: int
    source_end: int


class Ends(NamedTuple):
    """The words with which a run begins and ends, a space between them."""

    first: str
    last: str


def ends_of_run(run: str, source: str) -> Ends | None:
    """The fewest words that show where a run begins and ends in its source; ``None`` if none do.

    Each stands once in ``source``, which holds the run and has a space between its words. O(source).

    >>> ends_of_run("The fee is due in May. It is paid in full.", "Note. The fee is due in May. It is paid in full.")
    Ends(first='The fee is due in', last='It is paid in full.')
    >>> ends_of_run("a b c", "a b c, a b c") is None
    True
    """
    firsts = (" ".join(run[:characters].split()[:words]) for words, characters in _ENDS)
    lasts = (" ".join(run[-characters:].split()[-words:]) for words, characters in _ENDS)
    first = next((words for words in firsts if _once(words, source)), None)
    last = next((words for words in lasts if _once(words, source)), None)
    if first is None or last is None or source.find(first) + len(first) > source.find(last):
        return None
    return Ends(first, last)


def _once(words: str, text: str) -> bool:
    at = text.find(words)
    return bool(words) and at >= 0 and text.find(words, at + 1) < 0


class ChunkIndex:
    """Which chunks stand in which texts. ``add`` and ``runs`` O(chunks); grows with what is added, so keep it short."""

    def __init__(self) -> None:
        self._texts: list[Sequence[Chunk]] = []
        self._places: dict[bytes, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, chunks: Sequence[Chunk]) -> int:
        """Take a text in, by its chunks; returns its number as a source."""
        number = len(self._texts)
        self._texts.append(chunks)
        for i, chunk in enumerate(chunks):
            places = self._places.setdefault(chunk.digest, [])
            if len(places) < MAX_SOURCES:
                places.append((number, i))
        return number

    def runs(self, chunks: Sequence[Chunk], at_least: int) -> tuple[Run, ...]:
        """The runs of a text, in order, apart from each other: of ``at_least`` characters, the longest from each start.

        >>> index = ChunkIndex()
        >>> index.add([Chunk(0, 200, b"a"), Chunk(200, 500, b"b")])
        0
        >>> index.runs([Chunk(0, 150, b"x"), Chunk(150, 450, b"b")], 100)
        (Run(start=150, end=450, source=0, source_start=200, source_end=500),)
        """
        found = []
        i = 0
        while i < len(chunks):
            run, length = self._longest(chunks, i)
            if run is not None and run.end - run.start >= at_least:
                found.append(run)
                i += length
            else:
                i += 1
        return tuple(found)

    def _longest(self, chunks: Sequence[Chunk], first: int) -> tuple[Run | None, int]:
        """The longest run that begins with a chunk, and of how many chunks it is."""
        best: Run | None = None
        most = 0
        for source, place in self._places.get(chunks[first].digest, ()):
            text = self._texts[source]
            length = _common(chunks, first, text, place)
            if length > most:
                end, source_end = chunks[first + length - 1].end, text[place + length - 1].end
                best, most = Run(chunks[first].start, end, source, text[place].start, source_end), length
        return best, most


def _common(a: Sequence[Chunk], i: int, b: Sequence[Chunk], j: int) -> int:
    """How many chunks are equal from ``a[i]`` and ``b[j]`` on."""
    length = 0
    while i + length < len(a) and j + length < len(b) and a[i + length].digest == b[j + length].digest:
        length += 1
    return length
