"""Order within one request (Algorithm 2), and the nearest order that the caller's constraints allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    the given one is. That makes every step of a greedy choice safe.
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
        """At each step the first unit in the wished order that leaves the rest feasible. O(n x min(n, D)).

        An allowed order, and an allowed beginning of one, come back as they are; a unit is wished where its first
        block is.

        >>> Arranger(Constraints(max_displacement=1), "abcd").nearest((3, 2, 1, 0))
        (1, 0, 3, 2)
        """
        place = {position: i for i, position in reversed(list(enumerate(wish)))}
        wished = {unit: min(place[position] for position in unit) for unit in self.units.middle}
        if self._limit is None:
            return tuple(chain(self.units.first, *sorted(wished, key=wished.__getitem__), self.units.last))
        left, order = list(self.units.middle), list(self.units.first)
        while left:
            chosen = min(self._allowed(left, len(order)), key=wished.__getitem__)
            left.remove(chosen)
            order.extend(chosen)
        return (*order, *self.units.last)

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
        for unit in placed.middle if self._limit is None else self._allowed(placed.middle, placed.length):
            if unit[0] == position:
                middle = tuple(other for other in placed.middle if other != unit)
                return Placed(unit[1:] or NO_UNIT, middle, placed.length + len(unit))
        return None

    def _allowed(self, left: Sequence[range], length: int) -> Iterator[range]:
        """The units that may come next, in the given order: released, and not too long for those before them."""
        assert self._limit is not None
        slack, start = len(self.units.order), length
        for unit in left:
            if unit[0] > length + self._limit:
                return
            if len(unit) <= slack:
                yield unit
            slack = min(slack, unit[0] + self._limit - start)
            if slack < 1:
                return
            start += len(unit)
