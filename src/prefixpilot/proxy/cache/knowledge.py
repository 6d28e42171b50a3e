"""How well the engine's cache is known, by what the sources of its events say of themselves and what came true."""

from __future__ import annotations

from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.watch import Rank
from prefixpilot.residency.pages import PageTable
from prefixpilot.residency.state import CacheState, StateTracker, worst


class Knowledge:
    """The state of each rank, and of all together. Not thread-safe.

    The source knows best whether batches are missing; its word decides. A rank of which nothing has come yet is
    unknown, also while its engine is being asked. What those hold of which something has come is known all the same:
    all together are DEGRADED then, and UNKNOWN only where nothing has come of any.
    """

    def __init__(self) -> None:
        self._states: dict[Rank, StateTracker] = {}
        self._last: dict[Rank, Continuity] = {}
        self._contradicted: set[Rank] = set()
        self._kept: set[Rank] = set()

    @property
    def state(self) -> CacheState:
        """The worst of all that are heard of; DEGRADED at best while another is not; UNKNOWN without events."""
        heard = [tracker.state for tracker in self._states.values() if tracker.state is not CacheState.UNKNOWN]
        if heard and (self._contradicted or len(heard) < len(self._states)):
            return CacheState.DEGRADED
        return worst(heard)

    @property
    def contradicted(self) -> bool:
        """Whether the engine's own count has shown a picture to be wrong, and nothing has settled that since."""
        return bool(self._contradicted)

    def why(self) -> str:
        """What keeps it from EXACT, but for what sources say of themselves; empty if nothing does."""
        heard = sum(tracker.state is not CacheState.UNKNOWN for tracker in self._states.values())
        found = [f"{heard} of {len(self._states)} ranks heard"] if 0 < heard < len(self._states) else []
        if self._contradicted:
            found.append("the engine reused nothing of a prompt that it was known to hold; it may have begun anew")
        if any(self._states[rank].state is CacheState.DEGRADED for rank in self._kept):
            found.append(
                "the engine's batches began anew, and yet it reuses pages of before, of which no more is known; "
                "the next clearing of its cache, or its restart, mends it"
            )
        return "; ".join(found)

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
            self._kept.discard(rank)
        else:
            tracker.replayed()

    def emptied(self, rank: Rank) -> None:
        """The engine said that it holds nothing, or has begun anew: that settles what contradicted it."""
        self._contradicted.discard(rank)
        if rank in self._kept:  # of that its source knew nothing, and will not say that it is mended
            self._kept.discard(rank)
            self._states[rank].cleared()
            self._take(rank, self._last.get(rank, Continuity.WHOLE))

    def kept(self, rank: Rank) -> None:
        """The engine's numbers began anew, which is a restart, and yet it reused pages of before: they are as good as
        batches that were lost."""
        if rank not in self._kept:
            self._kept.add(rank)
            self._states[rank].lost()

    def forget(self) -> None:
        """Nothing of any rank is believed any more."""
        self._states.clear()
        self._last.clear()
        self._contradicted.clear()
        self._kept.clear()

    def contradict(self, rank: Rank) -> None:
        """The engine reused nothing of a prompt of which it was known to hold some."""
        if rank in self._states:
            self._contradicted.add(rank)

    def reported(self, rank: Rank, table: PageTable, *, as_predicted: bool, proved: bool = False) -> None:
        """The engine reported the cached tokens of a request that ``table`` had predicted.

        Args:
            proved: among them are some that were in doubt.
        """
        if rank in self._states:
            self._states[rank].reported(table, as_predicted=as_predicted)
            if self._states[rank].state is CacheState.EXACT:
                self._kept.discard(rank)
        if proved or not table.doubtful:
            self._contradicted.discard(rank)
