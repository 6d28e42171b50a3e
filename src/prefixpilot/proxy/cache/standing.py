"""How well the engine's cache is known and what keeps it from being known better, in words: shown, and logged once for
each change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, Protocol

from prefixpilot.engines.base import EventListener, EventSource, SourceStatus
from prefixpilot.proxy.cache.watch import Rank
from prefixpilot.residency.state import CacheState

THE_ENGINES: Final = "the engine's"
"""Whose cache it is, in the log, where there is one engine."""
SHOWN: Final = 3
"""Sources whose reasons are written out; the others are counted."""

log = logging.getLogger(__name__)


class Known(Protocol):
    """What of a picture is needed: :class:`~prefixpilot.proxy.cache.picture.Picture`."""

    @property
    def state(self) -> CacheState: ...
    def why(self) -> str: ...


class SourceMaker(Protocol):
    """Finds where the engine publishes its events."""

    async def source(self, listener: EventListener) -> EventSource:
        """A source that is not started yet; may wait for long. Raises PrefixPilotError."""
        ...

    async def look(self, statuses: Sequence[SourceStatus]) -> None:
        """See whether hosts can be found of which nothing has come. Raises nothing."""
        ...

    def remedy(self, status: SourceStatus) -> str:
        """What helps where a source tells nothing, in the names of the settings; empty for nothing. From any thread."""
        ...

    def waiting(self) -> str:
        """Why there is no source yet; empty if there is one. From any thread."""
        ...


class Standing:
    """From any thread.

    Args:
        view: the picture of the cache.
        publishers: say what helps; ``None`` where events are not followed.
        whose: cache it is, in the log.
    """

    def __init__(self, view: Known, publishers: SourceMaker | None = None, whose: str = THE_ENGINES) -> None:
        self._whose = whose
        self._view = view
        self._publishers = publishers
        self._lock = Lock()
        self._logged: CacheState | None = None
        self._statuses: dict[Rank, SourceStatus] = {}

    def note(self, status: SourceStatus) -> None:
        """A source's continuity has changed."""
        with self._lock:
            self._statuses[Rank(status.source, status.rank)] = status
        self.changed()

    def changed(self) -> None:
        """The state may be another one: logged if it is, but not what is said before anything has come. O(1) if not."""
        state = self._view.state
        if state is not self._logged and not (self._logged is None and state is CacheState.UNKNOWN):
            self._log(state)

    def silent(self, statuses: Iterable[SourceStatus]) -> None:
        """Something should have come by now: if nothing has, and nothing was logged before, that is logged."""
        if self._logged is None and self._view.state is CacheState.UNKNOWN:
            self._log(CacheState.UNKNOWN, statuses)

    def _log(self, state: CacheState, statuses: Iterable[SourceStatus] | None = None) -> None:
        with self._lock:
            if self._logged is state:
                return
            self._logged = state
            known = list(self._statuses.values()) if statuses is None else list(statuses)
        reason = self.reason(known)
        level = logging.INFO if state is CacheState.EXACT else logging.WARNING
        log.log(level, "%s cache is known as %s%s", self._whose, state.name, f": {reason}" if reason else "")

    def reason(self, statuses: Iterable[SourceStatus]) -> str:
        """Why the state is no better; empty with EXACT."""
        if self._view.state is CacheState.EXACT:
            return ""
        of_sources = list(dict.fromkeys(filter(None, map(self._of, statuses))))
        more = len(of_sources) - SHOWN
        others = [f"and {more} sources more"] if more > 0 else []
        waiting = "" if self._publishers is None else self._publishers.waiting()
        found = "; ".join(filter(None, (waiting, self._view.why(), *of_sources[:SHOWN], *others)))
        return found or ("events are off: what is held is estimated" if self._publishers is None else "")

    def _of(self, status: SourceStatus) -> str:
        remedy = self._publishers.remedy(status) if status.reason and self._publishers is not None else ""
        return f"{status.reason}: {remedy}" if remedy else status.reason
