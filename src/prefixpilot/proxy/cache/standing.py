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
MOST_LINES: Final = 16
"""At most so many are logged for as long as the state stays the same."""
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")

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

    async def look(self, statuses: Sequence[SourceStatus]) -> bool:
        """See whether hosts can be found of which nothing has come; whether the engine publishes elsewhere now, and
        another source is to be made. Raises nothing."""
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
        self._said: set[str] = set()
        self._lines = 0
        self._statuses: dict[Rank, SourceStatus] = {}

    def note(self, status: SourceStatus) -> None:
        """A source's continuity has changed."""
        with self._lock:
            self._statuses[Rank(status.source, status.rank)] = status
        self.changed()

    def forget(self) -> None:
        """The sources are followed no more."""
        with self._lock:
            self._statuses.clear()

    def changed(self) -> None:
        """The state may be another one: logged if it is, but not what is said before anything has come. O(1) if not."""
        state = self._view.state
        if state is not self._logged and not (self._logged is None and state is CacheState.UNKNOWN):
            self._log(state)

    def silent(self, statuses: Iterable[SourceStatus]) -> None:
        """Something should have come by now. What is logged: that nothing has, if nothing was logged before; and what
        keeps the state from being better, where it is of another kind than all that was logged of that state."""
        found, state = list(statuses), self._view.state
        if self._logged is None and state is CacheState.UNKNOWN:
            self._log(state, found)
        elif self._logged is state and state is not CacheState.EXACT and self._is_news(found):
            self._write(state, found)

    def _log(self, state: CacheState, statuses: Iterable[SourceStatus] | None = None) -> None:
        with self._lock:
            if self._logged is state:
                return
            self._logged = state
            known = list(self._statuses.values()) if statuses is None else list(statuses)
            self._said, self._lines = self._kinds(known), 1
        self._write(state, known)

    def _is_news(self, statuses: Sequence[SourceStatus]) -> bool:
        """Whether a reason is of a new kind; no longer once many were."""
        kinds = self._kinds(statuses)
        with self._lock:
            news = not kinds <= self._said and self._lines < MOST_LINES
            if news:
                self._said |= kinds
                self._lines += 1
        return news

    def _kinds(self, statuses: Iterable[SourceStatus]) -> set[str]:
        """Of what kinds the reasons are: numbers in them, and which source it is, make no other one."""
        texts = ["" if self._publishers is None else self._publishers.waiting(), *self._view.why().split("; ")]
        return {*filter(None, (text.translate(_NO_DIGITS) for text in texts)), *filter(None, map(_kind, statuses))}

    def _write(self, state: CacheState, statuses: Iterable[SourceStatus]) -> None:
        reason = self.reason(statuses)
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


def _kind(status: SourceStatus) -> str:
    """Empty where nothing stands in the way."""
    counts = (status.batches, status.lost, status.unreadable, status.unanswered)
    shown = "".join("1" if count else "0" for count in (*counts, status.connected, status.silent))
    return f"{status.continuity.value} {shown}" if status.reason else ""
