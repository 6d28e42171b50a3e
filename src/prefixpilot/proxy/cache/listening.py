"""Listens to an engine's events from start to close: opens a source, again and again where it cannot be opened, sees
whether something has come, and goes where the engine publishes after it has moved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from prefixpilot.engines.base import EventListener, EventSource, SourceStatus
from prefixpilot.errors import PrefixPilotError
from prefixpilot.proxy.cache.standing import SourceMaker, Standing
from prefixpilot.proxy.steps import Attempt

SILENCE_S: Final = 10.0
"""After which a source should have told something, or be connected again."""
OPEN_AGAIN_S: Final = (1.0, 5.0, 30.0)
"""Seconds until a source that could not be opened (its port is taken) is tried again; the last one is repeated."""

log = logging.getLogger(__name__)


class Listening:
    """For one event loop.

    Attributes:
        failed: why there is no source; empty if there is one, or will be.

    Args:
        publishers: find where the engine publishes.
        listener: of the source.
        standing: is told when nothing comes.
        left: is called, on another thread, once a source is followed no more, and before there is another.
        attempt: our errors end here.
        whose: cache it is, in the log.
    """

    def __init__(
        self,
        publishers: SourceMaker,
        listener: EventListener,
        standing: Standing,
        left: Callable[[], None],
        attempt: Attempt,
        whose: str,
    ) -> None:
        self.failed = ""
        self._publishers = publishers
        self._listener = listener
        self._standing = standing
        self._left = left
        self._attempt = attempt
        self._whose = whose
        self._source: EventSource | None = None
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(each) for each in (self._follow(), self._look())]

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How the sources stand. From any thread."""
        source = self._source
        return () if source is None else source.statuses()

    async def close(self) -> None:
        """Waits for the source, within its own bound."""
        for task in self._tasks:
            task.cancel()
        if self._source is not None:
            await asyncio.to_thread(self._attempt, "cache", self._source.stop)

    async def _follow(self) -> None:
        while True:
            source = self._source = await self._opened()
            await self._over.wait()
            log.warning("%s events are followed anew: they come from elsewhere, or were not listened to", self._whose)
            await asyncio.to_thread(self._attempt, "cache", source.stop)
            self._source = None
            await asyncio.to_thread(self._attempt, "cache_events", self._left)
            self._over.clear()

    async def _opened(self) -> EventSource:
        waits = iter(OPEN_AGAIN_S)
        wait = 0.0
        while True:
            wait = next(waits, wait)
            try:
                source = await self._publishers.source(self._listener)
                source.start()
                self.failed = ""
                return source
            except PrefixPilotError as error:
                await self._publishers.look(())
                failed = "; ".join(filter(None, (str(error), self._publishers.waiting(), "it is tried again")))
            if failed != self.failed:
                log.error("%s cache events cannot be followed: %s", self._whose, failed)
            self.failed = failed
            await asyncio.sleep(wait)

    async def _look(self) -> None:
        """Whether something has come, again and again; and whether anybody listens."""
        while True:
            await asyncio.sleep(SILENCE_S)
            ended = self._source is not None and not self._source.alive
            if await self._publishers.look(self.statuses()) or ended:
                self._over.set()
            elif not self.failed:
                self._standing.silent(self.statuses())
