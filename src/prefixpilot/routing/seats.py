"""Names of replicas that come and go, and the index by which policies know each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Change(NamedTuple):
    """Attributes:
    emptied: indices on which nobody sits any more, rising.
    taken: indices on which somebody new sits, rising.
    """

    emptied: tuple[int, ...]
    taken: tuple[int, ...]


class Seats:
    """Each name has an index for as long as it is there; a new name takes the lowest free one. Deterministic.

    So a replica that is started in the place of one that died has that one's index, and what goes by index (a hash of
    a conversation, a directory) finds it there. There are never more seats than there were names at once.
    """

    def __init__(self) -> None:
        self._names: list[str | None] = []

    @property
    def names(self) -> tuple[str | None, ...]:
        """By index; ``None`` where nobody sits."""
        return tuple(self._names)

    def update(self, names: Iterable[str]) -> Change:
        """Those, and nobody else, are there now. O(names)."""
        wanted = dict.fromkeys(names)
        emptied = tuple(i for i, name in enumerate(self._names) if name is not None and name not in wanted)
        for index in emptied:
            self._names[index] = None
        taken = tuple(sorted(map(self._seat, sorted(set(wanted) - set(self._names)))))
        while self._names and self._names[-1] is None:
            self._names.pop()
        return Change(emptied, taken)

    def _seat(self, name: str) -> int:
        if None not in self._names:
            self._names.append(None)
        index = self._names.index(None)
        self._names[index] = name
        return index
