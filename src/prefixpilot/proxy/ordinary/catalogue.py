"""What stands in a prompt so far, and under which names: what an annotation may point to, and in which words. Pure.

A name points to a text only if no other text above has it: the label of a document, its label and the words with which
it begins, or those words. A tool result is named by its call; there the latest result counts, as the name says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from prefixpilot.annotations import result_name, text_name
from prefixpilot.apis.base import Prompt, Segment, ToolCall
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.dedup.runs import ChunkIndex, Run
from prefixpilot.proxy.memory.forms import NamedText, Sent, Target

MAX_NAME: Final = 200
"""Characters of a label, or of a call's arguments, that is used as a name."""
_OPENING_WORDS: Final = 8
_OPENING_CHARACTERS: Final = 80
_LEAST_WORDS: Final = 3
_UNQUOTABLE: Final = re.compile(r'["\\]')


class Standing(NamedTuple):
    """A text that stands in full.

    Attributes:
        digest, raw: of the text, decoded, and of its characters.
        names: words that may name it, shortest first.
        message: index of its message.
        passage: number of the message or region of system text whose form it belongs to.
    """

    digest: bytes
    raw: bytes
    names: tuple[str, ...]
    message: int
    passage: int


class Catalogue:
    """Grows along a prompt, in the order in which the model reads it. All methods O(1) but for chunks."""

    def __init__(self, calls: Mapping[str, ToolCall]) -> None:
        self._calls = calls
        self._standing: dict[bytes, Standing] = {}
        self._bearer: dict[str, bytes] = {}
        self._shared: set[str] = set()
        self._in_full: set[tuple[str, bytes]] = set()
        self._results: Counter[bytes] = Counter()
        self._documents: Counter[bytes] = Counter()
        self._made: Counter[tuple[str, str]] = Counter()
        self._chunks = ChunkIndex()
        self._sources: list[Standing] = []

    @classmethod
    def of(cls, prompt: Prompt) -> Catalogue:
        """An empty one, that knows the prompt's calls."""
        return cls({call.call_id: call for message in prompt.messages for call in message.calls})

    # -- what has been read

    def announce(self, text: NamedText, segment: Segment) -> None:
        """A text will stand in this string, maybe in front of annotations that are about to be named: what has been
        named must not mean it too."""
        for name in () if text.whole else self._names(text, segment):
            if self._bearer.setdefault(name, text.digest) != text.digest:
                self._shared.add(name)

    def add(self, text: NamedText, segment: Segment, passage: int) -> None:
        """A text of a string comes next; ``text.body`` counts the characters of ``segment.text``."""
        self.announce(text, segment)
        standing = Standing(text.digest, text.raw, self._names(text, segment), segment.message, passage)
        if segment.role == "tool" and not text.whole:
            self._documents[text.digest] += 1
        if text.full:
            self._standing.setdefault(text.digest, standing)
            self._in_full.update((name, text.digest) for name in standing.names)
            if text.chunks:
                self._chunks.add(text.chunks)
                self._sources.append(standing)

    def add_result(self, segment: Segment, digest: bytes) -> None:
        """A tool result has been read, whether in full or not: it is the latest of its call from here on."""
        self._results[digest] += 1
        call = self._call(segment)
        if call is not None:
            self._made[call.name, call.arguments] += 1
        name = self._call_name(segment)
        if name is not None:
            self._bearer[name] = digest

    def add_sent(self, sent: Sent, segments: tuple[Segment, ...], passage: int) -> None:
        """A whole message, as it was sent."""
        texts = list(sent.texts)
        for i, segment in enumerate(segments):
            own = [text for text in texts if text.segment == i]
            if segment.role == "tool":
                whole = next((text.digest for text in own if text.whole), None)
                self.add_result(segment, whole or text_digest(segment.text))
            for text in own:
                self.add(text, segment, passage)

    # -- what may be pointed to

    def find(self, digest: bytes) -> Standing | None:
        """Where a text stands in full first."""
        return self._standing.get(digest)

    def times(self, digest: bytes) -> int:
        """How many tool results had this text."""
        return self._results[digest]

    def seen(self, digest: bytes) -> int:
        """How often this text stood as a unit in a tool result."""
        return self._documents[digest]

    def made(self, segment: Segment) -> int:
        """How often the call that a tool result answers has been answered before."""
        call = self._call(segment)
        return 0 if call is None else self._made[call.name, call.arguments]

    def name(self, standing: Standing) -> str | None:
        """Words that can mean this text only; ``None`` if there are none."""
        return next((name for name in standing.names if self._means(name, standing.digest)), None)

    def runs(self, text: NamedText, at_least: int) -> list[tuple[Run, Standing]]:
        """The parts of a text that stand in others, and those others."""
        return [(run, self._sources[run.source]) for run in self._chunks.runs(text.chunks, at_least)]

    def holds(self, targets: Iterable[Target]) -> bool:
        """Whether what these annotations point to stands in full so far, under these words, and they mean nothing else.

        O(targets).
        """
        return all(
            self._bearer.get(target.name, target.digest) == target.digest
            and target.name not in self._shared
            and (target.inside or (target.name, target.digest) in self._in_full)
            for target in targets
        )

    def _means(self, name: str, digest: bytes) -> bool:
        return self._bearer.get(name) == digest and name not in self._shared

    def _names(self, text: NamedText, segment: Segment) -> tuple[str, ...]:
        if text.whole:
            name = self._call_name(segment)
            return () if name is None else (name,)
        label = text.label if text.label and len(text.label) <= MAX_NAME and "\n" not in text.label else None
        words = opening(segment.text[text.body.start : text.body.start + 2 * _OPENING_CHARACTERS])
        names = [] if label is None else [text_name(label)]
        return (*names, text_name(label, words)) if words else tuple(names)

    def _call(self, segment: Segment) -> ToolCall | None:
        return None if segment.call_id is None else self._calls.get(segment.call_id)

    def _call_name(self, segment: Segment) -> str | None:
        call = self._call(segment)
        if call is None or len(call.arguments) > MAX_NAME:
            return None
        return result_name(call.name, call.arguments)


def opening(text: str) -> str:
    """The words with which a text begins, up to a character that cannot be quoted; empty if these are too few.

    >>> opening('The fee is "due" in May.'), opening('It "is"')
    ('The fee is', '')
    """
    plain = _UNQUOTABLE.split(text, maxsplit=1)[0]
    words = plain.split()[:_OPENING_WORDS]
    return " ".join(words)[:_OPENING_CHARACTERS] if len(words) >= _LEAST_WORDS else ""
