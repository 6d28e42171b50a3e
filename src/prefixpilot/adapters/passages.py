"""The forms in which an agent's messages are sent, kept by the agent's own state: plain data, so that it can be saved.

A form is decided once, when its message is new, and sent with every later prompt. A reference in it holds only while
what it names stands above; where the history was cut, the text stands in its place again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple, NotRequired, TypedDict
from uuid import uuid4

from prefixpilot.annotations import Templates, written_label
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, ContextBlock, Plan, PlannedBlock, Request, RequestId
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import PARAGRAPH
from prefixpilot.prompts.headings import counted_on, headings_in, told_apart

MIN_CHARACTERS: Final = 200
"""Of a document in a tool's result: of a shorter one label and reference would cost more than they save."""


class Part(TypedDict):
    """A piece of a message: words, or a document.

    Keys:
        text: the words, or the text of the document.
        block: identity of the document; missing for words.
        name: of the document, as its label has it.
        reference: stands in its place while the document stands in full above; empty if it is new here.
    """

    text: str
    block: NotRequired[str]
    name: NotRequired[str]
    reference: NotRequired[str]


class Form(TypedDict):
    """How one message is sent.

    Keys:
        content: digest of the message's own text: a message that is edited is another one.
        parts: in order.
        request_id: of its plan.
        next_number: that the next label gets.
    """

    content: str
    parts: list[Part]
    request_id: str
    next_number: int


class Above(NamedTuple):
    """What stands above a message that is new.

    Attributes:
        forms: of earlier messages, oldest first.
        texts: of all messages, as their authors wrote them.
    """

    forms: Sequence[Form]
    texts: Sequence[str]


class Former:
    """Decides forms by one pilot.

    Args:
        scope: names what stands in front of the messages, if the program has several agents on one pilot.
    """

    def __init__(self, pilot: ContextPilot, scope: str = "") -> None:
        self.pilot = pilot
        self.scope = scope

    def in_front(self, content: str, documents: Sequence[str], above: Above) -> Form:
        """Documents to stand in front of a user's message, the most relevant first: in the first turn ordered, later
        those that stand above are references."""
        plan = self._plan(documents, above, record_of(above.forms))
        if not plan.turn:
            self.pilot.learn(plan)
        parts: list[Part] = []
        for planned in plan.blocks:
            parts += [_document(planned.block.text or "", planned), {"text": PARAGRAPH}]
        if plan.order_annotation is not None:
            parts.append({"text": plan.order_annotation + PARAGRAPH})
        return _form(content, parts, plan)

    def inside(self, content: str, documents: Sequence[str], above: Above) -> Form | None:
        """The result of a tool that holds documents: each gets its label, or a reference where it stands above. Nothing
        moves, and the tool's own words stay. ``None`` if no document of some length is found in it."""
        places = list(_places(content, documents))
        if not places:
            return None
        record = record_of(above.forms)
        later = replace(record, turns=max(record.turns, 1))
        plan = self._plan([content[place.start : place.stop] for place in places], above, later)
        parts: list[Part] = []
        end = 0
        for place, planned in zip(places, sorted(plan.blocks, key=lambda planned: planned.position), strict=True):
            parts += [{"text": content[end : place.start]}, _document(content[place.start : place.stop], planned)]
            end = place.stop
        return _form(content, [*parts, {"text": content[end:]}], plan)

    def _plan(self, documents: Sequence[str], above: Above, record: ConversationRecord) -> Plan:
        blocks = tuple(map(ContextBlock, documents))
        templates = self.pilot.config.templates
        record = counted_on(record, len(blocks), headings_in(above.texts, templates), templates)
        written = [*above.texts, *documents, *render(above.forms, templates)]
        request = Request(blocks, RequestId(f"prefixpilot-{uuid4().hex}"), scope=self.scope)
        return self.pilot.propose(request, told_apart(record, headings_in(written, templates)))


def _document(text: str, planned: PlannedBlock) -> Part:
    return {
        "text": text,
        "block": str(planned.block_id),
        "name": planned.label,
        "reference": planned.location_annotation or "",
    }


def _form(content: str, parts: list[Part], plan: Plan) -> Form:
    number = plan.first_number + sum(planned.location_annotation is None for planned in plan.blocks)
    return {"content": digest_of(content), "parts": parts, "request_id": plan.request_id, "next_number": number}


def _places(content: str, documents: Iterable[str]) -> Iterator[slice]:
    """Where documents stand in a text, one behind the other."""
    end = 0
    for document in documents:
        start = content.find(document, end) if len(document) >= MIN_CHARACTERS else -1
        if start >= 0:
            end = start + len(document)
            yield slice(start, end)


def digest_of(content: str) -> str:
    """What tells an edited message, as hexadecimal digits."""
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def record_of(forms: Sequence[Form]) -> ConversationRecord:
    """What stands in the messages with these forms, oldest first. O(parts)."""
    labels: dict[BlockId, str] = {}
    for form in forms:
        for part in form["parts"]:
            if "block" in part:
                labels.setdefault(part["block"], part["name"])
    number = max((form["next_number"] for form in forms), default=1)
    opener = RequestId(forms[0]["request_id"]) if forms else None
    return ConversationRecord(len(forms), MappingProxyType(labels), number, opener)


def render(forms: Iterable[Form], templates: Templates) -> Iterator[str]:
    """The text of each form, given those that stand in one prompt, oldest first. O(characters)."""
    standing: set[tuple[str, str]] = set()
    for form in forms:
        text = ""
        for part in form["parts"]:
            if "block" not in part:
                text += part["text"]
                continue
            known = part["block"], part["name"]
            if part["reference"] and known in standing:
                text += part["reference"]
            else:
                standing.add(known)
                line = "" if not text or text.endswith("\n") else "\n"
                text += f"{line}{written_label(part['name'], templates)}\n{part['text']}"
        yield text
