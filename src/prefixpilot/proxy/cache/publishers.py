"""Finds where an engine publishes its events, at the start and when that moves, and makes a source of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from prefixpilot.engines.base import EventListener, EventSource, SourceStatus
from prefixpilot.engines.endpoints import WILDCARDS, EventEndpoint, check_endpoint, discover
from prefixpilot.errors import EngineError
from prefixpilot.proxy.cache.remedies import NAME_IT, NOT_LISTED, NOT_YET, remedy
from prefixpilot.proxy.cache.settings import AUTO, CacheSettings

ASK_AGAIN_S: Final = (1.0, 5.0, 30.0)
"""Seconds between looks for the engine's list of publishers; the last one is repeated."""


class Publishers:
    """Those of one engine: see :class:`~prefixpilot.proxy.cache.standing.SourceMaker`.

    Raises:
        ConfigError: an endpoint that cannot be used.
        MissingExtraError: ZeroMQ is not installed.
    """

    def __init__(self, cache: CacheSettings, engine_root: str) -> None:
        self._cache = cache
        self._engine = engine_root
        self._waiting = ""
        self._unresolved: dict[str, str] = {}
        self._subscriber: Any = import_module("prefixpilot.engines.kv_events").KvEventSubscriber
        self._followed = self._named()
        for endpoint in self._followed:
            check_endpoint(endpoint, "cache.events")

    async def source(self, listener: EventListener) -> EventSource:
        """A source that is not started yet. With ``auto`` it waits, as long as it takes, for the engine's own list."""
        self._followed = self._named() or await self._listed()
        self._waiting = ""
        field = f"cache.events (--cache-events {self._cache.events})"
        made: EventSource = self._subscriber(self._followed, listener, field=field)
        return made

    def waiting(self) -> str:
        """See there."""
        return self._waiting

    async def look(self, statuses: Sequence[SourceStatus]) -> bool:
        """See there. Names are looked up on another thread, and so is the engine's list, where none of those that it
        named is there any more."""
        silent = [status.source for status in statuses if not status.connected]
        silent += [] if statuses else self._cache.endpoints
        host = urlsplit(self._engine).hostname
        self._unresolved = await asyncio.to_thread(_unresolved, silent, host) if silent else {}
        if not statuses and silent:
            self._waiting = "; ".join(self._unresolved.values())
        return self._cache.events == AUTO and bool(statuses) and await self._has_moved(statuses)

    def remedy(self, status: SourceStatus) -> str:
        """See there. Nothing where the engine lists no publisher any more: that is said already."""
        if self._waiting:
            return ""
        replays = {each.endpoint: each.replay is not None for each in self._followed}.get(status.source, True)
        return remedy(status, self._cache.events, self._unresolved.get(status.source), replays=replays)

    def _named(self) -> tuple[EventEndpoint, ...]:
        cache, host = self._cache, urlsplit(self._engine).hostname or "127.0.0.1"
        replays = cache.replay_endpoints or (None,) * len(cache.endpoints)
        pairs = zip(cache.endpoints, replays, strict=True)
        return tuple(EventEndpoint(endpoint, replay, ranks=cache.ranks, host=host) for endpoint, replay in pairs)

    async def _listed(self) -> tuple[EventEndpoint, ...]:
        assert self._cache.events == AUTO
        waits = iter(ASK_AGAIN_S)
        wait = 0.0
        while True:
            wait = next(waits, wait)
            try:
                found = await asyncio.to_thread(discover, self._engine)
                self._waiting = NOT_LISTED
            except EngineError as error:
                found, self._waiting = (), f"{NOT_YET} ({error}); {NAME_IT}"
            if found:
                return found
            await asyncio.sleep(wait)

    async def _has_moved(self, statuses: Sequence[SourceStatus]) -> bool:
        """Whether an engine that is connected nowhere lists other publishers than it did."""
        self._waiting = ""
        if any(status.connected for status in statuses):
            return False
        try:
            found = await asyncio.to_thread(discover, self._engine)
        except EngineError:  # it is not there: its sources say so
            return False
        self._waiting = "" if found else NOT_LISTED
        return bool(found) and found != self._followed


def _unresolved(sources: Iterable[str], engine_host: str | None) -> dict[str, str]:
    """Of these endpoints, those whose host has no address, and why. Blocks for as long as a look-up takes."""
    found = {}
    for source in sources:
        named = source.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        host = engine_host if named in WILDCARDS else named
        try:
            if host is not None and source.startswith("tcp://"):
                socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            found[source] = f"the host {host!r} cannot be resolved ({error})"
    return found
