"""Answered requests whose own events have not come yet: they are compared once those have, in order, or given up."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final, Protocol

from prefixpilot.proxy.cache.watch import PageTokens, Watch

MAX_HELD: Final = 1024
HOLD_S: Final = 2.0
"""Events that have not come so long after the answer are not waited for."""


class Looking(Protocol):
    """What of the view is needed: :class:`~prefixpilot.proxy.cache.view.CacheView`. Raises nothing of its own."""

    def awaits(self, watch: Watch) -> PageTokens | None:
        """The tokens whose events say that all of an answered request has been told; ``None``: nothing will be."""
        ...

    def look(self, watch: Watch, *, last_time: bool = False) -> bool:
        """Sets ``watch.look``, if it can; whether the request can be settled."""
        ...


class _Entry:
    """A request that waits: for what, and whether it is to be looked at. ``None``: for its own tokens still."""

    __slots__ = ("awaited", "due", "watch")

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.awaited: PageTokens | None = None
        self.due = False


class Held:
    """In the order in which they were answered; not thread-safe: one owner.

    A request is looked at only when all that were answered before it went out are done: where its events begin is known
    by where theirs end. That goes for those too whose tokens come later than those of requests after them.

    Args:
        done: is called with each request once, when it is to be settled.
        most: the oldest of more is given up.
    """

    def __init__(self, view: Looking, done: Callable[[Watch], None], most: int = MAX_HELD) -> None:
        self._view = view
        self._done = done
        self._most = most
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def answered(self, watch: Watch) -> None:
        """A request whose tokens are still to come: :meth:`add` is called once they have. O(1) but for a bound."""
        self._entries[watch.sent] = _Entry(watch)
        self._keep_bound()

    def add(self, watch: Watch) -> bool:
        """An answered request, its tokens known if they ever will be; whether it has to wait. O(tokens + waiting)."""
        entry = self._entries.get(watch.sent)
        awaited = self._view.awaits(watch)
        if awaited is None:
            if entry is not None:
                self._finish(entry)
                self.resume(frozenset())
            else:
                self._done(watch)
            return False
        if entry is None:
            entry = self._entries[watch.sent] = _Entry(watch)
        entry.awaited, entry.due = awaited, True
        self.resume(frozenset())
        self._keep_bound()
        return watch.sent in self._entries

    def _keep_bound(self) -> None:
        if len(self._entries) > self._most:
            self.give_up(next(iter(self._entries.values())).watch)

    def resume(self, came: Set[PageTokens]) -> None:
        """These tokens were told. O(waiting), and O(tokens) for each that may be ready."""
        earliest: int | None = None
        for entry in list(self._entries.values()):
            entry.due = entry.due or entry.awaited in came
            blocked = earliest is not None and earliest < entry.watch.sent
            if entry.due and not blocked and self._ready(entry):
                self._finish(entry)
            elif earliest is None or entry.watch.ended < earliest:
                earliest = entry.watch.ended

    def give_up(self, watch: Watch) -> bool:
        """It waits no longer; whether it still waited for its events. One without tokens is waited for by nobody any
        more, that is all."""
        entry = self._entries.get(watch.sent)
        if entry is None:
            return False
        if entry.awaited is None:
            del self._entries[watch.sent]
        else:
            self._view.look(watch, last_time=True)
            self._finish(entry)
        self.resume(frozenset())
        return entry.awaited is not None

    def _ready(self, entry: _Entry) -> bool:
        entry.due = False
        return self._view.look(entry.watch)

    def _finish(self, entry: _Entry) -> None:
        del self._entries[entry.watch.sent]
        self._done(entry.watch)
