"""A request without blocks as it is asked about, and what is decided of it: what to send, and what to learn then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prefixpilot.apis.base import Pointer, Prompt
from prefixpilot.core import DEFAULT_TENANT, Plan, RequestId, TenantId
from prefixpilot.jsontext import Edit, Permute, SetText
from prefixpilot.pieces import Form, apply
from prefixpilot.proxy.memory.forms import NOBODY, Sender, Sent
from prefixpilot.proxy.ordinary.notes import Note


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without ``context_blocks``.

    Attributes:
        prompt: its body, read.
        request_id: under which its regions are planned.
        who: digest of what makes a sender: credential and the like.
        tenant: see :class:`prefixpilot.core.Request`; forms are remembered for each tenant alone.
        recognise: names of the recognisers that count here; ``None`` for those of the settings.
        order, dedupe: whether they are on here; they only switch off.
        fresh: whether what is new is treated; if not, only what was sent before is sent again as it was.
        max_displacement: how far a unit may stand from its place; ``None`` for no bound.
        own: it has demands of its own, which a form that another sender was given need not meet: only those of the
            same ``who`` are sent again.
        explain: notes are made of what stays as it is, too.
        endings: words that stand behind strings, by pointer: no part of what is remembered of a message here.
    """

    prompt: Prompt
    request_id: RequestId
    who: bytes = b""
    tenant: TenantId = DEFAULT_TENANT
    recognise: tuple[str, ...] | None = None
    order: bool = True
    dedupe: bool = True
    max_displacement: int | None = None
    own: bool = False
    fresh: bool = True
    explain: bool = False
    endings: Mapping[Pointer, str] = field(default_factory=dict)


class Record(NamedTuple):
    """One entry for the ledger."""

    key: bytes
    sent: Sent


@dataclass(frozen=True, slots=True)
class Decision:
    """What to send, and what to learn once the engine has it.

    Attributes:
        forms: of the strings that are changed, by pointer.
        orders: of the arrays that are put in another order, by pointer: the old index at each place.
        sender, records: for the ledger.
        plans: for the index.
        repeats: annotations that stand in the place of new texts.
        moved: new regions that were put in another order.
        saved: estimated tokens that the new annotations save, net.
        recalled: earlier messages, and regions of system text, that were given the form in which they had been sent,
            other than the client's.
        notes: what was found where, and why it stays; of the history only if that was asked for.
        replaces: its records take the place of the sender's earlier ones. Not if repeats are off here: then turns that
            want them find theirs again.
    """

    forms: dict[Pointer, Form] = field(default_factory=dict)
    sender: Sender = NOBODY
    records: tuple[Record, ...] = ()
    plans: tuple[Plan, ...] = ()
    repeats: int = 0
    moved: int = 0
    saved: int = 0
    recalled: int = 0
    orders: dict[Pointer, tuple[int, ...]] = field(default_factory=dict)
    replaces: bool = True
    notes: tuple[Note, ...] = ()

    @property
    def predicted(self) -> int | None:
        """Tokens of documents that the engine is predicted to have cached; ``None`` if nothing was planned."""
        known = [plan.predicted_cached_tokens for plan in self.plans if plan.predicted_cached_tokens is not None]
        return sum(known) if known else None

    def edits(self, prompt: Prompt) -> list[Edit]:
        """The edits of the body. O(length of the changed strings)."""
        texts = {segment.pointer: segment.text for segment in prompt.segments()}
        edits: list[Edit] = [SetText(pointer, apply(form, texts[pointer])) for pointer, form in self.forms.items()]
        return edits + [Permute(pointer, order) for pointer, order in self.orders.items()]
