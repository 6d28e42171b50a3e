"""Texts of a log in which the words of a format stand, and nothing proves where its documents begin and end.

The proxy leaves such texts as they are and says so in mode explain (:mod:`prefixpilot.proxy.ordinary.notes`). A text
that comes again says nothing new: it is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from prefixpilot.apis.base import Prompt, Segment
from prefixpilot.formats.marks import asked
from prefixpilot.formats.weak import STUFF, WEAK
from prefixpilot.proxy.ordinary.notes import NOT_PROVED, Note

MAX_TEXTS: Final = 100_000
"""Of which it is remembered that they were looked at; behind that nothing more is."""

_LEAST: Final = 2
"""Texts of a format, and new paragraphs of one without a frame: a system text with a clock in it is one text."""
_PARAGRAPH_CHARS: Final = 100
_NAMES: Final = frozenset(one.name for one in WEAK)
"""Formats without marks between their documents: others show their edges, or are not there."""


class Unproved(NamedTuple):
    """Texts of one format.

    Attributes:
        format: its name.
        texts: how many different ones there were.
        line: of the log, where the first stands.
    """

    format: str
    texts: int
    line: int


@dataclass(slots=True)
class _Found:
    line: int
    texts: int = 0
    paragraphs: frozenset[str] = frozenset()


@dataclass(slots=True)
class UnprovedTexts:
    """The texts of a log, request by request."""

    _seen: set[bytes] = field(default_factory=set)
    _found: dict[str, _Found] = field(default_factory=dict)

    def add(self, line: int, prompt: Prompt, explain: Callable[[], Sequence[Note]]) -> None:
        """A request in which no documents were found. O(length).

        Args:
            explain: what the proxy would tell of it; asked only where a text may hold a format, and is new.
        """
        new = {segment.pointer: segment for segment in prompt.segments() if self._new(segment)}
        if not new:
            return
        for note in explain():
            if note.why == NOT_PROVED and note.format in _NAMES and note.pointer in new:
                self._count(line, note.format, new[note.pointer].text)

    def ranked(self) -> list[Unproved]:
        """Those formats of which several texts were seen, the most first."""
        found = [Unproved(name, each.texts, each.line) for name, each in self._found.items() if each.texts >= _LEAST]
        return sorted(found, key=lambda each: (-each.texts, each.format))

    def _new(self, segment: Segment) -> bool:
        if segment.sealed or len(self._seen) >= MAX_TEXTS or not any(asked(segment, WEAK)):
            return False
        digest = blake2b(segment.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = digest in self._seen
        self._seen.add(digest)
        return not known

    def _count(self, line: int, name: str, text: str) -> None:
        found = self._found.setdefault(name, _Found(line))
        paragraphs = frozenset(_long(text.split("\n\n")))
        if name != STUFF.name or len(paragraphs - found.paragraphs) >= _LEAST:
            found.texts += 1
        found.paragraphs = paragraphs


def _long(paragraphs: Iterable[str]) -> Iterable[str]:
    return (paragraph for paragraph in paragraphs if len(paragraph) >= _PARAGRAPH_CHARS)
