"""Bootstrap intervals over requests that two arms have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES: Final = 1000


class Interval(NamedTuple):
    """A figure of two arms. ``low`` and ``high``: 95 % of paired bootstrap resamples of the requests."""

    value: float
    low: float
    high: float


def paired(base: Floats, mine: Floats, compare: Callable[[Floats, Floats], Any]) -> Interval:
    """``compare`` of two arms, with its interval: each resample takes the same requests from both. O(resamples n).

    Args:
        base, mine: a value a request, in the same order; at least one.
        compare: from arrays whose last axis is over requests to figures without that axis.

    >>> paired(np.array([1.0, 2.0]), np.array([2.0, 3.0]), lambda a, b: (b - a).mean(axis=-1))
    Interval(value=1.0, low=1.0, high=1.0)
    """
    drawn = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    low, high = np.quantile(compare(base[drawn], mine[drawn]), (0.025, 0.975))
    return Interval(float(compare(base, mine)), float(low), float(high))
