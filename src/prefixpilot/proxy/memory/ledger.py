"""The form in which each turn of a conversation was sent, so that it is sent again unchanged (invariant 4b).

It is asked only under an explicit conversation id, inside tenant, credential and mode. A turn comes back only where the
chain of the client's user and tool messages is that of the recorded turn; so an edited or cut history is a new branch
by itself. Turns hold their parents: what a turn's annotations point to cannot be forgotten before the turn is.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from prefixpilot.errors import InvariantError
from prefixpilot.proxy.memory import reply
from prefixpilot.proxy.memory.branches import decide
from prefixpilot.proxy.memory.conversation import Conversation
from prefixpilot.proxy.memory.history import Chain, History
from prefixpilot.proxy.memory.journal import NO_JOURNAL, Erased, Journal
from prefixpilot.proxy.memory.records import (
    MAX_REPLIES,
    NOTHING_RESTORED,
    Brought,
    LedgerKey,
    Lineage,
    Restoration,
    Turn,
)
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Likeness, Reply, Said

_NONE_YET: Final = Conversation()
"""Stands for a conversation that is not recorded. Nothing is ever added to it."""

FORGOTTEN_PER_CONVERSATION: Final = 4
"""Digests of forgotten conversations that are kept for each one that may be held: some 100 bytes each."""


class Ledger:
    """Recorded turns by conversation. Bounded; the least recently used conversation goes first, and as a whole.

    In a conversation with ``max_turns`` turns, or that would outgrow ``max_bytes`` alone, the branches sent longest ago
    make room; if the branch in use has that many turns itself it records no more: its beginning, which every later
    prompt starts with, stays. Pure: what is kept beyond memory is its ``journal``'s. Not thread-safe.

    Args:
        ttl: seconds after its last request in which a conversation is held.
        clock: unix seconds.
        first_sent: the count of sent prompts to start with: at least that of any turn that the journal holds.
    """

    def __init__(
        self,
        max_conversations: int,
        max_turns: int,
        max_bytes: int,
        *,
        ttl: float = math.inf,
        clock: Callable[[], float] = lambda: 0.0,
        journal: Journal = NO_JOURNAL,
        first_sent: int = 0,
    ) -> None:
        self._max_conversations = max_conversations
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._clock = clock
        self._journal = journal
        self._conversations: OrderedDict[LedgerKey, Conversation] = OrderedDict()
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()
        self._beginning: WeakValueDictionary[LedgerKey, Lineage] = WeakValueDictionary()
        self._size = 0
        self._sent = first_sent

    def __len__(self) -> int:
        return len(self._conversations)

    def knows(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation are recorded, in memory or in the journal."""
        return key in self._conversations or self._journal.holds(key)

    @property
    def size(self) -> int:
        """Bytes held in memory: an upper estimate."""
        return self._size

    # -- what the journal keeps

    def wants(self, key: LedgerKey) -> bool:
        """Whether the journal keeps turns of this conversation that are not in memory: :meth:`adopt` them first."""
        conversation = self._conversations.get(key)
        return (conversation is None or not conversation.whole) and self._journal.holds(key)

    def adopt(self, key: LedgerKey, turns: Iterable[Turn]) -> None:
        """Take the turns that the journal keeps of a conversation, parents before their children; the client's request
        for it counts as its last use. Turns that are here already stay, what does not fit is left out, and what had
        expired here before has gone."""
        self._expire()
        conversation = self._conversations.get(key) or Conversation()
        before = conversation.size if key in self._conversations else 0
        here: dict[bytes, Turn] = {turn.identity: turn for turn in conversation}
        for turn in turns:
            parent = None if turn.parent is None else here.get(turn.parent.identity)
            if turn.identity in here or (
                turn.parent is not None and (parent is None or not conversation.holds(parent))
            ):
                continue
            turn.parent = parent
            if self._make_room(conversation, parent, [turn]):
                conversation.add(turn)
                here[turn.identity] = turn
                self._sent = max(self._sent, turn.last_sent)
        conversation.whole = True
        if conversation.count:
            self._size += conversation.size - before
            self._conversations[key] = conversation
            self._use(key, conversation)
            self._evict()

    def has(self, key: LedgerKey) -> bool:
        """Whether all that is kept of this conversation is in memory."""
        conversation = self._conversations.get(key)
        return conversation is not None and conversation.whole

    def drop(self, key: LedgerKey, *, deleted: bool) -> bool:
        """Forget a conversation in memory alone; whether it was there. If it was ``deleted``, elsewhere, a turn of it
        that is under way is not recorded, and not its first one either."""
        begun = self._beginning.pop(key, None) if deleted else None
        if begun is not None:
            begun.deleted = True
        conversation = self._conversations.pop(key, None)
        if conversation is None:
            return begun is not None
        self._size -= conversation.size
        conversation.lineage.deleted = deleted
        return True

    def forget(self, key: LedgerKey) -> Erased:
        """Delete a conversation, in memory and in the journal. A turn of it that is under way is not recorded."""
        self._expire()
        known = self.drop(key, deleted=True)
        self._forgotten.pop(key.digest, None)
        erased = self._journal.erase(key)
        return erased._replace(known=erased.known or known)

    def clear(self) -> Erased:
        """Delete all conversations, in memory and in the journal. Turns that are under way are not recorded."""
        known = bool(self._conversations)
        for lineage in (*self._beginning.values(), *(each.lineage for each in self._conversations.values())):
            lineage.deleted = True
        self._beginning.clear()
        self._conversations.clear()
        self._forgotten.clear()
        self._size = 0
        erased = self._journal.erase_all()
        return erased._replace(known=erased.known or known)

    # -- before the engine

    def restore(
        self, key: LedgerKey, history: History, *, with_newest: bool, brought: Brought | None = None
    ) -> Restoration:
        """The known turns before the newest user message, or up to it. O(turns of the request x branches).

        Args:
            with_newest: the newest user message has been sent before (a tool loop).
            brought: the blocks that come with it then, if some do.
        """
        self._expire()
        conversation = self._conversations.get(key)
        if conversation is None:
            earlier = with_newest or len(history.chains) > 1
            lineage = self._beginning.setdefault(key, Lineage())
            return Restoration(gone=earlier and self._is_gone(key), lineage=lineage)
        self._use(key, conversation)
        restored = self._restore(conversation, history, with_newest, brought)
        deepest = max(restored.turns, default=-1)
        unmatched = sum(deepest < i < history.newest for i in history.chains)
        return replace(restored, unmatched=unmatched, gone=not conversation.whole, lineage=conversation.lineage)

    def _is_gone(self, key: LedgerKey) -> bool:
        return key.digest in self._forgotten or self._journal.holds(key) or self._journal.lost(key)

    def _restore(
        self, conversation: Conversation, history: History, with_newest: bool, brought: Brought | None
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

    def holds(self, key: LedgerKey, turn: Turn) -> bool:
        """Whether a turn is recorded. O(turns behind the same messages)."""
        conversation = self._conversations.get(key)
        return conversation is not None and conversation.known(turn) is not None

    def has_room(self, key: LedgerKey, turn: Turn) -> bool:
        """Whether a turn is recorded and kept, or would be if it were sent now. O(turns of its branch)."""
        if not self._journal.healthy:
            return False
        conversation = self._conversations.get(key)
        if conversation is None and turn.parent is None:
            return self._fits(_NONE_YET, (turn,))
        conversation = conversation or _NONE_YET
        deepest, missing = conversation.place(turn.path())
        return not missing or self._fits(conversation, missing) or self._fits_alone(deepest, missing)

    def _fits(self, conversation: Conversation, turns: Sequence[Turn]) -> bool:
        size = conversation.size + sum(turn.size + reply.MAX_BYTES for turn in turns)
        return conversation.count + len(turns) <= self._max_turns and size <= self._max_bytes

    def _fits_alone(self, parent: Turn | None, turns: Sequence[Turn]) -> bool:
        """Whether the turns behind ``parent`` would fit if nothing else than its branch were recorded."""
        branch = parent.path() if parent is not None else []
        alone = Conversation(count=len(branch))
        alone.size += sum(turn.size for turn in branch)
        return self._fits(alone, turns)

    # -- when the engine has it

    def record(self, key: LedgerKey, turn: Turn, answer: Reply, heard: Said = NOTHING_SAID) -> bool:
        """The engine holds this turn now, and its ancestors. A turn equal to a recorded one only adds its reply to it.

        Args:
            heard: the client's copy of the reply to the turn's parent. One that the client wrote itself is that turn's
                from now on: the engine has had it there.

        Returns:
            Whether it is recorded: not if there is no room, when its past counts as used; or if that was forgotten or
            deleted meanwhile.
        """
        recorded = self._recorded(key, turn)
        if recorded is None:
            self._sent_again(key, turn.parent)
            return False
        conversation, parent = self._conversations[key], recorded.parent
        self._add_reply(conversation, recorded, answer)
        if parent is not None and heard != NOTHING_SAID and parent.compare(heard) in (Likeness.OTHER, Likeness.UNKNOWN):
            self._add_reply(conversation, parent, Reply.of(heard))
            self._journal.save(key, parent, conversation.used)
        self._sent_now(key, recorded)
        return True

    def went_on(self, key: LedgerKey, turn: Turn, said: Said) -> None:
        """A recorded turn was sent again, with the client's copy of its reply behind it: so it is found the next time,
        whatever told it from other branches this time."""
        recorded = self._recorded(key, turn) if key in self._conversations else None
        if recorded is None:
            return
        if recorded.compare(said) is not Likeness.EQUAL and said != NOTHING_SAID:
            self._add_reply(self._conversations[key], recorded, Reply.of(said))
        self._sent_now(key, recorded)

    def answered(self, key: LedgerKey, turn: Turn) -> None:
        """The answer to a turn is complete: what is kept of it can be kept whole."""
        conversation = self._conversations.get(key)
        known = None if conversation is None else conversation.known(turn)
        if conversation is not None and known is not None:
            self._journal.save(key, known, conversation.used)

    def _recorded(self, key: LedgerKey, turn: Turn) -> Turn | None:
        """The recorded turn that is this one, recorded now if it was not; its ancestors too, if they are not."""
        self._expire()
        conversation = self._conversations.get(key)
        past = turn.parent
        if turn.lineage.deleted or (past is not None and (past.lineage.deleted or not self.knows(key))):
            return None
        conversation = conversation or Conversation(whole=not self._journal.holds(key), lineage=turn.lineage)
        deepest, missing = conversation.place(turn.path())
        if missing:
            before = conversation.size if key in self._conversations else 0
            if not self._make_room(conversation, deepest, missing):
                return None
            for each in missing:
                each.parent, deepest = deepest, each
                conversation.add(each)
            self._size += conversation.size - before
        self._conversations[key] = conversation
        if self._forgotten:
            self._forgotten.pop(key.digest, None)
        return deepest

    def _make_room(self, conversation: Conversation, parent: Turn | None, turns: Sequence[Turn]) -> bool:
        """Forget other branches until the turns behind ``parent`` fit. Nothing if they would not even then.

        O(turns) for each turn that is forgotten.
        """
        if self._fits(conversation, turns):
            return True
        if not self._fits_alone(parent, turns):
            return False
        branch = parent.path() if parent is not None else []
        while not self._fits(conversation, turns):
            spare = conversation.spare(branch)
            assert spare is not None, "the branch alone fits"
            conversation.remove(spare)
        return True

    def _sent_again(self, key: LedgerKey, turn: Turn | None) -> None:
        """A turn stood in a prompt whose own turn has no room: it is in use all the same, on the disk too."""
        if turn is not None and self.holds(key, turn):
            self._sent_now(key, turn)

    def _sent_now(self, key: LedgerKey, turn: Turn) -> None:
        conversation = self._conversations[key]
        self._use(key, conversation)
        self._sent += 1
        for each in turn.path():
            each.last_sent = self._sent
        self._journal.save(key, turn, conversation.used)
        self._evict()

    def _use(self, key: LedgerKey, conversation: Conversation) -> None:
        self._conversations.move_to_end(key)
        conversation.used = self._clock()

    def _add_reply(self, conversation: Conversation, turn: Turn, answer: Reply) -> None:
        before = turn.size
        if len(turn.replies) < MAX_REPLIES and conversation.size + reply.MAX_BYTES > self._max_bytes:
            turn.forgot_replies = True
            return
        turn.add_reply(answer)
        conversation.size += turn.size - before
        self._size += turn.size - before

    def _evict(self) -> None:
        while self._conversations and (
            len(self._conversations) > self._max_conversations or self._size > self._max_bytes
        ):
            self._drop_oldest()

    def _expire(self) -> None:
        horizon = self._clock() - self._ttl
        while self._conversations and next(iter(self._conversations.values())).used < horizon:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, conversation = self._conversations.popitem(last=False)
        self._size -= conversation.size
        if not self._journal.holds(key):
            self._forgotten[key.digest] = None
            if len(self._forgotten) > FORGOTTEN_PER_CONVERSATION * self._max_conversations:
                self._forgotten.popitem(last=False)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a parent is missing, a count is wrong or a bound is passed. O(turns)."""
        for conversation in self._conversations.values():
            conversation.check_invariants()
            if conversation.count > self._max_turns:
                raise InvariantError(f"a conversation holds {conversation.count} turns of {self._max_turns}")
        if self._size != sum(c.size for c in self._conversations.values()) or self._size > self._max_bytes:
            raise InvariantError(f"holds {self._size} bytes of {self._max_bytes}")
        if len(self._conversations) > self._max_conversations:
            raise InvariantError(f"holds {len(self._conversations)} conversations of {self._max_conversations}")
