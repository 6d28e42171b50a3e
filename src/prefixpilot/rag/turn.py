"""A turn of a conversation, without I/O: what is sent for it, and what the conversation is once it is answered. Pure.

The prompt is the proxy's: blocks in front of the user's words, rendered by :func:`prefixpilot.render_blocks`. Earlier
turns are sent again as they were sent, byte for byte, so that turn n's prompt is a prefix of turn n+1's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from prefixpilot.annotations import free_number
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import ContextBlock, Plan, Request, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.headings import headings_in, told_apart
from prefixpilot.prompts.request import BlocksRequest, parse_request
from prefixpilot.rag.tool_results import ToolCall, ToolResults

Message: TypeAlias = Mapping[str, Any]
"""A message of the Chat Completions API."""

NO_SOURCES: Mapping[str, ContextBlock] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class History:
    """What a conversation has come to. Immutable: a branch shares its trunk.

    Attributes:
        messages: all of them, as sent and as answered.
        record: the blocks that stand in full in them.
        sources: those blocks, by label.
        results: what tools returned in them.
    """

    messages: tuple[Message, ...] = ()
    record: ConversationRecord = NEW_CONVERSATION
    sources: Mapping[str, ContextBlock] = field(default_factory=lambda: NO_SOURCES)
    results: ToolResults = field(default_factory=ToolResults)


class Asked(NamedTuple):
    """What one turn asks.

    Attributes:
        fields: the body's members but for ``messages``: they are part of the scope, since the engine's KV depends on
            some of them.
        blocks: the most relevant first.
    """

    question: str
    blocks: tuple[ContextBlock, ...]
    request_id: str
    fields: Mapping[str, Any]
    constraints: Constraints = UNCONSTRAINED


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn under way. Immutable: a call that fails leaves the history as it was.

    Attributes:
        history: before this turn.
        plan: of its blocks.
        messages: what is sent next.
        results: what tools returned, in this turn too.
        rounds: of tools, so far.
    """

    history: History
    plan: Plan
    messages: tuple[Message, ...]
    results: ToolResults
    rounds: int = 0

    @property
    def sources(self) -> Mapping[str, ContextBlock]:
        """Blocks in full by label, those of this turn too. An earlier turn's label is never given again."""
        own = {b.label: b.block for b in self.plan.blocks if b.location_annotation is None}
        return MappingProxyType({**self.history.sources, **own})

    def after_tools(self, reply: Message, results: Sequence[tuple[ToolCall, str]]) -> Turn:
        """The model called tools, and this is what they returned. A result that stands above is named, not repeated."""
        messages, known = [*self.messages, reply], self.results
        for call, text in results:
            sent = known.sent(text, self.plan.templates)
            messages.append({"role": "tool", "tool_call_id": call.call_id, "content": sent})
            known = known.after(call, text)
        return replace(self, messages=tuple(messages), results=known, rounds=self.rounds + 1)

    def done(self, reply: Message) -> History:
        """The conversation once the engine has answered."""
        record = self.history.record
        if self.plan.blocks:
            record = record.after(self.plan)
        return History((*self.messages, reply), record, self.sources, self.results)


def begin(system: str | None) -> History:
    """A conversation that begins with this system text."""
    return History() if system is None else History(({"role": "system", "content": system},))


def prepare(pilot: ContextPilot, history: History, asked: Asked) -> Turn:
    """Plan a turn and render it; learn nothing. O(bytes of the conversation).

    Raises:
        InvalidRequestError: no question, or a block without text.
    """
    if not isinstance(asked.question, str) or not asked.question:
        raise InvalidRequestError("question", f"is {asked.question!r}", "give a non-empty str")
    for position, block in enumerate(asked.blocks):
        if isinstance(block, ContextBlock) and not block.text:
            raise InvalidRequestError(f"blocks[{position}].text", "is missing or empty", "give every block a text")
    messages = [*history.messages, {"role": "user", "content": asked.question}]
    read = parse_request({**asked.fields, "messages": messages}, history=True)
    assert read is not None  # it has a user message
    plan = _plan(pilot, history, asked, read)
    rendered = read.render(render_blocks(plan))["messages"]
    return Turn(history, plan, tuple(rendered), history.results)


def _plan(pilot: ContextPilot, history: History, asked: Asked, read: BlocksRequest) -> Plan:
    request = Request(asked.blocks, RequestId(asked.request_id), scope=read.scope(), constraints=asked.constraints)
    if not asked.blocks:
        return pilot.as_given(request, history.record)
    blocks = chain.from_iterable((block.text or "", block.title or "") for block in asked.blocks)
    texts = [asked.question, *_texts(history.messages), *blocks]
    record = told_apart(history.record, headings_in(texts, pilot.config.templates))
    first = free_number(record.next_number, len(asked.blocks), texts, pilot.config.templates)
    return pilot.propose(request, replace(record, next_number=first))


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
