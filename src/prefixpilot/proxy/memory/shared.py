"""A journal on a store that several proxies share: what another one wrote, or deleted, is seen before each request."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.journal import Erased
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.redis_store import EVERYTHING, Look, RedisStore
from prefixpilot.proxy.memory.store import MAX_GONE, Erase
from prefixpilot.proxy.memory.writer import StoreWriter, resolved


class Fresh(NamedTuple):
    """What is to be done with what memory has of a conversation.

    Attributes:
        turns: it is these from now on; ``None``: it is as it was.
        deleted: what memory has was deleted elsewhere.
    """

    turns: list[Turn] | None
    deleted: bool


class SharedWriter(StoreWriter):
    """See :class:`StoreWriter`; and :meth:`refresh` before each request of a conversation."""

    _store: RedisStore

    async def refresh(self, key: LedgerKey, bound_s: float, *, here: bool) -> Fresh:
        """Look whether another proxy has changed a conversation. Does not block.

        Args:
            here: all that was kept of it is in memory.

        Raises:
            StoreError: not within ``bound_s`` seconds. Unless it is in memory it counts as lost until it is seen.
        """
        await self.settled(bound_s)
        reading = self._reader.submit(self._look, key, here)
        try:
            async with asyncio.timeout(bound_s):
                look = await asyncio.wrap_future(reading)
        except (TimeoutError, StoreError) as error:
            self._missed(key)
            raise StoreError(str(error) or f"a conversation was not read within {bound_s:g} s") from error
        return Fresh(look.turns, look.deleted)

    def erase(self, key: LedgerKey) -> Erased:
        """Whether or not this proxy has seen it."""
        digest = key.digest
        with self._something:
            known = digest in self._keys
            if not self._put(Erase(digest, known)):
                return Erased(known, resolved(False))
            self._keys.discard(digest)
            self._gone.discard(digest)
            return Erased(known, self._last)

    def erase_all(self) -> Erased:
        """Those of all proxies."""
        with self._something:
            known = bool(self._keys)
            if not self._put(Erase(EVERYTHING, False)):
                return Erased(known, resolved(False))
            self._keys.clear()
            self._gone.clear()
            return Erased(known, self._last)

    def _look(self, key: LedgerKey, here: bool) -> Look:
        digest = key.digest
        look = self._store.look(digest, self._clock(), here=here)
        with self._something:
            if look.kept:
                self._keys.add(digest)
                self._gone.discard(digest)
            elif look.deleted:
                self._keys.discard(digest)
                self._gone.discard(digest)
            elif look.gone or digest in self._keys:
                self._note_gone(digest)
        return look

    def _missed(self, key: LedgerKey) -> None:
        with self._something:
            if key.digest not in self._keys:
                self._note_gone(key.digest)

    def _note_gone(self, digest: bytes) -> None:
        if len(self._gone) < MAX_GONE:
            self._gone.add(digest)
        self._keys.discard(digest)
