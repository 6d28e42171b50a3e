"""Formats whose texts stand side by side with no mark between them: whole texts move, where other requests prove which
these are (:mod:`prefixpilot.formats.edges`).

``txtai`` (a question and texts, joined by single spaces) is not among them. The question stands in front of the
texts, so no order of theirs makes two prompts begin alike, and with nothing but spaces the question has no end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from prefixpilot.apis.base import Role, Segment
from prefixpilot.formats.base import Edges, Recogniser, Region, Unit
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
    """

    name: str
    roles: tuple[Role, ...]
    stretch: Callable[[str], Stretch | None]
    framed: bool


@dataclass(frozen=True, slots=True)
class WeakRecogniser:
    """One shape. What it finds depends on what has been met; it learns nothing itself (:func:`learn`)."""

    shape: WeakShape

    @property
    def name(self) -> str:
        """Of the format."""
        return self.shape.name

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """See :meth:`prefixpilot.formats.base.Recogniser.find`. O(length). All units movable, of whole texts."""
        spans = self._spans(segment)
        joints = edges.joints(self.name, _texts(segment, spans), self.shape.framed)
        if len(joints) < 3:
            return ()
        whole = [Span(spans[first].start, spans[behind - 1].end) for first, behind in pairwise(joints)]
        units = tuple(Unit(span, span, segment.text[span.start : span.end]) for span in whole)
        return (Region(self.name, units, True, False, "safe"),)

    def learn(self, segment: Segment, edges: Learner) -> None:
        """Has ``edges`` remember how texts stand in this string. O(length)."""
        spans = self._spans(segment)
        if spans:
            edges.observe(self.name, _texts(segment, spans), self.shape.framed)

    def _spans(self, segment: Segment) -> list[Span]:
        """Every text between two joints; none where the format cannot be."""
        if segment.sealed or segment.role not in self.shape.roles:
            return []
        stretch = self.shape.stretch(segment.text)
        spans = _cut(segment.text, stretch) if stretch else []
        return spans if len(spans) > 1 else []


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


def _texts(segment: Segment, spans: Sequence[Span]) -> list[str]:
    return [segment.text[span.start : span.end] for span in spans]


def _cut(text: str, stretch: Stretch) -> list[Span]:
    """The texts of a stretch."""
    spans: list[Span] = []
    at = stretch.start
    while (joint := text.find(stretch.joint, at, stretch.end)) >= 0:
        spans.append(Span(at, joint))
        at = joint + len(stretch.joint)
    return [*spans, Span(at, stretch.end)]


_QUESTION: Final = re.compile(r"(?:^|\n)Question: [^\n]*\nContext: ")
_ANSWER: Final = re.compile(r"\nAnswer:\s*\Z")
_DOCUMENTS: Final = re.compile(r"(?:^|\n)[ \t]*Documents:(?P<joint>\s+)")
_NEXT_QUESTION: Final = re.compile(r"\n[ \t]*Question:")


def _paragraphs(text: str) -> Stretch:
    return Stretch(0, len(text), "\n\n")


def _rag_prompt(text: str) -> Stretch | None:
    """Between ``Context:`` and ``Answer:``."""
    heads, answer = list(_QUESTION.finditer(text)), _ANSWER.search(text, max(0, text.rfind("\nAnswer:")))
    if len(heads) != 1 or answer is None or answer.start() <= heads[0].end():
        return None
    return Stretch(heads[0].end(), _stripped(text, heads[0].end(), answer.start()), "\n\n")


def _documents(text: str) -> Stretch | None:
    """Between ``Documents:`` and ``Question:``. The white space that the template puts in front of the first text is
    what it puts in front of each."""
    heads, ends = list(_DOCUMENTS.finditer(text)), list(_NEXT_QUESTION.finditer(text))
    if len(heads) != 1 or len(ends) != 1 or "\n" not in heads[0]["joint"] or ends[0].start() <= heads[0].end():
        return None
    return Stretch(heads[0].end(), _stripped(text, heads[0].end(), ends[0].start()), heads[0]["joint"])


def _context_tag(text: str) -> Stretch | None:
    """Between the only pair of ``<context>`` tags, if it holds no tags itself."""
    start, end = text.find("<context>\n") + len("<context>\n"), text.find("\n</context>")
    if text.count("<context>") != 1 or text.count("</context>") != 1 or not 10 <= start < end or text[start] == "<":
        return None
    return Stretch(start, end, "\n")


def _stripped(text: str, start: int, end: int) -> int:
    """``end`` without white space in front of it."""
    return start + len(text[start:end].rstrip())


STUFF: Final = WeakShape("langchain_stuff", ("system",), _paragraphs, framed=False)
RAG_PROMPT: Final = WeakShape("langchain_hub_rag_prompt", ("user", "system"), _rag_prompt, framed=True)
PROMPT_BUILDER: Final = WeakShape("haystack_prompt_builder", ("user", "system"), _documents, framed=True)
DIFY: Final = WeakShape("dify", ("system",), _context_tag, framed=True)

WEAK: Final[tuple[WeakRecogniser, ...]] = tuple(
    WeakRecogniser(shape) for shape in (RAG_PROMPT, PROMPT_BUILDER, DIFY, STUFF)
)
"""All of them; the one without a frame last."""
