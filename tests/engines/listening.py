"""Listeners that remember what they are told, and wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.residency.pages import PageTable


class Remembers:
    """See :class:`prefixpilot.engines.base.EventListener`, which this is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.batches: list[EventBatch] = []
        self.told: list[SourceStatus] = []
        self.log: list[int | Continuity] = []
        self.threads: set[str] = set()
        self.missed = 0

    def on_batch(self, batch: EventBatch) -> None:
        with self._changed:
            self.batches.append(batch)
            self.log.append(batch.sequence)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()

    def on_status(self, status: SourceStatus) -> None:
        with self._changed:
            self.told.append(status)
            self.log.append(status.continuity)
            self._changed.notify_all()

    def unheard(self) -> int:
        return self.missed

    @property
    def sequences(self) -> list[int]:
        with self._changed:
            return [batch.sequence for batch in self.batches]

    def wait(self, holds: Callable[[Remembers], bool], timeout_s: float = 20.0) -> bool:
        """Block until ``holds`` does; False once the bound has passed."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self), timeout_s)

    def wait_batches(self, count: int) -> bool:
        return self.wait(lambda self: len(self.batches) >= count)

    def wait_continuity(self, continuity: Continuity) -> bool:
        return self.wait(lambda self: bool(self.told) and self.told[-1].continuity is continuity)


class Mirror(Remembers):
    """Keeps a page table of what the engine tells."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable()

    def on_batch(self, batch: EventBatch) -> None:
        self.table.apply(batch)
        super().on_batch(batch)
