"""Turns as they are kept: JSON, and texts that stand beside it because many turns share them. Pure.

A turn's text is a sequence of pieces. The body of each block is a piece of its own, named by its content, so that it is
kept once however many turns of whatever conversations show it; what stands between bodies is kept with the turn.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates, written_label
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, Plan, PlannedBlock, RequestId, TenantId
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.proxy.escaping import dumped
from prefixpilot.proxy.memory.records import MAX_REPLIES, NO_TEXT, Span, Turn
from prefixpilot.proxy.memory.reply import Reply

MIN_SHARED_CHARS: Final = 64
"""Shorter texts are not worth a row of their own."""


class Piece(NamedTuple):
    """A part of a turn's text. ``name``: by which it stands beside the turn, once for all that show it; empty if it is
    kept with the turn."""

    text: str
    name: bytes = b""

    @property
    def shared(self) -> bool:
        """It stands beside the turn."""
        return self.name != b""


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A turn as it is kept.

    Attributes:
        identity, parent: of the turn and its parent.
        data: JSON of all that never changes, ``text`` left out.
        replies: JSON of what does.
        sent: in the ledger's count.
        pieces: joined they are its text.
    """

    identity: bytes
    parent: bytes | None
    data: str
    replies: str
    sent: int
    pieces: tuple[Piece, ...]


def kept(turn: Turn) -> KeptTurn:
    """A turn, to be kept. O(bytes of its text)."""
    parent = None if turn.parent is None else turn.parent.identity
    pieces = tuple(_pieces(turn))
    return KeptTurn(turn.identity, parent, dumped(_data(turn)), replies_of(turn), turn.last_sent, pieces)


def replies_of(turn: Turn) -> str:
    """JSON of a turn's replies, as far as they are there."""
    return dumped([turn.forgot_replies, [reply.dump() for reply in tuple(turn.replies)]])


def read(kept: KeptTurn, parent: Turn | None) -> Turn:
    """The turn that was kept. ``parent``: that of it, read before.

    Raises:
        ValueError, LookupError, TypeError: it is none that :func:`kept` gave.
    """
    data = json.loads(kept.data)
    forgot, replies = json.loads(kept.replies)
    turn = Turn(
        chain=bytes.fromhex(data["chain"]),
        message=bytes.fromhex(data["message"]),
        parent=parent,
        text="".join(piece.text for piece in kept.pieces),
        given=bytes.fromhex(data["given"]),
        labels={bytes.fromhex(key): label for key, label in data["labels"]},
        record=_record(data["record"], parent),
        plan=_plan(data["plan"]),
        replies=deque(map(Reply.load, replies), maxlen=MAX_REPLIES),
        forgot_replies=forgot,
        last_sent=kept.sent,
        spans=tuple(Span(start, end) for start, end in data["spans"]),
        dropped=data["dropped"],
        stem=None if data["stem"] is None else bytes.fromhex(data["stem"]),
    )
    if turn.identity != kept.identity:
        raise ValueError("a kept turn is not what its name says")
    return turn


def _pieces(turn: Turn) -> Iterator[Piece]:
    at = 0
    for start, end, name in _bodies(turn):
        if end - start >= MIN_SHARED_CHARS:
            yield Piece(turn.text[at:start])
            body = turn.text[start:end]
            yield Piece(body, name or text_digest(body))
            at = end
    rest = turn.text[at:]
    shared = not turn.spans and len(rest) >= MIN_SHARED_CHARS
    yield Piece(rest, text_digest(rest) if shared else b"")


class _Body(NamedTuple):
    """Where a block stands in full, its label left out, and the digest of that, if it is known."""

    start: int
    end: int
    name: bytes


def _bodies(turn: Turn) -> Iterator[_Body]:
    if turn.plan is None:
        return
    names = turn.names or (b"",) * len(turn.spans)
    for planned, span, name in zip(turn.plan.blocks, turn.spans, names, strict=False):
        if planned.location_annotation is None:
            yield _Body(span.start + len(written_label(planned.label, turn.plan.templates)), span.end, name)


def _data(turn: Turn) -> dict[str, Any]:
    return {
        "chain": turn.chain.hex(),
        "message": turn.message.hex(),
        "given": turn.given.hex(),
        "labels": [[key.hex(), label] for key, label in turn.labels.items()],
        "record": _record_data(turn),
        "plan": None if turn.plan is None else _plan_data(turn.plan),
        "spans": [[span.start, span.end] for span in turn.spans],
        "dropped": turn.dropped,
        "stem": None if turn.stem is None else turn.stem.hex(),
    }


def _record_data(turn: Turn) -> dict[str, Any]:
    """Only the labels that the parent's record does not have, if it has all others."""
    record, before = turn.record, {} if turn.parent is None else turn.parent.record.labels
    follows = all(record.labels.get(block) == label for block, label in before.items())
    new = [[block, label] for block, label in record.labels.items() if not follows or block not in before]
    return {
        "turns": record.turns,
        "labels": new,
        "follows": follows,
        "next": record.next_number,
        "opener": record.opener,
    }


def _record(data: Mapping[str, Any], parent: Turn | None) -> ConversationRecord:
    labels: dict[BlockId, str] = dict(parent.record.labels) if parent is not None and data["follows"] else {}
    labels.update((block, label) for block, label in data["labels"])
    return ConversationRecord(data["turns"], MappingProxyType(labels), data["next"], data["opener"])


def _plan_data(plan: Plan) -> dict[str, Any]:
    blocks = [[b.block_id, b.position, b.label, b.location_annotation, b.tokens] for b in plan.blocks]
    fields = {name: getattr(plan, name) for name in _PLAN_FIELDS}
    return {**fields, "blocks": blocks, "templates": _templates_data(plan.templates)}


def _plan(data: dict[str, Any] | None) -> Plan | None:
    if data is None:
        return None
    blocks = (
        PlannedBlock(block, NO_TEXT, position, label, annotation, tokens)
        for block, position, label, annotation, tokens in data["blocks"]
    )
    fields = {name: read_field(data[name]) for name, read_field in _PLAN_FIELDS.items() if name in data}
    templates = DEFAULT_TEMPLATES if data["templates"] is None else Templates(**data["templates"])
    return Plan(blocks=tuple(blocks), templates=templates, **fields)


def _templates_data(templates: Templates) -> dict[str, str] | None:
    return None if templates == DEFAULT_TEMPLATES else asdict(templates)


def _as_is(value: Any) -> Any:
    return value


_PLAN_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "request_id": RequestId,
    "tenant": TenantId,
    "scope": str,
    "order_annotation": _as_is,
    "prefix_len": int,
    "predicted_cached_tokens": _as_is,
    "turn": int,
    "opener": _as_is,
    "annotation_tokens": int,
    "gain": _as_is,
    "first_number": int,
}
