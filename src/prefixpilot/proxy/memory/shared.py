"""A journal on a store that several proxies share: what another one wrote, or deleted, is seen before each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial
from typing import NamedTuple, TypeVar

from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.journal import Erased
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.redis_store import EVERYTHING, Look, RedisStore
from prefixpilot.proxy.memory.store import MAX_GONE, Erase
from prefixpilot.proxy.memory.writer import StoreWriter, resolved

T = TypeVar("T")


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
        try:
            look = await self._asked(partial(self._look, key, here), bound_s)
        except StoreError:
            self._missed(key)
            raise
        return Fresh(look.turns, look.deleted)

    async def drained(self, here: Set[str], bound_s: float) -> Set[str]:
        """Engines that all proxies leave out, by URL; see :meth:`RedisStore.drained`. Does not block.

        Raises:
            StoreError: not within ``bound_s`` seconds.
        """
        return await self._asked(partial(self._store.drained, here), bound_s)

    async def stand(self, url: str, bound_s: float, *, out: bool) -> None:
        """Take an engine out of all proxies, or in again. Does not block. Raises StoreError: it is not certain."""
        await self._asked(partial(self._store.stand, url, out=out), bound_s)

    async def _asked(self, question: Callable[[], T], bound_s: float) -> T:
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.wrap_future(self._reader.submit(question))
        except (TimeoutError, StoreError) as error:
            raise StoreError(str(error) or f"Redis did not answer within {bound_s:g} s") from error

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
