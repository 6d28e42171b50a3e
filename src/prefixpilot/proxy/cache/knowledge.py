"""How well the engine's cache is known, by what the sources of its events say of themselves and what came true."""

from __future__ import annotations

from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.watch import Rank
from prefixpilot.residency.pages import PageTable
from prefixpilot.residency.state import CacheState, StateTracker, worst


class Knowledge:
    """The state of each rank, and of all together. Not thread-safe.

    The source knows best whether batches are missing; its word decides. A rank of which nothing has come yet is
    unknown, also while its engine is being asked.
    """

    def __init__(self) -> None:
        self._states: dict[Rank, StateTracker] = {}
        self._last: dict[Rank, Continuity] = {}

    @property
    def state(self) -> CacheState:
        """The worst of all; UNKNOWN without events."""
        return worst(tracker.state for tracker in self._states.values())

    def began(self, rank: Rank) -> None:
        """A batch has come."""
        if rank not in self._states:
            self._states[rank] = StateTracker()
        if self._states[rank].state is CacheState.UNKNOWN:
            self._take(rank, self._last.get(rank, Continuity.WHOLE))

    def note(self, status: SourceStatus) -> None:
        """A source's continuity has changed."""
        rank = Rank(status.source, status.rank)
        tracker = self._states.setdefault(rank, StateTracker())
        if tracker.state is not CacheState.UNKNOWN or status.continuity is Continuity.WHOLE:
            self._take(rank, status.continuity)
        self._last[rank] = status.continuity

    def _take(self, rank: Rank, continuity: Continuity) -> None:
        tracker = self._states[rank]
        if continuity is Continuity.BROKEN:
            tracker.lost()
        elif continuity is Continuity.CATCHING_UP:
            tracker.gap()
        elif tracker.state is CacheState.UNKNOWN or self._last.get(rank) is Continuity.BROKEN:
            tracker.cleared()
        else:
            tracker.replayed()

    def reported(self, rank: Rank, table: PageTable, *, as_predicted: bool) -> None:
        """The engine reported the cached tokens of a request that ``table`` had predicted."""
        if rank in self._states:
            self._states[rank].reported(table, as_predicted=as_predicted)
