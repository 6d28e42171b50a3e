"""Turns of conversations as they were sent, bounded: what an adapter remembers between two requests."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile
from typing import Final, NamedTuple

from prefixpilot.conversation import ConversationRecord
from prefixpilot.errors import InvariantError
from prefixpilot.prompts.request import BlocksRequest

_TURN_BYTES: Final = 1024
_LABEL_BYTES: Final = 256


class ConversationKey(NamedTuple):
    """Whose conversation it is: equal ids of different owners are different conversations."""

    owner: str
    conversation_id: str


@dataclass(eq=False, slots=True)
class Turn:
    """One user message as it was sent. Its parent is held by it, so what its references name cannot be forgotten first.

    Attributes:
        chain: of the caller's user and tool messages up to and including it.
        parent: the deepest earlier turn that stood in the same prompt.
        given: digest of its blocks as the caller gave them; tells a retry.
        text: what was put in front of it; empty if nothing was.
        labels: label of each of its blocks, by the hash of the block's text.
        record: of the conversation, once this turn has been sent.
        reply: digest of what the engine answered, if that is known: tells branches of equal user messages apart.
    """

    chain: bytes
    parent: Turn | None
    given: bytes
    text: str
    labels: Mapping[bytes, str]
    record: ConversationRecord
    reply: bytes | None = None

    def path(self) -> list[Turn]:
        """This turn and its ancestors, newest first."""
        turns, turn = [self], self.parent
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns

    @property
    def size(self) -> int:
        """Bytes held, its parent and its reply not counted: an upper estimate."""
        return _TURN_BYTES + sys.getsizeof(self.text) + _LABEL_BYTES * (len(self.labels) + len(self.record.labels))


class Restored(NamedTuple):
    """What is known of the earlier user messages of a request, by their index in the prompt."""

    turns: Mapping[int, Turn] = {}
    unmatched: int = 0

    @property
    def deepest(self) -> Turn | None:
        """The newest of the turns."""
        return self.turns[max(self.turns)] if self.turns else None

    @property
    def texts(self) -> dict[int, str]:
        """What goes in front of each message; turns that got nothing are left out."""
        return {i: turn.text for i, turn in self.turns.items() if turn.text}

    @property
    def labels(self) -> dict[bytes, str]:
        """Label of every block in these turns."""
        return {key: label for turn in self.turns.values() for key, label in turn.labels.items()}


class TurnStore:
    """Turns by conversation and chain. Bounded; the least recently used conversation goes first, as a whole, because a
    later turn may refer to any earlier one. Not thread-safe."""

    def __init__(self, max_conversations: int, max_bytes: int) -> None:
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[ConversationKey, _Conversation] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate."""
        return self._size

    def restore(self, key: ConversationKey, asked: BlocksRequest, chains: Mapping[int, bytes]) -> Restored:
        """The known turns before the newest user message, or up to it in a tool loop. O(turns of the request).

        Where several turns have the same messages the reply tells which is meant; if it does not, none of them comes
        back.
        """
        conversation = self._conversations.get(key)
        if conversation is None:
            return Restored()
        self._conversations.move_to_end(key)
        earlier = [i for i in chains if i < asked.newest_user or asked.in_tool_loop]
        for i in sorted(earlier, reverse=True):
            turn = _meant(conversation.turns.get(chains[i], ()), reply_to(asked, i))
            if turn is not None:
                index = {link: position for position, link in chains.items()}
                turns = {index[each.chain]: each for each in turn.path()}
                return Restored(turns, sum(other > i for other in earlier))
        return Restored({}, len(earlier))

    def retried(
        self, key: ConversationKey, asked: BlocksRequest, chains: Mapping[int, bytes], restored: Restored
    ) -> Turn | None:
        """The same turn with the same blocks on the same branch, if it was sent before."""
        conversation = self._conversations.get(key)
        if conversation is None or asked.newest_user not in chains:
            return None
        same = conversation.turns.get(chains[asked.newest_user], ())
        return next((t for t in same if t.parent is restored.deepest and t.given == asked.given), None)

    def record(self, key: ConversationKey, turn: Turn, reply: str | None) -> None:
        """This turn was sent; one that is held already only gets its reply. Not one whose past was forgotten."""
        conversation = self._conversations.get(key)
        if turn.parent is not None and (conversation is None or not conversation.holds(turn.parent)):
            return
        conversation = self._conversations.setdefault(key, conversation or _Conversation())
        self._conversations.move_to_end(key)
        if reply is not None:
            turn.reply = _digest(reply)
        if not conversation.holds(turn):
            conversation.turns.setdefault(turn.chain, []).append(turn)
            conversation.size += turn.size
            self._size += turn.size
        while len(self._conversations) > self._max_conversations or self._size > self._max_bytes:
            self.forget(next(iter(self._conversations)))

    def answer(self, key: ConversationKey, turn: Turn, reply: str) -> None:
        """What the engine answered to a turn that is held."""
        conversation = self._conversations.get(key)
        if conversation is not None and conversation.holds(turn):
            turn.reply = _digest(reply)

    def forget(self, key: ConversationKey) -> bool:
        """Delete a conversation; whether it was known."""
        conversation = self._conversations.pop(key, None)
        self._size -= 0 if conversation is None else conversation.size
        return conversation is not None

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a parent is missing, a count is wrong or a bound is passed. O(turns)."""
        if len(self._conversations) > self._max_conversations or self._size > self._max_bytes:
            raise InvariantError("the store is larger than its bounds")
        if self._size != sum(conversation.size for conversation in self._conversations.values()):
            raise InvariantError("the store has counted its bytes wrong")
        for conversation in self._conversations.values():
            turns = [turn for found in conversation.turns.values() for turn in found]
            if conversation.size != sum(turn.size for turn in turns):
                raise InvariantError("a conversation has counted its bytes wrong")
            if any(turn.parent is not None and not conversation.holds(turn.parent) for turn in turns):
                raise InvariantError("a turn is held without its parent")


@dataclass(eq=False, slots=True)
class _Conversation:
    """The turns of one conversation, by their chain; in the order in which they were sent first."""

    turns: dict[bytes, list[Turn]] = field(default_factory=dict)
    size: int = 0

    def holds(self, turn: Turn) -> bool:
        return any(turn is other for other in self.turns.get(turn.chain, ()))


def _meant(turns: Sequence[Turn], said: str | None) -> Turn | None:
    """The turn that a history goes on with; ``None`` if there is none, or it cannot be told."""
    if len(turns) > 1 and said is not None:
        turns = [turn for turn in turns if turn.reply == _digest(said)]
    return turns[0] if len(turns) == 1 else None


def reply_to(asked: BlocksRequest, index: int) -> str | None:
    """The caller's copy of the reply to a user message: the text of the messages of the assistant right behind it."""
    behind = asked.prompt.messages[index + 1 :]
    replies = list(takewhile(lambda message: message.role == "assistant", behind))
    return "".join(segment.text for message in replies for segment in message.segments) if replies else None


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
