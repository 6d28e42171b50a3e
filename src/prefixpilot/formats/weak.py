"""Formats whose texts stand side by side with no mark between them: whole texts move, where other requests prove which
these are (:mod:`prefixpilot.formats.edges`).

``txtai`` (a question and texts, joined by single spaces) is not among them. The question stands in front of the
texts, so no order of theirs makes two prompts begin alike, and with nothing but spaces the question has no end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Recogniser, Region, Unit
from prefixpilot.formats.heads import line_starts, places
from prefixpilot.formats.marks import MarkGroups
from prefixpilot.pieces import Span


class Stretch(NamedTuple):
    """Where texts stand in a string, and what joins them."""

    start: int
    end: int
    joint: str


@dataclass(frozen=True, slots=True)
class WeakShape:
    """A format without marks between its texts.

    Attributes:
        name: of the format.
        roles: whose strings it is looked for in.
        stretch: where the texts stand; ``None`` if the frame of the format is not there, or there more than once.
        framed: the frame marks both ends of the stretch.
        marks: see :data:`prefixpilot.formats.marks.MarkGroups`.
    """

    name: str
    roles: tuple[Role, ...]
    stretch: Callable[[str], Stretch | None]
    framed: bool
    marks: MarkGroups


@dataclass(frozen=True, slots=True)
class WeakRecogniser:
    """One shape. What it finds depends on what has been met; it learns nothing itself (:func:`learn`)."""

    shape: WeakShape

    @property
    def name(self) -> str:
        """Of the format."""
        return self.shape.name

    @property
    def roles(self) -> tuple[Role, ...]:
        """Whose strings it is looked for in."""
        return self.shape.roles

    @property
    def marks(self) -> MarkGroups:
        """Without which it finds nothing."""
        return self.shape.marks

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length). All units movable, of whole texts."""
        stretch = self._stretch(segment)
        texts = _texts(segment, stretch)
        joints = edges.joints(self.name, texts, self.shape.framed)
        if stretch is None or len(joints) < 3:
            return ()
        spans = _spans(stretch, texts)
        whole = [Span(spans[first].start, spans[behind - 1].end) for first, behind in pairwise(joints)]
        units = tuple(Unit(span, span, segment.text[span.start : span.end]) for span in whole)
        return (Region(self.name, units, True, False, "safe"),)

    def learn(self, segment: Segment, edges: Learner) -> None:
        """Has ``edges`` remember how texts stand in this string. O(length)."""
        texts = _texts(segment, self._stretch(segment))
        if texts:
            edges.observe(self.name, texts, self.shape.framed)

    def _stretch(self, segment: Segment) -> Stretch | None:
        """Where texts stand; ``None`` where the format cannot be."""
        if segment.sealed or segment.role not in self.shape.roles:
            return None
        return self.shape.stretch(segment.text)


class Learner(Protocol):
    """What remembers edges: :class:`~prefixpilot.formats.edges.EdgeStore`."""

    def observe(self, form: str, texts: Sequence[str], framed: bool) -> None:
        """Remembers a string, cut into texts. Changes the learner; never raises."""
        ...


def learn(segments: Iterable[Segment], recognisers: Iterable[Recogniser], edges: Learner) -> None:
    """Has ``edges`` remember what these strings show. Call it after the regions of a request were found, once for each
    request, with the strings as the client wrote them. O(length)."""
    weak = [recogniser for recogniser in recognisers if isinstance(recogniser, WeakRecogniser)]
    for segment in segments:
        for recogniser in weak:
            recogniser.learn(segment, edges)


def _texts(segment: Segment, stretch: Stretch | None) -> list[str]:
    """What stands between the joints of a stretch; nothing if that is less than two texts."""
    texts = segment.text[stretch.start : stretch.end].split(stretch.joint) if stretch else []
    return texts if len(texts) > 1 else []


def _spans(stretch: Stretch, texts: Sequence[str]) -> list[Span]:
    """Where each of the texts stands."""
    ends = accumulate((len(text) + len(stretch.joint) for text in texts), initial=stretch.start)
    return [Span(start, start + len(text)) for start, text in zip(ends, texts, strict=False)]


_QUESTION: Final = re.compile(r"Question: [^\n]*\nContext: ")
_INDENT: Final = 64
_ANSWER: Final = re.compile(r"\nAnswer:\s*\Z")
_DOCUMENTS: Final = re.compile(r"Documents:(?P<joint>\s+)")


def _paragraphs(text: str) -> Stretch:
    return Stretch(0, len(text), "\n\n")


def _rag_prompt(text: str) -> Stretch | None:
    """Between ``Context:`` and ``Answer:``."""
    heads = [head for at in line_starts("Question: ", text) if (head := _QUESTION.match(text, at))]
    answer = _ANSWER.search(text, max(0, text.rfind("\nAnswer:")))
    if len(heads) != 1 or answer is None or answer.start() <= heads[0].end():
        return None
    return Stretch(heads[0].end(), _stripped(text, heads[0].end(), answer.start()), "\n\n")


def _documents(text: str) -> Stretch | None:
    """Between ``Documents:`` and ``Question:``. The white space that the template puts in front of the first text is
    what it puts in front of each."""
    heads = [head for at, _ in _indented("Documents:", text) if (head := _DOCUMENTS.match(text, at))]
    ends = [line - 1 for _, line in _indented("Question:", text) if line]
    if len(heads) != 1 or len(ends) != 1 or "\n" not in heads[0]["joint"] or ends[0] <= heads[0].end():
        return None
    return Stretch(heads[0].end(), _stripped(text, heads[0].end(), ends[0]), heads[0]["joint"])


def _indented(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Where ``word`` stands with nothing but blanks in front of it in its line, and where that line begins. O(length):
    no more than :data:`_INDENT` characters are looked at."""
    for at in places(word, text):
        line = text.rfind("\n", max(0, at - _INDENT), at) + 1
        if (line or at < _INDENT) and not text[line:at].strip(" \t"):
            yield at, line


def _context_tag(text: str) -> Stretch | None:
    """Between the only pair of ``<context>`` tags, if it holds no tags itself."""
    start, end = text.find("<context>\n") + len("<context>\n"), text.find("\n</context>")
    if text.count("<context>") != 1 or text.count("</context>") != 1 or not 10 <= start < end or text[start] == "<":
        return None
    return Stretch(start, end, "\n")


def _stripped(text: str, start: int, end: int) -> int:
    """``end`` without white space in front of it."""
    return start + len(text[start:end].rstrip())


STUFF: Final = WeakShape("langchain_stuff", ("system",), _paragraphs, framed=False, marks=(("\n\n",),))
RAG_PROMPT: Final = WeakShape(
    "langchain_hub_rag_prompt",
    ("user", "system"),
    _rag_prompt,
    framed=True,
    marks=(("\nContext: ",), ("\nQuestion: ",), ("\nAnswer:",)),
)
PROMPT_BUILDER: Final = WeakShape(
    "haystack_prompt_builder", ("user", "system"), _documents, framed=True, marks=(("Documents:",), ("Question:",))
)
DIFY: Final = WeakShape("dify", ("system",), _context_tag, framed=True, marks=(("<context>\n",), ("\n</context>",)))

WEAK: Final[tuple[WeakRecogniser, ...]] = tuple(
    WeakRecogniser(shape) for shape in (RAG_PROMPT, PROMPT_BUILDER, DIFY, STUFF)
)
"""All of them; the one without a frame last."""
