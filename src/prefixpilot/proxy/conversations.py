"""The conversations of one proxy: its ledger, the store behind it, and the waits for the disk. Nothing here blocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from threading import RLock
from time import time
from typing import TYPE_CHECKING, Any

from prefixpilot.proxy.fleet.drains import SharedDrains
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.journal import NO_JOURNAL, Erased
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.memory.writer import StoreWriter
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Attempt

if TYPE_CHECKING:
    from prefixpilot.proxy.memory.shared import Fresh, SharedWriter

log = logging.getLogger(__name__)


class Conversations:
    """What is remembered of them, in memory and, with ``state_dir``, on disk.

    Args:
        lock: around every call of the ledger.
        attempt: the fail-open point.
        ledger: in the place of the ordinary one.

    Raises:
        ConfigError: the directory cannot be used.
    """

    def __init__(
        self,
        settings: ProxySettings,
        metrics: Metrics,
        lock: RLock,
        attempt: Attempt,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        store = settings.store
        self._bound_s = store.disk_timeout
        self._metrics = metrics
        self._writer: StoreWriter | None = None
        self._shared: SharedWriter | None = None
        told: dict[str, Any] = {
            "clock": clock,
            "attempt": attempt,
            "on_unsaved": metrics.unsaved.inc,
            "on_lost": metrics.lost.inc,
        }
        if store.redis_url is not None:
            self._writer = self._shared = _shared(store, settings.max_turns, told)
        elif store.directory is not None:
            kept = store.max_state_bytes, settings.max_turns, store.conversation_ttl
            self._writer = StoreWriter.open(store.directory, *kept, **told)
        if ledger is None:
            ledger = Ledger(
                settings.max_conversations,
                settings.max_turns,
                settings.max_ledger_bytes,
                ttl=store.conversation_ttl,
                clock=clock,
                journal=NO_JOURNAL if self._writer is None else self._writer,
                first_sent=0 if self._writer is None else self._writer.first_sent,
            )
        self.ledger: Ledger = guarded(ledger, lock)

    @property
    def kept(self) -> bool:
        """Whether they are kept on disk, so that one may have to be loaded."""
        return self._writer is not None

    def wants(self, key: LedgerKey | None) -> bool:
        """Whether :meth:`load` has something to do. Cheap."""
        return self._writer is not None and key is not None and (self._shared is not None or self.ledger.wants(key))

    async def load(self, key: LedgerKey) -> None:
        """Bring a conversation from the disk into memory, if it is there only. If that fails it is as if it were gone:
        counted, and told by the plan."""
        if self._writer is None:
            return
        try:
            if self._shared is not None:
                self._refreshed(key, await self._shared.refresh(key, self._bound_s, here=self.ledger.has(key)))
                return
            turns = await self._writer.load(key, self._bound_s)
        except StoreError as error:
            self._metrics.fail_opens.labels("load").inc()
            log.error("a conversation was not loaded: %s", error)
            return
        self._adopt(key, turns)

    def _refreshed(self, key: LedgerKey, fresh: Fresh) -> None:
        """What another proxy has done to a conversation goes before what is in memory."""
        if fresh.deleted or fresh.turns is not None:
            self.ledger.drop(key, deleted=fresh.deleted)
        if fresh.turns is not None:
            self.ledger.adopt(key, fresh.turns)

    def _adopt(self, key: LedgerKey, turns: list[Turn]) -> None:
        if self.ledger.wants(key):
            self.ledger.adopt(key, turns)

    async def settle(self) -> None:
        """Wait until all turns that were recorded are on disk, if they are kept there."""
        if self._writer is not None and not await self._writer.settled(self._bound_s):
            log.debug("a turn is not on disk yet")

    async def delete(self, keys: list[LedgerKey]) -> tuple[bool, bool]:
        """Forget conversations.

        Returns:
            Whether one of them was known, and whether all are gone for certain.
        """
        if self._shared is not None:
            for key in keys:
                await self.load(key)
        return await self._gone([self.ledger.forget(key) for key in keys])

    async def clear(self) -> tuple[bool, bool]:
        """Forget all of them. Returns as :meth:`delete`."""
        return await self._gone([self.ledger.clear()])

    async def _gone(self, erased: list[Erased]) -> tuple[bool, bool]:
        waiting = [asyncio.wrap_future(each.done) for each in erased]
        done, late = await asyncio.wait(waiting, timeout=self._bound_s)
        return any(each.known for each in erased), not late and all(each.result() for each in done)

    @property
    def shared(self) -> SharedDrains | None:
        """Where all proxies of one Redis keep what else they share; ``None``: there is none."""
        return self._shared

    def show(self) -> None:
        """Set the gauges."""
        self._metrics.conversations.set(len(self.ledger))
        self._metrics.ledger_bytes.set(self.ledger.size)
        self._metrics.store_healthy.set(self.healthy)
        if self._writer is not None:
            self._metrics.stored_conversations.set(len(self._writer))
            self._metrics.stored_bytes.set(self._writer.size)

    @property
    def healthy(self) -> bool:
        """Whether what is recorded now is kept as the settings say."""
        return self._writer is None or self._writer.healthy

    def close(self) -> None:
        """Write what waits, and let the directory go."""
        if self._writer is not None:
            self._writer.close()


def _shared(store: StoreSettings, max_turns: int, told: Mapping[str, Any]) -> SharedWriter:
    """A writer to Redis. Raises ConfigError, and MissingExtraError without its client."""
    shared, redis_store = (import_module(f"prefixpilot.proxy.memory.{name}") for name in ("shared", "redis_store"))
    password = None if store.redis_password is None else store.redis_password.value
    bounds = store.max_state_bytes, max_turns, store.conversation_ttl, store.disk_timeout
    writer: SharedWriter = shared.SharedWriter(redis_store.RedisStore.open(store.redis_url, password, *bounds), **told)
    return writer
