"""What a caller may demand of the order of a request's blocks. Frozen; it validates itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from prefixpilot.errors import InvalidRequestError


class PinnedUnits(NamedTuple):
    """A request's positions as units that move as a whole: a declared group, or a block of its own.

    Attributes:
        first: the unit that begins the context; empty if none is pinned.
        middle: the units that may be ordered, in the given order.
        last: the unit that ends the context; empty if none is pinned.
    """

    first: range
    middle: tuple[range, ...]
    last: range

    @property
    def order(self) -> tuple[int, ...]:
        """The given order, but for the pinned units: positions in prompt order."""
        return tuple(chain(self.first, *self.middle, self.last))


NO_UNIT: Final = range(0)


@dataclass(frozen=True, slots=True)
class Constraints:
    """Demands on the order of a request's blocks, by position in ``Request.blocks``. They hold in every plan.

    Attributes:
        groups: blocks that stay next to each other and in their given order; each a run of following positions.
        max_displacement: no block stands farther than this from its retriever rank. ``None``: that of
            :class:`~prefixpilot.PilotConfig`, which gives way to pins as far as they need it.
        first: begins the context; the whole group that it begins, if it is in one.
        last: ends the context; the whole group that it ends, if it is in one.

    Raises:
        InvalidRequestError: a wrong type, a group that is no run, or two groups with one position.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    max_displacement: int | None = None
    first: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Iterable) or not all(isinstance(group, Iterable) for group in self.groups):
            raise _error("groups", f"is {self.groups!r}", "give a tuple for each group")
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))
        for name in ("max_displacement", "first", "last"):
            if getattr(self, name) is not None:
                _check_position(name, getattr(self, name))
        taken: set[int] = set()
        for i, group in enumerate(self.groups):
            for position in group:
                _check_position(f"groups[{i}]", position)
            if any(after != before + 1 for before, after in pairwise(group)):
                raise _error(f"groups[{i}]", f"is {group}", "name blocks that follow each other in the given order")
            if not taken.isdisjoint(group):
                raise _error(f"groups[{i}]", "shares a block with another group", "put each block in one group at most")
            taken.update(group)

    def units(self, count: int) -> PinnedUnits:
        """The units of a request of ``count`` blocks. O(count).

        Raises:
            InvalidRequestError: a position is not there, two demands contradict each other, or the pins move a block
                farther than ``max_displacement``; names the field.
        """
        units = self._units(count)
        first = self._pinned("first", units, count)
        last = self._pinned("last", units, count)
        if first and first == last and len(units) > 1:
            raise _error("last", "is pinned with the block that is pinned first", "pin two blocks that may be apart")
        result = PinnedUnits(
            first, tuple(u for u in units if u not in (first, last)), NO_UNIT if first == last else last
        )
        needed = displacement(result.order)
        if self.max_displacement is not None and needed > self.max_displacement:
            raise _error(
                "max_displacement",
                f"is {self.max_displacement}, but the pinned blocks move a block by {needed}",
                f"allow {needed} or more, or pin other blocks",
            )
        return result

    def _units(self, count: int) -> list[range]:
        runs = {group[0]: range(group[0], group[-1] + 1) for group in self.groups if group}
        for i, group in enumerate(self.groups):
            if group and group[-1] >= count:
                raise _error(f"groups[{i}]", f"names position {group[-1]} of {count} blocks", _COUNT)
        units, position = [], 0
        while position < count:
            units.append(runs.get(position, range(position, position + 1)))
            position = units[-1].stop
        return units

    def _pinned(self, name: str, units: list[range], count: int) -> range:
        position = getattr(self, name)
        if position is None:
            return NO_UNIT
        if position >= count:
            raise _error(name, f"is {position}, of {count} blocks", _COUNT)
        unit = next(unit for unit in units if position in unit)
        if position != unit[0 if name == "first" else -1]:
            end = "begin" if name == "first" else "end"
            raise _error(
                name,
                f"is {position}, which does not {end} its group",
                f"pin position {unit[0 if name == 'first' else -1]}",
            )
        return unit


UNCONSTRAINED: Final = Constraints()
_COUNT: Final = "count positions from 0, the most relevant block"


def displacement(order: tuple[int, ...]) -> int:
    """How far the block that is moved farthest stands from its rank; 0 for no blocks.

    >>> displacement((2, 0, 1))
    2
    """
    return max((abs(place - rank) for place, rank in enumerate(order)), default=0)


def _check_position(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _error(name, f"is {value!r}" if name[-1] != "]" else f"holds {value!r}", "use ints of 0 or more")


def _error(name: str, reason: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"Constraints.{name}", reason, remedy)
