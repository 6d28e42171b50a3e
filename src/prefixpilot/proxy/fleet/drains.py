"""Which engines are taken out by hand: at one proxy, or at all that share a store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from typing import Protocol

from prefixpilot.proxy.fleet.pool import Pool
from prefixpilot.proxy.memory.database import StoreError

log = logging.getLogger(__name__)


class SharedDrains(Protocol):
    """What several proxies share: :class:`~prefixpilot.proxy.memory.shared.SharedWriter`. Nothing here blocks.

    Each method raises StoreError where the store does not say within ``bound_s`` seconds.
    """

    async def drained(self, here: Set[str], bound_s: float) -> Set[str]:
        """URLs of engines that are out. A store that has begun anew takes over those that are out ``here``."""
        ...

    async def stand(self, url: str, bound_s: float, *, out: bool) -> None:
        """Take an engine out, or in again."""
        ...


class Drains:
    """Takes engines of a pool out, and in again. For one event loop.

    Args:
        urls: of the engines, by number; by these other proxies know them.
        shared: ``None``: what is done here is of this proxy alone.
        bound_s: seconds that the store may take.
    """

    def __init__(self, pool: Pool, urls: Sequence[str], shared: SharedDrains | None, bound_s: float) -> None:
        self._pool = pool
        self._urls = urls
        self._shared = shared
        self._bound_s = bound_s
        self._one_at_a_time = asyncio.Lock()

    @property
    def shared(self) -> bool:
        """Whether other proxies are told."""
        return self._shared is not None

    async def agree(self) -> None:
        """Take over what other proxies did; while the store is away, all stays as it is."""
        if self._shared is None:
            return
        async with self._one_at_a_time:
            here = {self._urls[number] for number in self._pool.drained}
            try:
                out = await self._shared.drained(here, self._bound_s)
            except StoreError as error:
                log.debug("which engines are drained was not read: %s", error)
                return
            for number, url in enumerate(self._urls):
                if (url in out) != (url in here):
                    self._stand(number, out=url in out)
                    log.warning("engine %d at %s is %s", number, url, "drained" if url in out else "in again")

    async def drain(self, engine: int) -> bool:
        """Take it out, while the others go on; ``False``, and nothing is done, if no other would be left in.

        Raises:
            StoreError: the other proxies could not be told; nothing is done.
        """
        await self.agree()
        if not set(range(len(self._urls))) - self._pool.drained - {engine}:
            return False
        await self._tell(engine, out=True)
        return True

    async def resume(self, engine: int) -> None:
        """Take it in again. Raises StoreError as :meth:`drain`."""
        await self._tell(engine, out=False)

    async def _tell(self, engine: int, *, out: bool) -> None:
        async with self._one_at_a_time:
            if self._shared is not None:
                await self._shared.stand(self._urls[engine], self._bound_s, out=out)
            self._stand(engine, out=out)

    def _stand(self, engine: int, *, out: bool) -> None:
        (self._pool.drain if out else self._pool.resume)(engine)
