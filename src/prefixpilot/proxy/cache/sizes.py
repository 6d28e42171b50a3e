"""Asks the engine for the size of a page and of its cache, beside the requests: at the start, and again and again, so
that a restart is noticed where no events tell of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from prefixpilot.engines.doctor.facts import NO_ANSWER, Answer, identity, read_facts
from prefixpilot.errors import EngineError
from prefixpilot.proxy.wire.upstream import Upstream, chunks, kind_of

PATHS: Final = ("/metrics", "/get_server_info", "/server_info")
AGAIN_S: Final = (1.0, 5.0, 30.0)
"""Seconds between questions as long as the engine has not answered; the last one is repeated."""
EVERY_S: Final = 30.0
UNSUPPORTED_S: Final = 600.0
BOUND_S: Final = 5.0
MAX_BYTES: Final = 16 << 20

log = logging.getLogger(__name__)


class CacheSize(NamedTuple):
    """What an engine says of its cache.

    Attributes:
        page_size: tokens in a page.
        capacity_tokens: that prompts can fill; ``None``: it does not say.
        caches: of this size, one for each data-parallel rank.
        life: what tells one start of the engine from another; empty: nothing does.
    """

    page_size: int
    capacity_tokens: int | None
    caches: int = 1
    life: tuple[str, ...] = ()


def read_size(answers: Mapping[str, Answer]) -> CacheSize | None:
    """What stands in the answers to :data:`PATHS`; ``None`` if it is not there.

    SGLang draws a seed at each start, if it is not given one.
    """
    facts = read_facts(answers)
    if facts.page_tokens is None or facts.engine not in ("vllm", "sglang"):
        return None
    if facts.engine == "vllm":
        life = identity(answers["/metrics"])
        caches = sum(line.startswith("vllm:cache_config_info{") for line in life)
        return CacheSize(facts.page_tokens, facts.capacity_tokens, max(caches, 1), life)
    info = next((found for path in PATHS[1:] if (found := answers.get(path, NO_ANSWER).object())), {})
    life = (json.dumps(info.get("random_seed")),)
    return CacheSize(facts.page_tokens, facts.capacity_tokens, facts.replicas or 1, life)


class SizeAsker:
    """Asks from ``start`` to ``close``. For one event loop; nothing waits for it.

    Args:
        every_s: seconds between questions, once it has answered.
    """

    def __init__(self, upstream: Upstream, every_s: float = EVERY_S) -> None:
        self._upstream = upstream
        self._every_s = every_s
        self._known: CacheSize | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def start(self, tell: Callable[[CacheSize, bool], None]) -> None:
        """Begin to ask.

        Args:
            tell: is called on the loop with each answer that differs from the one before, and with whether the engine
                has started anew since that one. Must not raise.
        """
        self._task = asyncio.create_task(self._run(tell))

    def ask_now(self) -> None:
        """Something has happened to the engine: do not wait with the next question."""
        self._wake.set()

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, tell: Callable[[CacheSize, bool], None]) -> None:
        tries = 0
        while True:
            self._wake.clear()
            wait = AGAIN_S[min(tries, len(AGAIN_S) - 1)]
            try:
                async with asyncio.timeout(BOUND_S):
                    wait, tries = self._note(await self._ask(), tell), 0
            except (EngineError, TimeoutError) as error:
                log.debug("the engine does not tell the size of its cache: %s", kind_of(error))
                tries += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    def _note(self, size: CacheSize | None, tell: Callable[[CacheSize, bool], None]) -> float:
        """Tell what is new; seconds until the next question."""
        if size is None:
            return UNSUPPORTED_S
        known, self._known = self._known, size
        if size != known:
            tell(size, known is not None and known.life != size.life)
        return self._every_s

    async def _ask(self) -> CacheSize | None:
        answers: dict[str, Answer] = {}
        for path in PATHS:
            answers[path] = await self._get(path)
            size = read_size(answers)
            if size is not None:
                return size
        return None

    async def _get(self, path: str) -> Answer:
        body = bytearray()
        async with self._upstream.request("GET", path.encode(), [], None) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            async for piece in chunks(response):
                body += piece
                if len(body) > MAX_BYTES:
                    return NO_ANSWER
            return Answer(response.status, headers, bytes(body))
