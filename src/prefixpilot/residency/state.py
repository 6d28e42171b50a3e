"""How well a cache is known: EXACT, DEGRADED or UNKNOWN, and how one becomes another."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from prefixpilot.errors import ConfigError
from prefixpilot.residency.pages import PageTable

AGREEMENTS: Final = 100
"""Reports in a row that have to be as predicted before a picture with a hole in it counts as whole again."""


class CacheState(Enum):
    """How well the picture of a cache is known to be right."""

    EXACT = "exact"
    """The engine's events have been followed without a hole."""
    DEGRADED = "degraded"
    """Batches are missing: they are being replayed, or could not be."""
    UNKNOWN = "unknown"
    """No events: what is held is estimated."""


def worst(states: Iterable[CacheState]) -> CacheState:
    """The state of several ranks taken together; UNKNOWN for none."""
    found = set(states)
    for state in (CacheState.UNKNOWN, CacheState.DEGRADED):
        if state in found:
            return state
    return CacheState.EXACT if found else CacheState.UNKNOWN


class StateTracker:
    """The state of one rank, by what its subscriber tells. Each method O(1).

    ::

                     first batch is number 0, restarted, cleared
        UNKNOWN ────────────────────────────────────────────────▶ EXACT
           │ first batch is a later one           gap │   ▲ replayed; else restarted, cleared,
           └─────────────▶ DEGRADED ◀─────────────────┘   │ or as predicted so many times
                               └──────────────────────────┘
        ended: UNKNOWN from anywhere

    A picture with a hole is whole again once the engine holds nothing, or if it proves right: nothing of it is
    doubtful, no page waits for its parent, and so many reports in a row were as predicted.

    Args:
        agreements: how many reports; 1 or more.

    Raises:
        ConfigError: below 1.
    """

    def __init__(self, agreements: int = AGREEMENTS) -> None:
        if type(agreements) is not int or agreements < 1:
            raise ConfigError("agreements", f"is {agreements!r}", "use an int of 1 or more")
        self._needed = agreements
        self._agreed = 0
        self._hole = False
        self.state = CacheState.UNKNOWN

    def began(self, sequence: int) -> None:
        """The first batch has come, or been replayed: its number. One that is not 0 leaves a hole."""
        if self.state is CacheState.UNKNOWN:
            if sequence:
                self.lost()
            else:
                self.cleared()

    def gap(self) -> None:
        """Batches are missing and have been asked for again."""
        self.state = CacheState.DEGRADED
        self._agreed = 0

    def replayed(self) -> None:
        """All batches that were asked for have come."""
        if self.state is CacheState.DEGRADED and not self._hole:
            self.state = CacheState.EXACT

    def lost(self) -> None:
        """Batches are missing for good: nobody has them any more."""
        self._hole = True
        self.gap()

    def cleared(self) -> None:
        """The engine holds nothing: it said so, or has started anew. Whatever was missed does not matter any more."""
        self.state = CacheState.EXACT
        self._hole = False
        self._agreed = 0

    def reported(self, table: PageTable, *, as_predicted: bool) -> None:
        """The engine reported the cached tokens of a request, for which ``table`` had a prediction."""
        sound = as_predicted and not table.doubtful and not table.orphans
        self._agreed = self._agreed + 1 if sound else 0
        if self._hole and self._agreed >= self._needed:
            self.cleared()

    def ended(self) -> None:
        """No more events come."""
        self.state = CacheState.UNKNOWN
        self._hole = False
        self._agreed = 0
