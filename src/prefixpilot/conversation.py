"""What earlier turns of a conversation hold (paper 6): immutable records, and a bounded store of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from prefixpilot.core import BlockId, Plan, RequestId
from prefixpilot.errors import ConfigError

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """The blocks that stand in full in the earlier turns of one conversation. Immutable: a branch shares its trunk.

    Attributes:
        turns: how many turns with a plan it holds; 0 for a conversation that begins.
        labels: label of each block that stands in full, by identity.
        next_number: the number that the next counted label gets; starts at 1.
        opener: the request of the first turn, whose leaf in the index the conversation grows from.
    """

    turns: int = 0
    labels: Mapping[BlockId, str] = field(default_factory=lambda: MappingProxyType({}))
    next_number: int = 1
    opener: RequestId | None = None

    def after(self, plan: Plan) -> ConversationRecord:
        """The record once ``plan`` has been sent. O(blocks seen)."""
        in_full = [b for b in plan.blocks if b.location_annotation is None]
        labels = dict(self.labels)
        for block in in_full:
            labels.setdefault(block.block_id, block.label)
        return ConversationRecord(
            turns=self.turns + 1,
            labels=MappingProxyType(labels),
            next_number=max(self.next_number, plan.first_number) + len(in_full),
            opener=self.opener or plan.request_id,
        )


NEW_CONVERSATION = ConversationRecord()


class ConversationStore(Generic[Key]):
    """Records by key, least recently used out first. ``get`` and ``put`` O(1); not thread-safe."""

    def __init__(self, max_conversations: int) -> None:
        if max_conversations < 1:
            raise ConfigError("max_conversations", f"is {max_conversations}", "use an int of 1 or more")
        self._max = max_conversations
        self._records: OrderedDict[Key, ConversationRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: Key) -> ConversationRecord:
        """The record of ``key``, or that of a new conversation."""
        record = self._records.get(key)
        if record is None:
            return NEW_CONVERSATION
        self._records.move_to_end(key)
        return record

    def put(self, key: Key, record: ConversationRecord) -> None:
        """Replace the record of ``key``."""
        self._records[key] = record
        self._records.move_to_end(key)
        if len(self._records) > self._max:
            self._records.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Drop the record of ``key``, if there is one."""
        self._records.pop(key, None)
