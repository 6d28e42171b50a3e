"""Shared blocks and displacements of all pairs of contexts, counted on another device by PyTorch (optional).

Whole numbers only: the distances themselves are computed from them on the CPU, so that they are the same, bit for bit.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixpilot.errors import MissingExtraError

_CELLS: Final = 1 << 24
"""Comparisons of blocks at a time, of 9 bytes each."""


class PairSums(NamedTuple):
    """Pairs of a context and one behind it that share a block, rising.

    Attributes:
        cells: ``first * n + second``, for n contexts.
        sums: of ``unit + displacement`` over the blocks that both hold.
    """

    cells: NDArray[np.int64]
    sums: NDArray[np.int64]


class Device(NamedTuple):
    """Where to count.

    Attributes:
        arrays: a module of arrays: ``torch``, or ``numpy``, whose functions of the same names are the specification.
        name: of the device, as that module knows it.
    """

    arrays: Any
    name: str

    @classmethod
    def of_torch(cls, name: str) -> Device:
        """A device of PyTorch: ``cpu``, ``cuda``, ``cuda:1``.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        try:
            return cls(importlib.import_module("torch"), name)
        except ImportError as error:
            raise MissingExtraError("torch", "pip install 'prefixpilot[gpu]'") from error


def pair_sums(padded: NDArray[np.int64], unit: int, device: Device, cells: int = _CELLS) -> Iterator[PairSums]:
    """All pairs, some contexts at a time. O(n^2 k^2) comparisons; about ``cells`` at once.

    Args:
        padded: ``(n, k)``, the distinct blocks of each context by rank, as numbers of 0 or more; -1 behind the last.
        unit: counts one shared block.
    """
    xp = device.arrays
    n, k = padded.shape
    every = xp.asarray(padded, device=device.name)
    column = xp.asarray(np.arange(n), device=device.name)
    step = max(1, cells // max(1, n * k))
    for first in range(0, n, step):
        own = xp.asarray(np.where(padded < 0, -2, padded)[first : first + step], device=device.name)
        sums = xp.zeros((len(own), n), dtype=xp.int64, device=device.name)
        for rank in range(k):
            terms = xp.asarray(np.abs(np.arange(k) - rank) + unit, device=device.name)
            sums = sums + ((every[None, :, :] == own[:, rank, None, None]) * terms).sum(-1)
        behind = column[None, :] > column[first : first + step, None]
        row, other = xp.where(behind & (sums > 0))
        yield PairSums(_on_host((row + first) * n + other), _on_host(sums[row, other]))


def _on_host(array: Any) -> NDArray[np.int64]:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array, dtype=np.int64)
