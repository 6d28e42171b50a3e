"""The form in which each turn of a conversation was sent, so that it is sent again unchanged (invariant 4b).

It is asked only under an explicit conversation id, inside tenant, credential and mode. A turn comes back only where the
chain of the client's user and tool messages is that of the recorded turn; so an edited or cut history is a new branch
by itself. Turns hold their parents: what a turn's annotations point to cannot be forgotten before the turn is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from prefixpilot.errors import InvariantError
from prefixpilot.proxy.memory import reply
from prefixpilot.proxy.memory.branches import decide
from prefixpilot.proxy.memory.history import Chain, History
from prefixpilot.proxy.memory.records import MAX_REPLIES, NOTHING_RESTORED, Brought, LedgerKey, Restoration, Turn
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Likeness, Reply, Said

_CONVERSATION_BYTES: Final = 4096
"""Of a conversation without turns: its key, whose strings are bounded, and the containers."""


@dataclass(slots=True)
class _Conversation:
    turns: dict[Chain, list[Turn]] = field(default_factory=dict)
    count: int = 0
    size: int = _CONVERSATION_BYTES

    def __iter__(self) -> Iterator[Turn]:
        for turns in self.turns.values():
            yield from turns

    def holds(self, turn: Turn) -> bool:
        return any(known is turn for known in self.turns.get(turn.chain, ()))

    def known(self, turn: Turn) -> Turn | None:
        """The recorded turn that is this one, or equal to it."""
        return next((known for known in self.turns.get(turn.chain, ()) if known is turn or _same(known, turn)), None)


class Ledger:
    """Recorded turns by conversation. Bounded; the least recently used conversation goes first, and as a whole.

    A conversation with ``max_turns`` turns, or that would outgrow ``max_bytes`` alone, records no more: its beginning,
    which every later prompt starts with, stays. Not thread-safe.
    """

    def __init__(self, max_conversations: int, max_turns: int, max_bytes: int) -> None:
        self._max_conversations = max_conversations
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[LedgerKey, _Conversation] = OrderedDict()
        self._size = 0
        self._sent = 0

    def __len__(self) -> int:
        return len(self._conversations)

    def clear(self) -> int:
        """Forget everything; returns how many conversations there were."""
        gone = len(self._conversations)
        self._conversations.clear()
        self._size = 0
        return gone

    def knows(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation are recorded."""
        return key in self._conversations

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate."""
        return self._size

    def restore(
        self, key: LedgerKey, history: History, *, with_newest: bool, brought: Brought | None = None
    ) -> Restoration:
        """The known turns before the newest user message, or up to it. O(turns of the request x branches).

        Args:
            with_newest: the newest user message has been sent before (a tool loop).
            brought: the blocks that come with it then, if some do.
        """
        conversation = self._conversations.get(key)
        if conversation is None:
            return NOTHING_RESTORED
        self._conversations.move_to_end(key)
        restored = self._restore(conversation, history, with_newest, brought)
        deepest = max(restored.turns, default=-1)
        return replace(restored, unmatched=sum(deepest < i < history.newest for i in history.chains))

    def _restore(
        self, conversation: _Conversation, history: History, with_newest: bool, brought: Brought | None
    ) -> Restoration:
        for i in sorted(history.chains, reverse=True):
            if i == history.newest and not with_newest:
                continue
            candidates = conversation.turns.get(history.chains[i])
            if candidates:
                return decide(candidates, history, conversation, brought if i == history.newest else None)
        return NOTHING_RESTORED

    def find_retry(self, key: LedgerKey, chain: Chain, parent: Turn | None, given: bytes) -> Turn | None:
        """The same turn with the same blocks on the same branch, if it was sent before; the latest of them."""
        conversation = self._conversations.get(key)
        if conversation is None:
            return None
        found = [t for t in conversation.turns.get(chain, ()) if t.parent is parent and t.given == given]
        return max(found, key=lambda turn: turn.last_sent, default=None)

    def has_room(self, key: LedgerKey, turn: Turn) -> bool:
        """Whether a turn is recorded, or would be if it were sent now."""
        conversation = self._conversations.get(key) or _Conversation()
        return conversation.known(turn) is not None or self._fits(conversation, turn)

    def _fits(self, conversation: _Conversation, turn: Turn) -> bool:
        size = conversation.size + turn.size + reply.MAX_BYTES
        return conversation.count < self._max_turns and size <= self._max_bytes

    def record(self, key: LedgerKey, turn: Turn, answer: Reply) -> bool:
        """The engine holds this turn now. A turn equal to a recorded one only adds its reply to it.

        Returns:
            Whether it is recorded: not if there is no room, or its parent was forgotten while it was under way.
        """
        conversation = self._conversations.get(key) or _Conversation()
        if turn.parent is not None and not conversation.holds(turn.parent):
            return False
        known = conversation.known(turn)
        if known is None:
            if not self._fits(conversation, turn):
                return False
            known = turn
            conversation.turns.setdefault(turn.chain, []).append(turn)
            conversation.count += 1
            self._grow(conversation, turn.size)
        if key not in self._conversations:
            self._conversations[key] = conversation
            self._size += _CONVERSATION_BYTES
        self._conversations.move_to_end(key)
        self._add_reply(conversation, known, answer)
        self._touch(known)
        self._evict()
        return True

    def went_on(self, key: LedgerKey, turn: Turn, said: Said) -> None:
        """A recorded turn was sent again, with the client's copy of its reply behind it: so it is found the next time,
        whatever told it from other branches this time."""
        conversation = self._conversations.get(key)
        if conversation is None or not conversation.holds(turn):
            return
        if turn.compare(said) is not Likeness.EQUAL and said != NOTHING_SAID:
            self._add_reply(conversation, turn, Reply.of(said))
        self._touch(turn)
        self._evict()

    def _touch(self, turn: Turn) -> None:
        self._sent += 1
        for each in turn.path():
            each.last_sent = self._sent

    def _add_reply(self, conversation: _Conversation, turn: Turn, answer: Reply) -> None:
        before = turn.size
        if len(turn.replies) < MAX_REPLIES and conversation.size + reply.MAX_BYTES > self._max_bytes:
            turn.forgot_replies = True
            return
        turn.add_reply(answer)
        self._grow(conversation, turn.size - before)

    def _grow(self, conversation: _Conversation, size: int) -> None:
        conversation.size += size
        self._size += size

    def _evict(self) -> None:
        while self._conversations and (
            len(self._conversations) > self._max_conversations or self._size > self._max_bytes
        ):
            _, conversation = self._conversations.popitem(last=False)
            self._size -= conversation.size

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a parent is missing or a count is wrong. O(turns)."""
        for key, conversation in self._conversations.items():
            turns = list(conversation)
            size = _CONVERSATION_BYTES + sum(turn.size for turn in turns)
            if len(turns) != conversation.count or size != conversation.size:
                raise InvariantError(f"{key}: counts {conversation.count} turns, holds {len(turns)}")
            for turn in turns:
                if turn.parent is not None and not conversation.holds(turn.parent):
                    raise InvariantError(f"{key}: a turn without its parent")
        if self._size != sum(c.size for c in self._conversations.values()) or self._size > self._max_bytes:
            raise InvariantError(f"holds {self._size} bytes of {self._max_bytes}")


def _same(a: Turn, b: Turn) -> bool:
    return a.parent is b.parent and a.given == b.given and a.text == b.text
