"""Eq. 1 of the paper in plain Python: the specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prefixpilot.core import BlockId

if TYPE_CHECKING:
    from fractions import Fraction


class Overlap(NamedTuple):
    """What Eq. 1 is computed from.

    Attributes:
        shared: number of shared blocks, ``|S|``.
        longest: ``max(|Ci|, |Cj|)``.
        displacement: sum over shared blocks of ``|p_i - p_j|``.
    """

    shared: int
    longest: int
    displacement: int

    def distance(self, alpha: float) -> float:
        """Eq. 1 in floats, in the operation order that the pairwise version repeats bit for bit."""
        if self.shared == 0:
            return 1.0
        return 1.0 - self.shared / self.longest + alpha * (self.displacement / self.shared)

    def exact(self, alpha: float) -> Fraction:
        """Eq. 1 without rounding, for comparisons that must see ties (Algorithm 1)."""
        from fractions import Fraction  # 6 ms of import, for the paper's matcher only

        if self.shared == 0:
            return Fraction(1)
        exact_alpha = Fraction(alpha).limit_denominator(10**9)
        return 1 - Fraction(self.shared, self.longest) + exact_alpha * Fraction(self.displacement, self.shared)


def overlap(first: Mapping[BlockId, int], second: Sequence[BlockId]) -> Overlap:
    """Overlap of two contexts of distinct blocks, the first given as ``{block: position}``. O(|second|)."""
    shared = displacement = 0
    for position, block in enumerate(second):
        other = first.get(block)
        if other is not None:
            shared += 1
            displacement += abs(other - position)
    return Overlap(shared, max(len(first), len(second)), displacement)


def distance(first: Sequence[BlockId], second: Sequence[BlockId], alpha: float = 0.001) -> float:
    """Distance between two contexts of distinct blocks; 1 if they share none. O(|first| + |second|).

    >>> distance([2, 6, 3, 5], [2, 6, 4, 0])
    0.5
    """
    return overlap({block: position for position, block in enumerate(first)}, second).distance(alpha)
