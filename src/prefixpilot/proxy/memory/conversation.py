"""The recorded turns of one conversation: a forest in which every turn's parent is there too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prefixpilot.errors import InvariantError
from prefixpilot.proxy.memory.history import Chain
from prefixpilot.proxy.memory.records import Lineage, Turn

EMPTY_BYTES: Final = 4096
"""Of a conversation without turns: its key, whose strings are bounded, and the containers."""


@dataclass(slots=True)
class Conversation:
    """Turns by chain.

    Attributes:
        count, size: turns, and bytes held: an upper estimate.
        used: unix seconds of its last request.
        whole: all that is kept of it outside of memory is here too.
        lineage: shared by its turns.
    """

    turns: dict[Chain, list[Turn]] = field(default_factory=dict)
    count: int = 0
    size: int = EMPTY_BYTES
    used: float = 0.0
    whole: bool = True
    lineage: Lineage = field(default_factory=Lineage)

    def __iter__(self) -> Iterator[Turn]:
        for turns in self.turns.values():
            yield from turns

    def holds(self, turn: Turn) -> bool:
        """Whether this very object is recorded."""
        return any(known is turn for known in self.turns.get(turn.chain, ()))

    def known(self, turn: Turn) -> Turn | None:
        """The recorded turn that is this one, or equal to it: same branch, blocks and text."""
        found = self.turns.get(turn.chain, ())
        return next((known for known in found if known is turn or _same(known, turn)), None)

    def add(self, turn: Turn) -> None:
        """Record a turn whose parent is recorded."""
        turn.lineage = self.lineage
        self.turns.setdefault(turn.chain, []).append(turn)
        self.count += 1
        self.size += turn.size

    def remove(self, turn: Turn) -> None:
        """Forget a turn that is no parent."""
        self.turns[turn.chain].remove(turn)
        if not self.turns[turn.chain]:
            del self.turns[turn.chain]
        self.count -= 1
        self.size -= turn.size

    def place(self, path: Sequence[Turn]) -> tuple[Turn | None, list[Turn]]:
        """The deepest turn of a path that is recorded, and those of the path behind it. O(turns of the path)."""
        if len(path) > 1 and self.holds(path[-2]):  # as it nearly always is
            known = self.known(path[-1])
            return (path[-2], [path[-1]]) if known is None else (known, [])
        deepest: Turn | None = None
        for i, turn in enumerate(path):
            found = next((t for t in self.turns.get(turn.chain, ()) if _equal(t, turn, deepest)), None)
            if found is None:
                return deepest, list(path[i:])
            deepest = found
        return deepest, []

    def spare(self, path: Iterable[Turn]) -> Turn | None:
        """The turn to forget first: no parent, not of ``path``, sent longest ago. O(turns)."""
        kept = {id(turn) for turn in path} | {id(turn.parent) for turn in self}
        return min((turn for turn in self if id(turn) not in kept), key=lambda turn: turn.last_sent, default=None)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a parent is missing or a count is wrong. O(turns)."""
        turns = list(self)
        size = EMPTY_BYTES + sum(turn.size for turn in turns)
        if len(turns) != self.count or size != self.size:
            raise InvariantError(f"counts {self.count} turns and {self.size} bytes, holds {len(turns)} and {size}")
        for turn in turns:
            if turn.parent is not None and not self.holds(turn.parent):
                raise InvariantError("a turn without its parent")
            if turn.lineage is not self.lineage:
                raise InvariantError("a turn of another conversation")


def _equal(a: Turn, b: Turn, parent: Turn | None) -> bool:
    """Whether ``a`` is the turn ``b`` with this parent."""
    return a is b or (a.parent is parent and a.given == b.given and a.dropped == b.dropped and a.text == b.text)


def _same(a: Turn, b: Turn) -> bool:
    return _equal(a, b, b.parent)
