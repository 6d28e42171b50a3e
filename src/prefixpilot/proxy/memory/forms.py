"""The form in which each message of an ordinary history was sent, so that it is sent again unchanged (invariant 4a).

The key is a tenant's content: a link of the hash chain over the client's own messages. So an edited, truncated or
compacted history is found nowhere from the change on, and what is found can only give back what this very request
contains. What one tenant sends says nothing of another's.

::

    key ── tenant, and a link of the chain or a region of system text behind the first link
     └── Sender ── Sent        who sent it so: no part of the key, but it tells equal openings of several senders apart
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.pieces import Form, Span

MAX_SENDERS: Final = 8
_ENTRY_BYTES: Final = 400
_SENT_BYTES: Final = 320
_TEXT_BYTES: Final = 400
_TARGET_BYTES: Final = 240
_PIECE_BYTES: Final = 136


class Target(NamedTuple):
    """What an annotation points to.

    Attributes:
        digest: of the text (:func:`prefixpilot.dedup.chunking.text_digest`).
        name: by which the annotation calls it.
        inside: it stands in the same message, so that it is there whenever the message is.
        words: of the name, those that stand in no other text above; empty if a call names it.
        label: in the name; empty if none is.
        call: that names it, without white space; empty if words do.
    """

    digest: bytes
    name: str
    inside: bool
    words: str = ""
    label: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text that stands under a name in a message as it was sent: a document, a memory, a tool result.

    Attributes:
        segment: index of its string in the message.
        span: its characters in the client's string, with label and wrapper.
        body: those of the bare text.
        digest: of the text, decoded.
        raw: of the characters.
        full: it stands in full, so that a later annotation may point to it; else it is an annotation, or holds one.
        label: words that name it; ``None`` if it has none.
        whole: it is a whole tool result, named by its call.
        chunked: long plain text, parts of which may stand in other texts.
    """

    segment: int
    span: Span
    body: Span
    digest: bytes
    raw: bytes
    full: bool
    label: str | None = None
    whole: bool = False
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """How one message, or one region of system text, was sent.

    Attributes:
        forms: of each of its strings.
        texts: what stands in it under a name.
        targets: what its annotations point to.
    """

    forms: tuple[Form, ...]
    texts: tuple[NamedText, ...] = ()
    targets: tuple[Target, ...] = ()

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate. O(pieces)."""
        literals = sum(sys.getsizeof(piece) for form in self.forms for piece in form if isinstance(piece, str))
        pieces = sum(map(len, self.forms)) + len(self.forms)
        labels = sum(sys.getsizeof(text.label) for text in self.texts)
        names = sum(sys.getsizeof(target.name) + sys.getsizeof(target.words + target.call) for target in self.targets)
        size = _SENT_BYTES + literals + labels + names + pieces * _PIECE_BYTES
        return size + len(self.texts) * _TEXT_BYTES + len(self.targets) * _TARGET_BYTES


class Sender(NamedTuple):
    """Tells several forms of one content apart. Digests.

    Attributes:
        who: tenant, credential, model and what else makes a sender.
        system: the system text of the request.
    """

    who: bytes
    system: bytes


NOBODY: Final = Sender(b"", b"")


class _Entry:
    def __init__(self) -> None:
        self.by_sender: OrderedDict[Sender, Sent] = OrderedDict()

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + sum(sent.size for sent in self.by_sender.values())

    def latest(self, sender: Sender | None) -> Iterator[tuple[Sender, Sent]]:
        """The latest first; of one ``who`` only, if a sender is given."""
        return ((s, sent) for s, sent in reversed(self.by_sender.items()) if sender is None or s.who == sender.who)


class FormsLedger:
    """Forms by content, the least recently used content out first. Not thread-safe.

    ``recall`` O(senders of the content), ``record`` that and O(pieces).

    Args:
        max_entries: contents kept.
        max_bytes: bytes kept, estimated from above.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        if max_entries < 1:
            raise ConfigError("max_forms", f"is {max_entries}", "use an int of 1 or more")
        if max_bytes < 1:
            raise ConfigError("max_forms_bytes", f"is {max_bytes}", "use an int of 1 or more")
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate."""
        return self._size

    def recall(self, key: bytes, sender: Sender, holds: Callable[[Sent], bool], *, own: bool = False) -> Sent | None:
        """The form in which this content was sent, among those that ``holds`` accepts for the prompt at hand.

        That of this very sender first, then of the same ``who``, then of the same ``system``, then any; of several one
        with annotations, since these hold only where it was sent so; then the latest. With ``own``, none but those of
        the same ``who``.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        fitting = [(known, sent) for known, sent in entry.latest(sender if own else None) if holds(sent)]
        if not fitting:
            return None
        return max(fitting, key=lambda item: (_likeness(item[0], sender), bool(item[1].targets)))[1]

    def record(self, key: bytes, sender: Sender, sent: Sent, *, replace: bool = True) -> bool:
        """This content was sent so, and its sender's next turns are sent the same. What was sent last counts: the
        engine has it last. Without ``replace`` what is recorded of this very sender stays.

        Returns:
            Whether there was room; if not, nothing is kept of this content.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            self._size += _ENTRY_BYTES
        self._entries.move_to_end(key)
        if sender in entry.by_sender and (not replace or entry.by_sender[sender] == sent):
            entry.by_sender.move_to_end(sender)
            return True
        if sender in entry.by_sender:
            self._size -= entry.by_sender.pop(sender).size
        same = next((s for s, form in entry.by_sender.items() if s.who == sender.who and form == sent), None)
        if same is not None:
            entry.by_sender[sender] = entry.by_sender.pop(same)
            return True
        entry.by_sender[sender] = sent
        self._size += sent.size
        if len(entry.by_sender) > MAX_SENDERS:
            self._size -= entry.by_sender.popitem(last=False)[1].size
        self._evict()
        return key in self._entries

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._size = 0

    def _evict(self) -> None:
        while len(self._entries) > self._max_entries or self._size > self._max_bytes:
            _, entry = self._entries.popitem(last=False)
            self._size -= entry.size

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a bound or a count is wrong. O(everything)."""
        size = sum(entry.size for entry in self._entries.values())
        if size != self._size or size > self._max_bytes:
            raise InvariantError(f"counts {self._size} bytes, holds {size} of {self._max_bytes}")
        if len(self._entries) > self._max_entries:
            raise InvariantError(f"holds {len(self._entries)} contents of {self._max_entries}")
        if not all(1 <= len(entry.by_sender) <= MAX_SENDERS for entry in self._entries.values()):
            raise InvariantError("a content without a sender, or with too many")


def _likeness(known: Sender, sender: Sender) -> int:
    return 2 * (known.who == sender.who) + (known.system == sender.system)
