"""Order within one request (Algorithm 2), and the nearest order that the caller's constraints allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from prefixpilot.constraints import NO_UNIT, UNCONSTRAINED, Constraints, displacement
from prefixpilot.core import BlockId

try:
    kernels: Any = import_module("prefixpilot._ordering")
except ImportError:
    kernels = None


def order_blocks(blocks: Sequence[BlockId], prefix: Sequence[BlockId]) -> tuple[int, ...]:
    """Positions of ``blocks`` in prompt order: a permutation of ``range(len(blocks))``. O(len).

    Args:
        blocks: the retriever's order; duplicates allowed.
        prefix: distinct blocks, each in ``blocks``: what the matched or parent node holds, in its order.

    A duplicate keeps its place among the rest, so that its first copy always stands before it.

    >>> order_blocks([2, 1, 4], [1, 2])
    (1, 0, 2)
    """
    if kernels is not None:
        found: tuple[int, ...] | None = kernels.order(tuple(blocks), tuple(prefix))
        if found is not None:
            return found
    first = dict(zip(blocks, range(len(blocks)), strict=True))
    if len(first) == len(blocks):
        return (*map(first.pop, prefix), *first.values())
    first = dict(zip(reversed(blocks), reversed(range(len(blocks))), strict=True))
    head = [first[block] for block in prefix]
    taken = set(head)
    return (*head, *[position for position in range(len(blocks)) if position not in taken])


class Placed(NamedTuple):
    """How far a context has been laid out.

    Attributes:
        begun: positions that must come next, in this order.
        middle: units not yet placed, in the given order.
        length: blocks placed, those of ``begun`` included.
    """

    begun: range
    middle: tuple[range, ...]
    length: int


class Arranger:
    """Keeps the constraints of one request: turns a wished order into one that they allow.

    The bound on displacement makes each unit a task with a release and a deadline, ``rank - D`` and ``rank + D``. Their
    windows rise with the rank, so that (by exchange of neighbours) some order of the units left is feasible exactly if
    the given one is, and of the units left the eldest, the one of the lowest rank, has least time to spare. That makes
    every step of a greedy choice safe, and two comparisons.
    """

    def __init__(self, constraints: Constraints, ids: Sequence[BlockId], default_limit: int | None = None) -> None:
        """For a request with these identities by position; ``default_limit`` is used if it sets none."""
        self.units = constraints.units(len(ids))
        limit = constraints.max_displacement
        if limit is None and default_limit is not None:
            limit = max(default_limit, displacement(self.units.order))
        self._limit = limit
        self._position: dict[BlockId, int] = {}
        for position in self.units.order:
            self._position.setdefault(ids[position], position)

    @classmethod
    def of(cls, constraints: Constraints, ids: Sequence[BlockId], default_limit: int | None) -> Arranger | None:
        """``None`` where nothing is demanded."""
        if constraints is UNCONSTRAINED and default_limit is None:
            return None
        return cls(constraints, ids, default_limit)

    @property
    def given(self) -> tuple[int, ...]:
        """The given order, but for pinned blocks."""
        return self.units.order

    def nearest(self, wish: Sequence[int]) -> tuple[int, ...]:
        """At each step the first unit in the wished order that leaves the rest feasible.

        O(n (log n + L)) for units of L different lengths.

        An allowed order, and an allowed beginning of one, come back as they are; a unit is wished where its first
        block is.

        >>> Arranger(Constraints(max_displacement=1), "abcd").nearest((3, 2, 1, 0))
        (1, 0, 3, 2)
        """
        place = {position: i for i, position in reversed(list(enumerate(wish)))}
        wished = {unit: min(place[position] for position in unit) for unit in self.units.middle}
        if self._limit is None:
            return tuple(chain(self.units.first, *sorted(wished, key=wished.__getitem__), self.units.last))
        return (*self.units.first, *chain.from_iterable(self._in_time(wished, self._limit)), *self.units.last)

    def _in_time(self, wished: dict[range, int], limit: int) -> Iterator[range]:
        """The units in the middle, each as early as it is wished and may come."""
        middle, length, released = self.units.middle, len(self.units.first), 0
        waiting: dict[int, list[tuple[int, range]]] = {}
        placed: set[range] = set()
        for eldest in middle:
            while eldest not in placed:
                while released < len(middle) and middle[released][0] <= length + limit:
                    unit = middle[released]
                    heappush(waiting.setdefault(len(unit), []), (wished[unit], unit))
                    released += 1
                candidates = [(wished[eldest], eldest)]
                for size, units in waiting.items():
                    while units and units[0][1] in placed:
                        heappop(units)
                    if units and length + size <= eldest[0] + limit:
                        candidates.append(units[0])
                _, chosen = min(candidates)
                placed.add(chosen)
                length += len(chosen)
                yield chosen

    def advance(self, placed: Placed | None, block: BlockId) -> Placed | None:
        """The layout with ``block`` behind what is ``placed`` (nothing yet: ``None``); ``None`` if not allowed. O(n).

        So a look-up in the index follows only prefixes that :meth:`nearest` keeps.
        """
        if placed is None:
            placed = Placed(self.units.first, self.units.middle, len(self.units.first))
        position = self._position[block]
        if placed.begun:
            return placed._replace(begun=placed.begun[1:]) if position == placed.begun[0] else None
        if not placed.middle:
            return Placed(self.units.last[1:], (), placed.length) if position in self.units.last[:1] else None
        unit = next((unit for unit in placed.middle if unit[0] == position), None)
        if unit is None or not self._may_come(unit, placed.middle[0], placed.length):
            return None
        middle = tuple(other for other in placed.middle if other is not unit)
        return Placed(unit[1:] or NO_UNIT, middle, placed.length + len(unit))

    def _may_come(self, unit: range, eldest: range, length: int) -> bool:
        """Whether a unit may stand behind ``length`` blocks: it is released, and ``eldest`` not too late behind it."""
        if self._limit is None:
            return True
        released = unit[0] <= length + self._limit
        return unit is eldest or (released and length + len(unit) <= eldest[0] + self._limit)
