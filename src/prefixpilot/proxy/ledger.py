"""The form in which each turn of a conversation was sent, so that it is sent again unchanged (invariant 4b).

It is asked only under an explicit conversation id, inside tenant, credential and mode. A turn comes back only where the
chain of the client's user and tool messages is that of the recorded turn; so an edited or cut history is a new branch
by itself. Turns hold their parents: what a turn's annotations point to cannot be forgotten before the turn is.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import Plan
from prefixpilot.errors import InvariantError
from prefixpilot.proxy.history import Chain, History
from prefixpilot.proxy.reply import HEAD_CHARS, Likeness, ReplyText
from prefixpilot.proxy.settings import Mode

MAX_REPLIES: Final = 4
_TURN_BYTES: Final = 2048
_LABEL_BYTES: Final = 128

BlockKey = bytes


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """Whose conversation it is. ``credential`` is a hash."""

    tenant: str
    credential: str
    conversation: str
    mode: Mode


@dataclass(eq=False, slots=True)
class Turn:
    """One user message as it was sent.

    Attributes:
        chain: of the client's messages up to and including it.
        parent: the deepest earlier turn that stood in the same prompt.
        text: what was put in front of the client's text; empty if nothing was.
        given: digest of the ``context_blocks`` as the client gave them; tells a retry.
        labels: label of each block that this turn stands for, in full or by an annotation, by the hash of its text.
        record: of the conversation, once this turn has been sent.
        plan: what was planned; ``None`` for a turn without blocks or one that fell back to plain text.
        replies: what the engine answered; several after retries.
    """

    chain: Chain
    parent: Turn | None
    text: str
    given: bytes
    labels: Mapping[BlockKey, str]
    record: ConversationRecord
    plan: Plan | None = None
    replies: deque[ReplyText] = field(default_factory=lambda: deque(maxlen=MAX_REPLIES))

    def path(self) -> list[Turn]:
        """This turn and its ancestors, oldest first. O(turns)."""
        turns = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    @property
    def size(self) -> int:
        """Estimated bytes: the text, and once more in the plan's blocks; replies at their bound; the labels so far."""
        labels = len(self.labels) + len(self.record.labels)
        replies = MAX_REPLIES * HEAD_CHARS * 2
        return 2 * sys.getsizeof(self.text) + replies + labels * _LABEL_BYTES + _TURN_BYTES

    def compare(self, client_reply: str) -> Likeness:
        """The best likeness of the client's copy of the reply with any that the engine gave."""
        found = {reply.compare(client_reply) for reply in self.replies}
        for likeness in (Likeness.EQUAL, Likeness.HEAD, Likeness.UNKNOWN, Likeness.OTHER):
            if likeness in found:
                return likeness
        return Likeness.UNKNOWN


@dataclass(frozen=True, slots=True)
class Restoration:
    """The turns of a request that are known.

    Attributes:
        turns: the turn of each user message that was found, by its index; every turn's parent is among them.
        ambiguous: several recorded branches fit; only the turns that all of them share are restored.
    """

    turns: Mapping[int, Turn] = field(default_factory=dict)
    ambiguous: bool = False

    @property
    def deepest(self) -> Turn | None:
        """The newest of the turns."""
        return self.turns[max(self.turns)] if self.turns else None

    @property
    def record(self) -> ConversationRecord:
        """The record against which this request's blocks are de-duplicated: all it names stands in these turns."""
        return NEW_CONVERSATION if self.deepest is None else self.deepest.record

    @property
    def texts(self) -> dict[int, str]:
        """What goes in front of each message, by its index; turns that got nothing are left out."""
        return {i: turn.text for i, turn in self.turns.items() if turn.text}

    @property
    def labels(self) -> dict[BlockKey, str]:
        """Label of every block in these turns."""
        return {key: label for turn in self.turns.values() for key, label in turn.labels.items()}


NOTHING_RESTORED: Final = Restoration()


@dataclass(slots=True)
class _Conversation:
    turns: dict[Chain, list[Turn]] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def __iter__(self) -> Iterator[Turn]:
        for turns in self.turns.values():
            yield from turns


class Ledger:
    """Recorded turns by conversation. Bounded; the least recently used conversation goes first, and as a whole.

    A conversation with ``max_turns`` turns records no more: its beginning, which every later prompt starts with, stays.
    Not thread-safe.
    """

    def __init__(self, max_conversations: int, max_turns: int, max_bytes: int) -> None:
        self._max_conversations = max_conversations
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[LedgerKey, _Conversation] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def size(self) -> int:
        """Estimated bytes held."""
        return self._size

    def restore(self, key: LedgerKey, history: History, *, with_newest: bool) -> Restoration:
        """The known turns before the newest user message, or up to it. O(turns of the request x branches).

        Args:
            with_newest: the newest user message has been sent before (a tool loop).
        """
        conversation = self._conversations.get(key)
        if conversation is None:
            return NOTHING_RESTORED
        self._conversations.move_to_end(key)
        for i in sorted(history.chains, reverse=True):
            if i == history.newest and not with_newest:
                continue
            candidates = conversation.turns.get(history.chains[i])
            if candidates:
                return _decide(candidates, history)
        return NOTHING_RESTORED

    def find_retry(self, key: LedgerKey, chain: Chain, parent: Turn | None, given: bytes) -> Turn | None:
        """The same turn with the same blocks on the same branch, if it was sent before; the latest of them."""
        conversation = self._conversations.get(key)
        if conversation is None:
            return None
        found = [t for t in conversation.turns.get(chain, ()) if t.parent is parent and t.given == given]
        return found[-1] if found else None

    def record(self, key: LedgerKey, turn: Turn, reply: ReplyText) -> None:
        """The engine holds this turn now. A turn equal to a recorded one only adds its reply to it."""
        conversation = self._conversations.get(key)
        if turn.parent is not None and (
            conversation is None or turn.parent not in conversation.turns.get(turn.parent.chain, ())
        ):
            return  # forgotten while the request was under way
        if conversation is None:
            conversation = self._conversations[key] = _Conversation()
        self._conversations.move_to_end(key)
        branches = conversation.turns.setdefault(turn.chain, [])
        known = next((t for t in branches if t is turn or _same(t, turn)), None)
        if known is None and conversation.count < self._max_turns:
            known = turn
            branches.append(turn)
            conversation.count += 1
            conversation.size += turn.size
            self._size += turn.size
        if known is not None:
            known.replies.append(reply)
        elif not branches:
            del conversation.turns[turn.chain]
        self._evict()

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
            if len(turns) != conversation.count or sum(t.size for t in turns) != conversation.size:
                raise InvariantError(f"{key}: counts {conversation.count} turns, holds {len(turns)}")
            for turn in turns:
                if turn.parent is not None and turn.parent not in conversation.turns.get(turn.parent.chain, ()):
                    raise InvariantError(f"{key}: a turn without its parent")
        if self._size != sum(c.size for c in self._conversations.values()) or self._size > self._max_bytes:
            raise InvariantError(f"holds {self._size} bytes of {self._max_bytes}")


def _same(a: Turn, b: Turn) -> bool:
    return a.parent is b.parent and a.given == b.given and a.text == b.text


def _decide(candidates: Sequence[Turn], history: History) -> Restoration:
    """The one branch that the replies speak for; else what all the remaining branches share."""
    index = {chain: i for i, chain in history.chains.items()}
    paths = [candidate.path() for candidate in candidates]
    if len(paths) > 1:
        paths = _by_replies(paths, index, history)
    shared = _shared(paths)
    return Restoration({index[turn.chain]: turn for turn in shared}, ambiguous=len(paths) > 1)


def _by_replies(paths: list[list[Turn]], index: Mapping[Chain, int], history: History) -> list[list[Turn]]:
    shared = len(_shared(paths))
    verdicts = [{turn.compare(history.replies.get(index[turn.chain], "")) for turn in path[shared:]} for path in paths]
    possible = [i for i, found in enumerate(verdicts) if Likeness.OTHER not in found]
    exact = [i for i in possible if verdicts[i] == {Likeness.EQUAL}]
    chosen = exact if len(exact) == 1 else possible
    return [paths[i] for i in chosen] if chosen else paths


def _shared(paths: Sequence[list[Turn]]) -> list[Turn]:
    """The turns with which all paths begin."""
    shared = []
    for turns in zip(*paths, strict=False):
        if any(turn is not turns[0] for turn in turns):
            break
        shared.append(turns[0])
    return shared
