"""What is kept of each turn of a conversation, and what comes back of it for a request."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import ContextBlock, Plan, PlannedBlock
from prefixpilot.prompts.headings import headings_of
from prefixpilot.proxy.memory import reply
from prefixpilot.proxy.memory.history import Chain
from prefixpilot.proxy.memory.reply import Likeness, Reply, Said
from prefixpilot.proxy.settings import Mode

MAX_REPLIES: Final = 4
_TURN_BYTES: Final = 2048
_HEADINGS_BYTES: Final = 2048
_LABEL_BYTES: Final = 256
_RECORDED_LABEL_BYTES: Final = 112
"""An entry of a dict: its strings are those of the turns."""
_BLOCK_BYTES: Final = 384
_SPAN_BYTES: Final = 192

BlockKey = bytes

NO_TEXT: Final = ContextBlock(id="")
"""In the place of each block of a plan that is kept."""


class Span(NamedTuple):
    """Where a paragraph stands in a turn's text, in characters; the end is not part of it."""

    start: int
    end: int


class LedgerKey(NamedTuple):
    """Whose conversation it is. ``credential`` is a hash."""

    tenant: str
    credential: str
    conversation: str
    mode: Mode

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for it where it is kept: neither the id nor a hash of a credential alone."""
        return _hashed(self)


@lru_cache(maxsize=256)
def _hashed(key: LedgerKey) -> bytes:
    """Asked for a few times while a request is under way."""
    parts = [part.encode("utf-8", "surrogatepass") for part in key]
    return hashlib.blake2b(b"".join([len(p).to_bytes(8, "big") + p for p in parts]), digest_size=16).digest()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Lineage:
    """Shared by the turns of one conversation, so that one under way learns that it was deleted meanwhile."""

    deleted: bool = False


@dataclass(eq=False, slots=True)
class Turn:
    """One user message as it was sent.

    Attributes:
        chain: of the client's messages up to and including it.
        message: digest of the user message alone.
        parent: the deepest earlier turn that stood in the same prompt.
        text: what was put in front of the client's text; empty if nothing was.
        given: digest of the ``context_blocks`` as the client gave them; tells a retry.
        labels: label of each block that this turn stands for, in full or by an annotation, by the hash of its text.
        record: of the conversation, once this turn has been sent.
        plan: what was planned, without the blocks' texts; ``None`` for a turn without blocks or one that fell back to
            plain text.
        replies: what the engine answered; several after retries.
        forgot_replies: it answered more often than is kept.
        last_sent: when it last stood in a prompt that the engine answered, in the ledger's count of such prompts.
        spans: the paragraph of each block of ``plan``, in its order; empty if that is not known.
        names: digest of what stands behind the label of each, in parallel; empty if that is not known.
        dropped: earlier user messages whose turns did not fit the engine's window any more when this turn, the first
            that was kept of its branch, was sent.
        stem: identity of the turn that this one was made from when the window overflowed; ``None`` of all others.
        lineage: of its conversation.
    """

    chain: Chain
    message: bytes
    parent: Turn | None
    text: str
    given: bytes
    labels: Mapping[BlockKey, str]
    record: ConversationRecord
    plan: Plan | None = None
    replies: deque[Reply] = field(default_factory=lambda: deque(maxlen=MAX_REPLIES))
    forgot_replies: bool = False
    last_sent: int = 0
    spans: tuple[Span, ...] = ()
    dropped: int = 0
    stem: bytes | None = None
    lineage: Lineage = field(default_factory=Lineage)
    names: tuple[bytes, ...] = ()
    _identity: bytes | None = None
    _headings: tuple[str, ...] | None = None
    _fixed_size: int = 0

    @property
    def headings(self) -> tuple[str, ...]:
        """:func:`headings_of` its text. O(bytes) once, or each time where they are many."""
        if self._headings is not None:
            return self._headings
        found = headings_of(self.text)
        if sum(map(sys.getsizeof, found)) + sys.getsizeof(found) <= _HEADINGS_BYTES:
            self._headings = found
        return found

    @property
    def identity(self) -> bytes:
        """16 bytes over what was sent up to this turn: equal for equal branches, in every process. O(bytes) once."""
        if self._identity is None:
            parent = b""
            for turn in self.path():
                parent = turn._identity = turn._identity or turn._linked_to(parent)
        assert self._identity is not None
        return self._identity

    def _linked_to(self, parent: bytes) -> bytes:
        own = hashlib.blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=16)
        linked = hashlib.blake2b(digest_size=16)
        for part in (parent, self.chain, self.given, own.digest(), b"%d" % self.dropped):
            linked.update(len(part).to_bytes(8, "big") + part)
        return linked.digest()

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
        """Bytes held, its parent not counted: an upper estimate. Grows with the replies only. O(blocks) once."""
        if not self._fixed_size:
            self._fixed_size = self._size_without_replies()
        return self._fixed_size + len(self.replies) * reply.MAX_BYTES

    def _size_without_replies(self) -> int:
        size = _TURN_BYTES + _HEADINGS_BYTES + sys.getsizeof(self.text)
        size += len(self.labels) * _LABEL_BYTES + len(self.record.labels) * _RECORDED_LABEL_BYTES
        if self.plan is not None:
            located = [b.location_annotation for b in self.plan.blocks if b.location_annotation is not None]
            size += len(self.plan.blocks) * _BLOCK_BYTES + sum(map(sys.getsizeof, located))
            size += sys.getsizeof(self.plan.order_annotation) + len(self.spans) * _SPAN_BYTES
        return size

    def add_reply(self, answer: Reply) -> None:
        """One more answer of the engine."""
        self.forgot_replies = self.forgot_replies or len(self.replies) == MAX_REPLIES
        self.replies.append(answer)

    def compare(self, said: Said) -> Likeness:
        """The best likeness of the client's copy of the reply with any that the engine gave."""
        found = {answer.compare(said) for answer in self.replies}
        for likeness in (Likeness.EQUAL, Likeness.HEAD, Likeness.UNKNOWN):
            if likeness in found:
                return likeness
        return Likeness.OTHER if found and not self.forgot_replies else Likeness.UNKNOWN


def without_texts(plan: Plan) -> Plan:
    """The plan without its texts; blocks are known by ``block_id``. Small, and still good to report and learn."""
    return replace(plan, blocks=tuple([_planned_block((block[0], NO_TEXT, *block[2:])) for block in plan.blocks]))


_planned_block = partial(tuple.__new__, PlannedBlock)
"""``PlannedBlock._make`` without the Python frame."""


@dataclass(frozen=True, slots=True)
class Brought:
    """The blocks that come with a request whose newest user message the engine has had.

    Attributes:
        given: digest of all of them in order.
        keys: of each.
    """

    given: bytes
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Restoration:
    """The turns of a request that are known.

    Attributes:
        turns: the turn of each user message that was found, by its index; every turn's parent is among them.
        ambiguous: several recorded branches fit; only the turns that all of them share are restored.
        assumed: several branches of the same blocks fit; the one sent last is restored.
        unmatched: earlier user messages behind the restored ones, in a conversation that is known: what was sent for
            them, if anything was, is not restored.
        gone: the conversation was recorded once, and its turns are not held any more.
        dropped: earlier user messages that are sent as the client has them, because the window has no room for what
            stood in front of them.
        lineage: of the conversation, for the turn that is to be recorded.
    """

    turns: Mapping[int, Turn] = field(default_factory=dict)
    ambiguous: bool = False
    assumed: bool = False
    unmatched: int = 0
    gone: bool = False
    dropped: int = 0
    lineage: Lineage = field(default_factory=Lineage, compare=False)

    @classmethod
    def of(cls, path: Iterable[Turn], index: Mapping[Chain, int], ambiguous: bool, assumed: bool) -> Restoration:
        """The turns of a path, each at its message."""
        turns = {index[turn.chain]: turn for turn in path}
        return cls(turns, ambiguous, assumed, dropped=sum(turn.dropped for turn in turns.values()))

    @property
    def told(self) -> bool:
        """Whether there is something that the client has to know even if nothing is put into its request."""
        return self.ambiguous or self.gone or self.unmatched > 0 or self.dropped > 0

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
    def headings(self) -> Iterator[str]:
        """Those of the texts of these turns."""
        return (heading for turn in self.turns.values() for heading in turn.headings)

    @property
    def labels(self) -> dict[BlockKey, str]:
        """Label of every block in these turns."""
        return {key: label for turn in self.turns.values() for key, label in turn.labels.items()}


NOTHING_RESTORED: Final = Restoration()
