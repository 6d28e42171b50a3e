"""Which texts of a new message become annotations (Algorithm 3, in place), and which stay as they are. Pure.

A text is replaced only if an equal one stands in full above, can be named in words that mean it alone, and the
annotation saves tokens net. What is inside a code fence stays. The label and the wrapper of the later text stay.

The loop guard: the first equal tool result is replaced; from the second on each stands in full, since a model that asks
again does not see what it needs. The same holds for a result that is one document with a wrapper, and for documents
inside the result of a call that was made twice before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates, repeat_annotation, run_annotation
from prefixpilot.apis.base import Segment
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.dedup.fences import clear_of, cuts, fences, may_have_fences
from prefixpilot.dedup.runs import ends_of_run
from prefixpilot.formats.base import Literals, Region, Repeats, Unit, written
from prefixpilot.pieces import Form, Piece, Span
from prefixpilot.proxy.memory.forms import NamedText, Target
from prefixpilot.proxy.ordinary.catalogue import Catalogue, Name, Standing
from prefixpilot.proxy.ordinary.settings import OrdinarySettings

RESULTS_REPLACED: Final = 1
"""Equal tool results that become annotations, before the guard lets them stand."""
_CHARACTERS_PER_TOKEN: Final = 4


class Replaced(NamedTuple):
    """What stands in the place of a unit or of a tool result.

    Attributes:
        pieces: of it, wrapper included.
        targets: what the annotations in it point to.
        saved: tokens, net.
        whole: all of the text has become one annotation.
    """

    pieces: Form
    targets: tuple[Target, ...]
    saved: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Desk:
    """What is needed to treat the texts of a message or region of system text.

    Attributes:
        passage: its number.
        dedupe: whether annotations are made at all.
        partial: whether parts of texts may become annotations here.
    """

    settings: OrdinarySettings
    catalogue: Catalogue
    passage: int
    dedupe: bool
    partial: bool
    count: Callable[[str], int]
    templates: Templates = DEFAULT_TEMPLATES
    _fenced: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    _flattened: dict[bytes, str] = field(default_factory=dict)

    # -- texts, as they are known

    def unit_text(self, unit: Unit, region: Region, segment: Segment, index: int) -> NamedText:
        """What is kept of a unit; ``index`` is that of its string in the message."""
        body = segment.text[unit.body.start : unit.body.end]
        plain = region.literal == "text" and region.repeats in ("safe", "keep-label")
        raw = text_digest(body)
        digest = raw if unit.text == body else text_digest(unit.text)
        chunked = plain and self._chunked(body)
        return NamedText(index, unit.span, unit.body, digest, raw, True, unit.label, chunked=chunked)

    def result_text(self, segment: Segment, index: int) -> NamedText:
        """What is kept of a tool result as a whole."""
        digest = text_digest(segment.text)
        chunked = self.settings.partial == "all" and is_plain(segment.text) and self._chunked(segment.text)
        whole = Span(0, len(segment.text))
        return NamedText(index, whole, whole, digest, digest, True, None, True, chunked)

    def _chunked(self, body: str) -> bool:
        return self.settings.partial != "off" and len(body) >= self._least

    @property
    def _least(self) -> int:
        return self.settings.min_run_tokens * _CHARACTERS_PER_TOKEN

    # -- what becomes of them

    def result(self, segment: Segment, text: NamedText, *, structured: bool) -> Replaced | None:
        """A tool result that an earlier one equals, or that holds long parts of others.

        ``structured``: units are found in it, which are looked at one by one if the whole stays.
        """
        if not self.dedupe:
            return None
        standing = self.catalogue.find(text.digest)
        if standing is not None and standing.message != segment.message:
            if self.catalogue.times(text.digest) > RESULTS_REPLACED:
                return None
            return self._repeat(text.body, text, standing, segment, "text")
        parts = self.partial and self.settings.partial == "all" and not structured
        if parts and text.chunked and not self.catalogue.made(segment):
            return self._runs(text.body, text, segment)
        return None

    def unit(self, unit: Unit, text: NamedText, region: Region, segment: Segment) -> Replaced | None:
        """A unit whose body stands above, or holds long parts of others."""
        if not self.dedupe or self._guarded(text, region, segment) or region.repeats == "no":
            return None
        standing = self.catalogue.find(text.digest)
        if standing is not None:
            return self._repeat(unit.span, text, standing, segment, region.literal, region.repeats)
        return self._runs(unit.span, text, segment) if self.partial and text.chunked else None

    def _guarded(self, text: NamedText, region: Region, segment: Segment) -> bool:
        if segment.role != "tool":
            return False
        times = self.catalogue.seen(text.digest) if len(region.units) == 1 else 0
        return max(times, self.catalogue.made(segment)) > RESULTS_REPLACED

    def _repeat(
        self,
        span: Span,
        text: NamedText,
        standing: Standing,
        segment: Segment,
        literal: Literals,
        repeats: Repeats = "repeat-only",
    ) -> Replaced | None:
        if repeats == "repeat-only" and (standing.message == segment.message or standing.raw != text.raw):
            return None
        name = None if cuts(text.body, self._fences(segment)) else self.catalogue.name(standing, segment.role)
        if name is None:
            return None
        words = written(repeat_annotation(name.text, self.templates), literal)
        saved = self.count(segment.text[text.body.start : text.body.end]) - self.count(words)
        if saved < self.settings.min_saving_tokens:
            return None
        pieces = (Span(span.start, text.body.start), words, Span(text.body.end, span.end))
        return Replaced(_filled(pieces), (self._target(standing.digest, name),), saved, True)

    def _runs(self, span: Span, text: NamedText, segment: Segment) -> Replaced | None:
        pieces: list[Piece] = []
        targets = []
        saved, at, fenced = 0, span.start, self._fences(segment)
        for run, standing in self.catalogue.runs(text, segment, self._least):
            part = Span(text.body.start + run.start, text.body.start + run.end)
            edited = text.label is not None and text.label == standing.label
            name = self.catalogue.name(standing, segment.role) if clear_of(part, fenced) and not edited else None
            run_text = segment.text[part.start : part.end]
            stripped = run_text.rstrip()
            ends = None if name is None else ends_of_run(stripped, self._flat(standing))
            if name is None or ends is None:
                continue
            words = run_annotation(name.text, *ends, self.templates)
            gain = self.count(stripped) - self.count(words)
            if gain < self.settings.min_saving_tokens:
                continue
            pieces += [Span(at, part.start), words]
            targets.append(self._target(standing.digest, name))
            saved, at = saved + gain, part.end - (len(run_text) - len(stripped))
        if not targets:
            return None
        return Replaced(_filled((*pieces, Span(at, span.end))), tuple(targets), saved, False)

    def _fences(self, segment: Segment) -> tuple[Span, ...]:
        """Of a string, found once."""
        known = self._fenced.get(segment.text)
        if known is None:
            known = self._fenced[segment.text] = fences(segment.text) if may_have_fences(segment.text) else ()
        return known

    def _flat(self, standing: Standing) -> str:
        """A text that stands above, a space between its words; made once."""
        known = self._flattened.get(standing.raw)
        if known is None:
            body = standing.text.body
            known = self._flattened[standing.raw] = " ".join(standing.segment.text[body.start : body.end].split())
        return known

    def _target(self, digest: bytes, name: Name) -> Target:
        return Target(digest, name.text, name.passage == self.passage, name.words, name.label, name.call)


def is_plain(text: str) -> bool:
    """Whether a tool result is text, not data: it does not begin as JSON, XML or HTML do."""
    return text.lstrip()[:1] not in ("{", "[", "<")


def _filled(pieces: tuple[Piece, ...]) -> Form:
    return tuple(piece for piece in pieces if isinstance(piece, str) or piece.start < piece.end)
