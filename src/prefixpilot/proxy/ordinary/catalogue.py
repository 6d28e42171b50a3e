"""What stands in a prompt so far, and under which names: what an annotation may point to, and in which words. Pure.

A document is named by its label, by its label and the words with which it begins, or by these words: by the first of
them that stands in no other text above. A tool result is named by its call, as the latest result of it, while that
stands in full; then by the words with which it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from prefixpilot.annotations import result_name, text_name
from prefixpilot.apis.base import Message, Prompt, Role, Segment, ToolCall
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.dedup.runs import ChunkIndex, Run
from prefixpilot.proxy.memory.forms import NamedText, Sent, Target
from prefixpilot.proxy.ordinary.chunk_memo import ChunkMemo
from prefixpilot.proxy.ordinary.names import MAX_NAME, Pages, is_label, openings

MAX_PLACES: Final = 4
"""Places kept of each text: where the first has no name, another may."""
_TRUST: Final[Mapping[Role, int]] = {"system": 2, "user": 1, "assistant": 0, "tool": 0}
"""How far an application trusts whose words these are. Labels and calls are quoted upwards by nobody: a web page
chooses its own title, and the model its arguments."""


class Name(NamedTuple):
    """Words that mean one text.

    Attributes:
        text: as an annotation has them.
        passage: of the place that they name.
        words, label, call: see :class:`prefixpilot.proxy.memory.forms.Target`.
    """

    text: str
    passage: int
    words: str = ""
    label: str = ""
    call: str = ""


class Standing(NamedTuple):
    """A text that stands in full.

    Attributes:
        text: what is known of it.
        segment: the string that it stands in.
        passage: number of the message or region of system text whose form it belongs to.
    """

    text: NamedText
    segment: Segment
    passage: int

    @property
    def digest(self) -> bytes:
        """Of the text, decoded."""
        return self.text.digest

    @property
    def raw(self) -> bytes:
        """Of its characters."""
        return self.text.raw

    @property
    def label(self) -> str | None:
        """Words that stand on it."""
        return self.text.label

    @property
    def message(self) -> int:
        """Index of its message."""
        return self.segment.message


class _Latest(NamedTuple):
    """The latest result of a call, whether all of it stands in full, and in which passage."""

    digest: bytes
    full: bool
    call_id: str | None
    passage: int


class Catalogue:
    """Grows along a prompt, in the order in which the model reads it. O(1), but for chunks, and for names, which are
    looked for in all that stands above."""

    def __init__(self, calls: Mapping[str, ToolCall], memo: ChunkMemo) -> None:
        self._calls = calls
        self._memo = memo
        self._pages = Pages()
        self._standing: dict[bytes, list[Standing]] = {}
        self._labelled: set[tuple[str, bytes]] = set()
        self._latest: dict[str, _Latest] = {}
        self._results: Counter[bytes] = Counter()
        self._documents: Counter[bytes] = Counter()
        self._made: Counter[str] = Counter()
        self._chunks = ChunkIndex()
        self._sources: list[Standing] = []

    @classmethod
    def of(cls, prompt: Prompt, memo: ChunkMemo) -> Catalogue:
        """An empty one, that knows the prompt's calls. ``memo``: of all prompts."""
        return cls({call.call_id: call for message in prompt.messages for call in message.calls}, memo)

    # -- what has been read

    def read(self, message: Message) -> None:
        """A message in which nothing has a name; words of it and of its calls may be those of a name."""
        for segment in message.segments:
            self._pages.open(segment.text)
        for call in message.calls:
            self._pages.open(call.arguments)

    def read_text(self, text: str) -> None:
        """A string comes next, in which nothing has a name."""
        self._pages.open(text)

    def read_string(self, segment: Segment) -> None:
        """A string of a user or a tool, or a region of system text."""
        self._pages.open(segment.text, chained=segment.role in ("user", "tool"))

    def own(self, texts: Iterable[NamedText]) -> None:
        """These texts stand in the newest string, maybe in front of annotations that are about to be named."""
        self._pages.own(texts)

    def add(self, text: NamedText, segment: Segment, passage: int) -> None:
        """A text of the newest string has been read; its spans count the characters of ``segment.text``."""
        if segment.role == "tool" and not text.whole:
            self._documents[text.digest] += 1
        if not text.full:
            return
        standing = Standing(text, segment, passage)
        places = self._standing.setdefault(text.digest, [])
        if len(places) < MAX_PLACES:
            places.append(standing)
        if text.label is not None:
            self._labelled.add((text.label, text.digest))
        if text.chunked:
            self._sources.append(standing)

    def add_result(self, segment: Segment, digest: bytes, passage: int, *, full: bool) -> None:
        """A tool result has been read: it is the latest of its call from here on. One of several strings is not all
        of it."""
        self._results[digest] += 1
        call = self._call(segment)
        if call is not None:
            key = _key(call)
            self._made[key] += 1
            known = self._latest.get(key)
            alone = known is None or known.call_id != segment.call_id
            self._latest[key] = _Latest(digest, full and alone, segment.call_id, passage)

    def add_sent(self, sent: Sent, segments: tuple[Segment, ...], passage: int) -> None:
        """A whole message, as it was sent."""
        for i, segment in enumerate(segments):
            own = [text for text in sent.texts if text.segment == i]
            self.read_string(segment)
            self._pages.own(own)
            if segment.role == "tool":
                whole = next((text for text in own if text.whole), None)
                digest = text_digest(segment.text) if whole is None else whole.digest
                self.add_result(segment, digest, passage, full=whole is not None and whole.full)
            for text in own:
                self.add(text, segment, passage)

    # -- what may be pointed to

    def find(self, digest: bytes) -> Standing | None:
        """Where a text stands in full first."""
        places = self._standing.get(digest)
        return places[0] if places else None

    def times(self, digest: bytes) -> int:
        """How many tool results had this text."""
        return self._results[digest]

    def seen(self, digest: bytes) -> int:
        """How often this text stood as a unit in a tool result."""
        return self._documents[digest]

    def made(self, segment: Segment) -> int:
        """How often the call that a tool result answers has been answered before."""
        call = self._call(segment)
        return 0 if call is None else self._made[_key(call)]

    def name(self, standing: Standing, reader: Role) -> Name | None:
        """Words that can mean this text only, the shortest; ``None`` if there are none. O(characters above).

        ``reader`` is the role of the message that is going to quote them. A label or call of a role that is trusted
        less is not among them: opening words are, since these stand in the replaced text itself.
        """
        places = (place for place in self._standing[standing.digest] if place.raw == standing.raw)
        names = (name for place in places for name in self._names(place, reader))
        return next((name for name in names if self._means(name, standing.digest)), None)

    def runs(self, text: NamedText, segment: Segment, at_least: int) -> list[tuple[Run, Standing]]:
        """The parts of a text of ``segment`` that stand in others, and those others. Texts are cut only now: of most
        prompts nobody asks this. O(characters above) once."""
        for standing in self._sources[len(self._chunks) :]:
            self._chunks.add(self._memo.chunks(standing.text, standing.segment))
        found = self._chunks.runs(self._memo.chunks(text, segment), at_least)
        return [(run, self._sources[run.source]) for run in found]

    def holds(self, targets: Iterable[Target]) -> bool:
        """Whether what these annotations point to stands in full so far, and their words mean nothing else.

        The prompt is one with the chain for which they were made, so that words are looked for beside it only.
        O(targets x characters of system text, answers and calls above), a search for one word mostly.
        """
        return all(self._holds(target) for target in targets)

    def _holds(self, target: Target) -> bool:
        if not target.inside and not self._stands(target):
            return False
        return target.call != "" or self._pages.still_alone(target.words, target.digest)

    def _stands(self, target: Target) -> bool:
        if target.call:
            return self._is_latest(target.call, target.digest)
        return target.digest in self._standing and (not target.label or (target.label, target.digest) in self._labelled)

    def _means(self, name: Name, digest: bytes) -> bool:
        return self._is_latest(name.call, digest) if name.call else self._pages.alone(name.words, digest)

    def _is_latest(self, call: str, digest: bytes) -> bool:
        latest = self._latest.get(call)
        return latest is not None and latest.full and latest.digest == digest

    def _names(self, standing: Standing, reader: Role) -> Iterator[Name]:
        text, segment = standing.text, standing.segment
        quoted = _TRUST[segment.role] >= _TRUST[reader]
        label = text.label if quoted and is_label(text.label, segment.text) else None
        if text.whole:
            call = self._call(segment)
            latest = None if call is None else self._latest[_key(call)]
            if call is None or latest is None or latest.digest != text.digest:
                return
            if quoted and len(call.arguments) <= MAX_NAME:
                yield Name(result_name(call.name, call.arguments), latest.passage, call=_key(call))
        elif label is not None:
            yield Name(text_name(label), standing.passage, label, label)
        for words in openings(segment.text[text.body.start : text.body.end]):
            yield Name(text_name(label, words), standing.passage, words, label or "")

    def _call(self, segment: Segment) -> ToolCall | None:
        return None if segment.call_id is None else self._calls.get(segment.call_id)


def _key(call: ToolCall) -> str:
    """A call, however its arguments are spaced."""
    return f"{call.name}({''.join(call.arguments.split())})"
