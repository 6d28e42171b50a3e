"""What is sent in the place of the strings of an ordinary prompt, and what is remembered of it.

::

    system text ......... each region: the form it had behind this first message, else treated
    known messages ...... the form in which they were sent, if all that it points to stands above
    older ones .......... as the client sent them
    new ones ............ behind the last assistant message: treated
    assistant messages .. never touched

All of it is decided in the order in which the model reads it, against one catalogue of what stands above. So an
annotation can only ever point to what stands in this very prompt, earlier (invariants 1 and 4a).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates
from prefixpilot.apis.base import Message, Pointer, Segment
from prefixpilot.blocks import estimate_tokens
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import Plan, RequestId
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.formats.arrays import ArrayRegion, find_arrays
from prefixpilot.formats.base import Region
from prefixpilot.pieces import UNCHANGED, Form, Slot, Span, fill
from prefixpilot.proxy.memory.forms import FormsLedger, Sender, Sent
from prefixpilot.proxy.ordinary.arrange import Orders, Route, request
from prefixpilot.proxy.ordinary.catalogue import Catalogue
from prefixpilot.proxy.ordinary.chain import Links, joined
from prefixpilot.proxy.ordinary.chunk_memo import ChunkMemo
from prefixpilot.proxy.ordinary.decision import Asked, Decision, Record
from prefixpilot.proxy.ordinary.notes import Note, of_history
from prefixpilot.proxy.ordinary.passages import (
    Orderer,
    Passage,
    Recognise,
    Treated,
    as_sent,
    outside_fences,
    parts_of,
    sent_of,
)
from prefixpilot.proxy.ordinary.repeats import Desk
from prefixpilot.proxy.ordinary.scope import Before
from prefixpilot.proxy.ordinary.settings import EVERYTHING, OrdinarySettings
from prefixpilot.proxy.steps import Planner
from prefixpilot.volatile.rules import appended


class Ordinary:
    """Treats requests that know nothing of us. ``treat`` changes nothing that is shared but block records of the pilot.

    Args:
        pilot: plans regions; its own order annotation is not used.
        ledger: see :class:`prefixpilot.proxy.memory.forms.FormsLedger`.
        recognise: the regions of a string, in order, not overlapping.
        count_tokens: length of a text in tokens; without it lengths are estimated.
    """

    def __init__(
        self,
        settings: OrdinarySettings,
        pilot: Planner,
        ledger: FormsLedger,
        recognise: Recognise,
        count_tokens: Callable[[str], int] = estimate_tokens,
        templates: Templates = DEFAULT_TEMPLATES,
    ) -> None:
        self.settings = settings
        self.pilot = pilot
        self.ledger = ledger
        self.recognise = recognise
        self.count = count_tokens
        self.templates = templates
        self.memo = ChunkMemo()

    def treat(self, asked: Asked, recognise: Recognise | None = None) -> Decision:
        """What to send. O(characters), and a plan for each region that may be ordered.

        ``recognise`` stands in the place of the one given at the beginning.
        """
        return _Walk(self, asked, recognise or self.recognise).run()

    def learn(self, treatment: Decision) -> None:
        """The engine has it now."""
        for plan in treatment.plans:
            self.pilot.learn(plan)
        for record in treatment.records:
            self.ledger.record(record.key, treatment.sender, record.sent, replace=treatment.replaces)


class _Walk:
    """One prompt, from its beginning to its end."""

    def __init__(self, ordinary: Ordinary, asked: Asked, recognise: Recognise) -> None:
        self._ordinary = ordinary
        self._recognise = recognise
        self._asked = asked
        self._prompt = asked.prompt
        self._first_new = asked.prompt.first_new
        self._links = Links.of(asked.prompt)
        self._catalogue = Catalogue.of(asked.prompt, ordinary.memo)
        self._sender = Sender(asked.who, self._links.system)
        self._tenant = text_digest(asked.tenant)
        self._forms: dict[Pointer, Form] = {}
        self._orders: dict[Pointer, tuple[int, ...]] = {}
        self._array_plans: list[Plan] = []
        self._records: list[Record] = []
        self._treated: list[Treated] = []
        self._plans = 0
        self._passages = 0
        self._recalled = 0
        self._answered = False
        self._notes: list[Note] = []
        self._before = Before(self._arrays())

    def run(self) -> Decision:
        """All messages."""
        for index, message in enumerate(self._prompt.messages):
            forms = self._ended(message, self._message(index, message))
            for segment, form in zip(message.segments, forms, strict=True):
                if form != UNCHANGED:
                    self._forms[segment.pointer] = form
            self._before.add(message, self._links.digests[index], forms)
            self._answered = self._answered or message.role == "assistant"
        return Decision(
            self._forms,
            self._sender,
            tuple(self._records),
            (*self._array_plans, *(plan for treated in self._treated for plan in treated.plans)),
            sum(treated.repeats for treated in self._treated),
            sum(treated.moved for treated in self._treated),
            sum(treated.saved for treated in self._treated),
            self._recalled,
            self._orders,
            self._asked.dedupe,
            (*self._notes, *(note for treated in self._treated for note in treated.notes)),
        )

    def _arrays(self) -> Mapping[str, Any]:
        """The body with its top-level documents in the order in which they are sent."""
        body = dict(self._prompt.body)
        for region in find_arrays(self._prompt, self._ordinary.settings.free_models):
            for unit in region.units:
                self._catalogue.read_text(unit.whole)
            if region.movable and len(region.pointer) == 1 and self._wants(region.format) and self._may_order():
                name = str(region.pointer[0])
                given = body.pop(name)
                order = self._array_order(region, Before(body).digest)
                body[name] = [given[i] for i in order]
                if order != tuple(range(region.size)):
                    self._orders[region.pointer] = order
        return body

    def _array_order(self, region: ArrayRegion, scope: str) -> tuple[int, ...]:
        """As it was behind this first message, else as planned. Its form counts elements, not characters."""
        texts = [unit.whole for unit in region.units]
        key = self._key(b"array", self._links.first, region.format.encode(), *map(text_digest, texts))
        sent = self._recall(key)
        if sent is None:
            plan = self._ordinary.pilot.propose(request(texts, self._new_route(scope)))
            self._array_plans.append(replace(plan, order_annotation=None, annotation_tokens=0))
            sent = Sent((tuple(Span(i, i + 1) for i in plan.order),))
        self._records.append(Record(key, sent))
        return tuple(piece.start for piece in sent.forms[0] if isinstance(piece, Span))

    def _message(self, index: int, message: Message) -> Sequence[Form]:
        link = self._links.links[index]
        if message.role == "system":
            return self._system(message)
        if link is None:
            self._catalogue.read(message)
            return (UNCHANGED,) * len(message.segments)
        self._passages += 1
        key = self._key(link)
        sent = self._recall(key)
        if sent is not None and len(sent.forms) == len(message.segments):
            self._recalled += any(form != UNCHANGED for form in sent.forms)
            self._catalogue.add_sent(sent, message.segments, self._passages)
        elif index < self._first_new:
            sent = as_sent(message.segments, self._regions, self._desk())
            self._catalogue.add_sent(sent, message.segments, self._passages)
        else:
            sent = self._new(message)
            self._records.append(Record(key, sent))
            return sent.forms
        if self._asked.explain:
            self._notes += of_history(message.segments, [self._regions(segment) for segment in message.segments])
        self._records.append(Record(key, sent))
        return sent.forms

    def _ended(self, message: Message, forms: Sequence[Form]) -> Sequence[Form]:
        endings = self._asked.endings
        if not endings:
            return forms
        for segment in message.segments:
            if segment.pointer in endings:
                self._catalogue.read_text(endings[segment.pointer])
        return [
            appended(form, segment.text, endings[segment.pointer]) if segment.pointer in endings else form
            for segment, form in zip(message.segments, forms, strict=True)
        ]

    def _new(self, message: Message) -> Sent:
        """A message that no engine has had."""
        forms: list[Form] = []
        passage = Passage(self._desk(), self._orderer(message, forms))
        treated = []
        for i, segment in enumerate(message.segments):
            treated.append(passage.treat(segment, self._regions(segment), i))
            forms.append(treated[-1].form)
        self._treated += treated
        return sent_of(treated)

    def _system(self, message: Message) -> Sequence[Form]:
        forms: list[Form] = []
        for segment in message.segments:
            slots: list[Slot] = []
            at = 0
            for region in self._regions(segment):
                self._catalogue.read_text(segment.text[at : region.units[0].span.start])
                slots += self._system_region(message, segment, region, forms, slots)
                at = region.units[-1].span.end
            self._catalogue.read_text(segment.text[at:])
            forms.append(fill(len(segment.text), slots))
        return forms

    def _system_region(
        self, message: Message, segment: Segment, region: Region, forms: Sequence[Form], slots: Sequence[Slot]
    ) -> Iterable[Slot]:
        """One region, known by its own content: its form counts from its own beginning."""
        start, end = region.units[0].span.start, region.units[-1].span.end
        part = replace(segment, text=segment.text[start:end])
        own = _shifted(region, -start)
        key = self._key(b"system", self._links.first, region.format.encode(), text_digest(part.text))
        self._passages += 1
        sent = self._recall(key)
        if sent is not None:
            self._recalled += sent.forms[0] != UNCHANGED
            self._notes += of_history([segment], [[region]])
            self._catalogue.add_sent(sent, (part,), self._passages)
        else:

            def route(_: Segment, __: Sequence[Slot], ___: int) -> Route:
                return self._route(message, segment, forms, slots, start)

            treated = Passage(self._desk(), self._ordering(route)).treat(part, [own], 0)
            self._treated.append(treated)
            sent = sent_of([treated])
        self._records.append(Record(key, sent))
        form = sent.forms[0]
        return () if form == UNCHANGED else (Slot(Span(start, end), _moved(form, start)),)

    # -- what it needs

    def _key(self, *parts: bytes) -> bytes:
        return joined([self._tenant, *parts])

    def _recall(self, key: bytes) -> Sent | None:
        holds = self._catalogue.holds
        dedupe = self._asked.dedupe
        return self._ordinary.ledger.recall(
            key, self._sender, lambda sent: holds(sent.targets) if dedupe else not sent.targets, own=self._asked.own
        )

    def _desk(self) -> Desk:
        settings = self._ordinary.settings
        dedupe = settings.dedupe and self._asked.dedupe and self._asked.fresh
        return Desk(
            settings,
            self._catalogue,
            self._passages,
            dedupe,
            dedupe and self._answered and settings.partial != "off",
            self._ordinary.count,
            self._ordinary.templates,
        )

    def _orderer(self, message: Message, forms: Sequence[Form]) -> Orderer | None:
        def route(segment: Segment, slots: Sequence[Slot], end: int) -> Route:
            return self._route(message, segment, forms, slots, end)

        return self._ordering(route)

    def _ordering(self, route: Callable[[Segment, Sequence[Slot], int], Route]) -> Orderer | None:
        """Behind an answer too: few prompts share all that stands before a region there, but examples and branches do.
        A tree that nobody shares leaves the order as it is."""
        pilot = self._ordinary.pilot
        return Orderer(route, Orders(pilot.propose, pilot.given_cached)) if self._may_order() else None

    def _may_order(self) -> bool:
        asked = self._asked
        return self._ordinary.settings.order and asked.order and asked.fresh and not self._prompt.unseen

    def _route(
        self, message: Message, segment: Segment, forms: Sequence[Form], slots: Iterable[Slot], end: int
    ) -> Route:
        return self._new_route(self._before.scope(message, segment, forms, slots, end))

    def _new_route(self, scope: str) -> Route:
        self._plans += 1
        suffix = "" if self._plans == 1 else f"#{self._plans}"
        limit = self._asked.max_displacement
        constraints = UNCONSTRAINED if limit is None else Constraints(max_displacement=limit)
        return Route(RequestId(self._asked.request_id + suffix), self._asked.tenant, scope, constraints)

    def _regions(self, segment: Segment) -> tuple[Region, ...]:
        if segment.sealed:
            return ()
        regions = parts_of(outside_fences(self._recognise(segment), segment.text), segment)
        return tuple(region for region in regions if self._wants(region.format))

    def _wants(self, form: str) -> bool:
        """Whether a format is on. Those of the user's own recognisers are named too."""
        wanted = self._asked.recognise
        if wanted is None:
            wanted = self._ordinary.settings.recognise
        return EVERYTHING in wanted or form in wanted


def _shifted(region: Region, by: int) -> Region:
    units = [replace(unit, span=_span(unit.span, by), body=_span(unit.body, by)) for unit in region.units]
    return replace(region, units=tuple(units))


def _span(span: Span, by: int) -> Span:
    return Span(span.start + by, span.end + by)


def _moved(form: Form, by: int) -> Form:
    return tuple(piece if isinstance(piece, str) else _span(piece, by) for piece in form)
