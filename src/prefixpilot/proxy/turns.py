"""A turn of a conversation: what is known of its past, what stands in front of it, and what is recorded of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from prefixpilot.annotations import DEFAULT_TEMPLATES
from prefixpilot.blocks import text_digest
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import Plan, Request
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import Edit, JsonText, SetText
from prefixpilot.prompts.blocks import plain_text
from prefixpilot.prompts.request import BlocksRequest
from prefixpilot.proxy.call import MAX_DISPLACEMENT, Call, Options
from prefixpilot.proxy.forward import NOTHING_TO_LEARN, Ticket
from prefixpilot.proxy.memory.history import History
from prefixpilot.proxy.memory.records import (
    NOTHING_RESTORED,
    Brought,
    LedgerKey,
    Restoration,
    Span,
    Turn,
    without_texts,
)
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Said
from prefixpilot.proxy.memory.window import text_bytes
from prefixpilot.proxy.preface import Prefaced
from prefixpilot.proxy.steps import Failed
from prefixpilot.proxy.windows import Windows


@dataclass(frozen=True, slots=True)
class PromptSize:
    """What a prompt takes of the engine's window, without the texts of earlier turns.

    Attributes:
        model: that is asked.
        client_bytes: of the client's own text.
        own_bytes: of that and of the blocks that come with it.
        window_bytes: that a prompt may have.
    """

    model: str
    client_bytes: int
    own_bytes: int
    window_bytes: int | None

    @classmethod
    def of(cls, asked: BlocksRequest, windows: Windows) -> PromptSize | None:
        """``None`` where the window is not known. O(bytes)."""
        model = asked.body.get("model")
        model = model if isinstance(model, str) else ""
        window_bytes = windows.bytes(model, _answer_tokens(asked.body))
        if window_bytes is None:
            return None
        client = sum(text_bytes(segment.text) for segment in asked.prompt.segments())
        blocks = sum(text_bytes(block.text or "") + text_bytes(block.title or "") for block in asked.blocks)
        return cls(model, client, client + blocks, window_bytes)


def _answer_tokens(body: Mapping[str, Any]) -> int:
    """Tokens that the client wants to leave for the answer."""
    asked = (body.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return next((value for value in asked if type(value) is int and value > 0), 0)


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a request's conversation.

    Attributes:
        key: ``None`` if the request stands alone.
        history: ``None`` with ``key``, and if the ledger failed.
        size: of the prompt, where the engine's window is known.
        unseen: earlier turns are kept by the server (Responses), with their blocks: nothing is known of them here.
    """

    key: LedgerKey | None = None
    history: History | None = None
    restored: Restoration = NOTHING_RESTORED
    unseen: bool = False
    size: PromptSize | None = None

    @property
    def heard(self) -> Said:
        """The client's copy of the reply to the newest restored turn."""
        if self.history is None or not self.restored.turns:
            return NOTHING_SAID
        return self.history.reply_to(max(self.restored.turns))

    def counted(self, text: str) -> tuple[str, int] | None:
        """Model and bytes of the prompt that has ``text`` in front of its newest user message; ``None``: not known."""
        if self.size is None:
            return None
        restored = sum(text_bytes(turn.text) for turn in self.restored.turns.values())
        return self.size.model, self.size.client_bytes + restored + text_bytes(text)


_BLOCK: Final = attrgetter("block")

ALONE: Final = Past()


@dataclass(frozen=True, slots=True)
class Draft:
    """A request that has been read, before it is planned.

    Attributes:
        source: the text of its body.
        past: or what failed on the way to it.
        request: to be planned together with others; ``None`` if it is not a first turn whose blocks may be ordered.
        front: how its front is kept steady; ``asked`` reads so already. ``None``: it stays.
    """

    call: Call
    options: Options
    asked: BlocksRequest
    source: JsonText
    past: Past | Failed
    request: Request | None = None
    front: Prefaced | None = None

    @property
    def front_edits(self) -> tuple[Edit, ...]:
        """The edits that keep the front steady, of the client's body."""
        return () if self.front is None else self.front.edits

    @property
    def stable(self) -> int | None:
        """How many messages the client will send again as they are sent now; with blocks only if it names the
        conversation."""
        messages = self.asked.body.get("messages")
        if self.options.conversation is not None and isinstance(messages, list):
            return len(messages)
        newest = self.asked.newest_user
        at = self.asked.prompt.messages[newest].pointer if newest >= 0 and self.asked.blocks else ()
        return at[1] if len(at) > 1 and isinstance(at[1], int) else None

    def ended(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Edits of the client's body, and the exact times behind user messages."""
        return tuple(edits) if self.front is None else self.front.steadied.ended(edits)


@dataclass(frozen=True, slots=True)
class Planned:
    """This turn's text, and what comes of it.

    Attributes:
        text: to put in front of the newest user message.
        labels: of the request's blocks, by the client's position.
        plan: to report; ``None`` if nothing was planned.
        ticket: what to learn.
        parts: what the text is made of, joined; empty if that is not known.
    """

    text: str
    labels: tuple[str, ...]
    plan: Plan | None = None
    ticket: Ticket = NOTHING_TO_LEARN
    parts: tuple[str, ...] = ()


def brought_by(asked: BlocksRequest) -> Brought | None:
    """The blocks that come with a tool loop; ``None`` if none come, or it is none."""
    if not asked.in_tool_loop or not asked.blocks:
        return None
    return Brought(asked.given, asked.block_keys)


def request_of(asked: BlocksRequest, options: Options) -> Request:
    """What a planner is asked."""
    return Request(
        asked.blocks,
        options.request_id,
        tenant=options.index_tenant,
        scope=asked.scope(),
        constraints=asked.constraints,
    )


def bounded(asked: BlocksRequest, max_displacement: int) -> BlocksRequest:
    """The request with a bound on how far its blocks may be moved.

    Raises:
        InvalidRequestError: its own pins move them farther; names the header.
    """
    constraints = replace(asked.constraints, max_displacement=max_displacement)
    try:
        constraints.units(len(asked.blocks))
    except InvalidRequestError as error:
        raise InvalidRequestError(MAX_DISPLACEMENT, error.reason, error.remedy) from None
    return replace(asked, constraints=constraints)


def in_parts(asked: BlocksRequest, texts: Mapping[int, str], planned: Planned) -> list[Edit]:
    """:meth:`BlocksRequest.edits`, that of this turn's text in the parts that it is made of. Raises as that."""
    edits = asked.edits(texts)
    if planned.parts:
        place = list(texts).index(asked.newest_user)
        edit = edits[place]
        if isinstance(edit, SetText):  # the text, and behind it the client's
            edits[place] = edit._replace(parts=(*planned.parts, edit.text[len(planned.text) :]))
    return edits


def turn_of(
    asked: BlocksRequest,
    past: Past,
    text: str,
    labels: Iterable[str],
    record: ConversationRecord,
    plan: Plan | None = None,
    spans: tuple[Span, ...] = (),
) -> Turn | None:
    """The turn to record; ``None`` if it stands alone, or is a tool loop whose user message we did not see."""
    if past.history is None or (asked.in_tool_loop and not text):
        return None
    return Turn(
        past.history.chains[asked.newest_user],
        past.history.messages[asked.newest_user],
        past.restored.deepest,
        text,
        asked.given,
        dict(zip(asked.block_keys, labels, strict=True)),
        record,
        None if plan is None else without_texts(plan),
        spans=spans,
        names=tuple(map(text_digest, map(_BLOCK, plan.blocks))) if plan is not None and spans else (),
        dropped=past.restored.dropped if past.restored.deepest is None else 0,
        lineage=past.restored.lineage,
    )


def same_again(turn: Turn, asked: BlocksRequest, options: Options, key: LedgerKey | None) -> Planned:
    """A retried turn: the same bytes; the index learns its first turn under the new request id, and no growth twice."""
    plan = None if turn.plan is None else replace(turn.plan, request_id=options.request_id)
    learnt = replace(plan, blocks=()) if plan is not None and plan.turn else plan
    labels = plan.labels if plan else tuple(map(turn.labels.__getitem__, asked.block_keys))
    return Planned(turn.text, labels, plan, Ticket(learnt if options.mode == "on" else None, key, turn))


def plain(asked: BlocksRequest, past: Past) -> Planned:
    """Given order, all in full, numbered on; recorded as it was sent, so that the next turn finds it."""
    record = past.restored.record
    text = plain_text(asked.blocks, record.next_number)
    numbers = range(record.next_number, record.next_number + len(asked.blocks))
    labels = tuple(DEFAULT_TEMPLATES.name.format(number=number) for number in numbers)
    after = replace(record, turns=record.turns + 1, next_number=record.next_number + len(asked.blocks))
    return Planned(
        text, labels, None, Ticket(None, past.key, turn_of(asked, past, text, labels, after), heard=past.heard)
    )
