"""Asks the engine which models it has, beside the requests, when a window is wanted that is not known."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from prefixpilot.errors import EngineError
from prefixpilot.proxy.windows import Windows
from prefixpilot.proxy.wire.upstream import Upstream, chunks, kind_of

EVERY_S: Final = 60.0
MAX_BYTES: Final = 4 << 20

log = logging.getLogger(__name__)


class EngineModels:
    """``GET /v1/models`` at most once in ``EVERY_S`` seconds. For one event loop.

    Args:
        upstream: the way to an engine that has them, as it is now.
        bound_s: seconds that the engine has to answer.
    """

    def __init__(self, upstream: Callable[[], Upstream], windows: Windows, bound_s: float) -> None:
        self._upstream = upstream
        self._windows = windows
        self._bound_s = bound_s
        self._next = -EVERY_S
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Ask, unless that was done lately. Does not wait."""
        if monotonic() >= self._next:
            self._next = monotonic() + EVERY_S
            self._task = asyncio.create_task(self._ask())

    async def first(self) -> str | None:
        """The first model of the list; ``None`` if there is none, or it cannot be read."""
        try:
            async with asyncio.timeout(self._bound_s):
                name = json.loads(await self._list())["data"][0]["id"]
        except (EngineError, TimeoutError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return name if isinstance(name, str) else None

    def cancel(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._bound_s):
                self._windows.learn(json.loads(await self._list()))
        except (EngineError, TimeoutError, ValueError, RecursionError) as error:
            log.debug("the engine does not list its models: %s", kind_of(error))

    async def _list(self) -> bytes:
        """The engine's answer; empty if it is none, or too long."""
        body = b""
        async with self._upstream().request("GET", b"/v1/models", [], None) as response:
            if response.status != 200:
                return b""
            async for piece in chunks(response):
                body += piece
                if len(body) > MAX_BYTES:
                    return b""
        return body
