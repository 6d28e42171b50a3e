"""New passages: a message, or a region of system text, that no engine has had yet, and the form in which it is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from prefixpilot.apis.base import Segment
from prefixpilot.core import Plan
from prefixpilot.dedup.fences import fences, may_have_fences
from prefixpilot.formats.base import Region, Unit
from prefixpilot.pieces import UNCHANGED, Form, Slot, Span, fill
from prefixpilot.proxy.memory.forms import NamedText, Sent, Target
from prefixpilot.proxy.ordinary.arrange import Arranged, Orders, Route, arrange
from prefixpilot.proxy.ordinary.notes import OFF, Note, fixed
from prefixpilot.proxy.ordinary.repeats import Desk, Replaced

Recognise = Callable[[Segment], tuple[Region, ...]]


class Treated(NamedTuple):
    """A string, and what is sent in its place.

    Attributes:
        form: of it.
        texts, targets: as in :class:`prefixpilot.proxy.memory.forms.Sent`.
        plans: to learn.
        repeats: annotations in the place of texts.
        moved: regions in another order.
        saved: tokens, net of annotations.
        notes: of each region.
    """

    form: Form
    texts: tuple[NamedText, ...] = ()
    targets: tuple[Target, ...] = ()
    plans: tuple[Plan, ...] = ()
    repeats: int = 0
    moved: int = 0
    saved: int = 0
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Orderer:
    """How regions are ordered here.

    Attributes:
        route: gives the route of a region from the form of all that stands before it in its string.
        orders: what a pilot is asked.
    """

    route: Callable[[Segment, Sequence[Slot], int], Route]
    orders: Orders


def as_sent(segments: Sequence[Segment], recognise: Recognise, desk: Desk) -> Sent:
    """A message that goes as the client sent it: what stands in it under a name."""
    texts: list[NamedText] = []
    for i, segment in enumerate(segments):
        if segment.role == "tool":
            texts.append(desk.result_text(segment, i))
        for region in recognise(segment):
            texts += (desk.unit_text(unit, region, segment, i) for unit in region.units)
    return Sent((UNCHANGED,) * len(segments), tuple(texts))


def sent_of(treated: Sequence[Treated]) -> Sent:
    """What is remembered of the strings of a passage."""
    texts: tuple[NamedText, ...] = tuple(text for each in treated for text in each.texts)
    targets = tuple(target for each in treated for target in each.targets)
    return Sent(tuple(each.form for each in treated), texts, targets)


@dataclass(slots=True)
class Passage:
    """Treats the strings of a passage one after the other. What stands in full goes into the catalogue at once."""

    desk: Desk
    orderer: Orderer | None
    _texts: list[NamedText] = field(default_factory=list)
    _targets: list[Target] = field(default_factory=list)
    _plans: list[Plan] = field(default_factory=list)
    _slots: list[Slot] = field(default_factory=list)
    _notes: list[Note] = field(default_factory=list)
    _saved: int = 0
    _repeats: int = 0
    _moved: int = 0

    def treat(self, segment: Segment, regions: Sequence[Region], index: int) -> Treated:
        """One string; ``index`` is its place in the message. A sealed one is only read, and has no regions."""
        self._start()
        self.desk.catalogue.read_string(segment)
        if segment.role == "tool":
            self._treat_result(segment, regions, index)
        else:
            self._treat_regions(regions, segment, index)
        return Treated(
            fill(len(segment.text), self._slots),
            tuple(self._texts),
            tuple(self._targets),
            tuple(self._plans),
            self._repeats,
            self._moved,
            self._saved,
            tuple(self._notes),
        )

    def _start(self) -> None:
        for collected in (self._texts, self._targets, self._plans, self._slots, self._notes):
            collected.clear()
        self._saved = self._repeats = self._moved = 0

    def _treat_result(self, segment: Segment, regions: Sequence[Region], index: int) -> None:
        whole = self.desk.result_text(segment, index)
        self.desk.catalogue.own([whole])
        replaced = None if segment.sealed else self.desk.result(segment, whole, structured=bool(regions))
        if replaced is not None:
            self._replace(whole.body, replaced)
        else:
            self._treat_regions(regions, segment, index)
        if self._slots:
            whole = replace(whole, full=False, chunked=False)
        self.desk.catalogue.add_result(segment, whole.digest, self.desk.passage, full=whole.full)
        self._add(whole, segment)

    def _treat_regions(self, regions: Sequence[Region], segment: Segment, index: int) -> None:
        """All texts of the string are known before any of them is named."""
        known = [[self.desk.unit_text(unit, region, segment, index) for unit in region.units] for region in regions]
        for texts in known:
            self.desk.catalogue.own(texts)
        for region, texts in zip(regions, known, strict=True):
            self._treat_region(region, texts, segment)

    def _treat_region(self, region: Region, texts: Sequence[NamedText], segment: Segment) -> None:
        pieces: list[Form] = []
        repeated: list[bool] = []
        for unit, text in zip(region.units, texts, strict=True):
            replaced = self._treat_unit(unit, text, region, segment)
            pieces.append((unit.span,) if replaced is None else replaced.pieces)
            repeated.append(replaced is not None)
        why = OFF if region.movable else fixed(region, segment.role)
        arranged = Arranged(tuple(range(len(pieces))), why=why)
        if self.orderer is not None and region.movable:
            route = partial(self.orderer.route, segment, self._slots, region.units[0].span.start)
            desk = self.desk
            arranged = arrange(
                region, segment.text, repeated, route, self.orderer.orders, desk.settings, desk.count, desk.templates
            )
        self._place(region, pieces, repeated, arranged)
        note = Note(segment.pointer, segment.role, region.format, len(pieces))
        moved = arranged.order != tuple(range(len(pieces)))
        self._notes.append(replace(note, moved=moved, replaced=sum(repeated), why="" if moved else arranged.why))

    def _treat_unit(self, unit: Unit, text: NamedText, region: Region, segment: Segment) -> Replaced | None:
        replaced = self.desk.unit(unit, text, region, segment)
        if replaced is not None:
            text = replace(text, full=False, chunked=False)
            self._targets += replaced.targets
            self._saved += replaced.saved
            self._repeats += len(replaced.targets)
        self._add(text, segment)
        return replaced

    def _place(self, region: Region, pieces: Sequence[Form], repeated: Sequence[bool], arranged: Arranged) -> None:
        for place, source in enumerate(arranged.order):
            if source != place or repeated[source]:
                self._slots.append(Slot(region.units[place].span, pieces[source]))
        if arranged.order != tuple(range(len(pieces))):
            self._moved += 1
        if arranged.annotation:
            end = region.units[-1].span.end
            self._slots.append(Slot(Span(end, end), (arranged.annotation,)))
        if arranged.plan is not None:
            self._plans.append(arranged.plan)

    def _replace(self, span: Span, replaced: Replaced) -> None:
        self._slots.append(Slot(span, replaced.pieces))
        self._targets += replaced.targets
        self._saved += replaced.saved
        self._repeats += len(replaced.targets)

    def _add(self, text: NamedText, segment: Segment) -> None:
        self._texts.append(text)
        self.desk.catalogue.add(text, segment, self.desk.passage)


def outside_fences(regions: Sequence[Region], text: str) -> tuple[Region, ...]:
    """Those that no code fence holds: text that is quoted is not to be moved."""
    if not regions or not may_have_fences(text):
        return tuple(regions)
    fenced = fences(text)
    return tuple(region for region in regions if not any(_inside(region, fence) for fence in fenced))


def parts_of(regions: Sequence[Region], segment: Segment) -> tuple[Region, ...]:
    """The regions of a tool result but for one that is all of it: that is looked at as a whole, by its call."""
    if segment.role != "tool":
        return tuple(regions)
    return tuple(r for r in regions if len(r.units) > 1 or _cut(segment, r.units[0].body) != segment.text.strip())


def _cut(segment: Segment, span: Span) -> str:
    return segment.text[span.start : span.end].strip()


def _inside(region: Region, fence: Span) -> bool:
    return fence.start < region.units[0].span.start and region.units[-1].span.end < fence.end
