"""The paged cache of a simulated engine: requests take pages, what happens to them is published, and paths that ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

from prefixpilot.cache_events import CacheEvent
from prefixpilot.errors import InvalidInputError
from prefixpilot.testing.chat_wire import BadChatError, Chat, template, tokenize
from prefixpilot.testing.page_pool import Allocation, PagePool

ANSWER_HEAD: Final = template([])
"""What the template puts behind the last message, so that the model answers."""


class Publisher(Protocol):
    """Takes events to whoever has subscribed: :class:`prefixpilot.testing.event_publisher.EventPublisher`."""

    @property
    def endpoint(self) -> str: ...

    @property
    def replay_endpoint(self) -> str | None: ...

    @property
    def topic(self) -> str: ...

    def publish(self, events: Sequence[CacheEvent]) -> int:
        """Queue one batch; returns its number. Never blocks."""
        ...

    def start(self) -> object: ...

    def stop(self) -> None: ...


def token_ids(text: str) -> list[int]:
    """The ids of ``chat_wire.tokenize``'s tokens: 31 bits of a digest of each, the same in every process."""
    return [int.from_bytes(blake2b(t.encode(), digest_size=4).digest(), "big") >> 1 for t in tokenize(text)]


class Running:
    """A request whose prompt has been computed, and that holds its pages until it ends.

    Attributes:
        total_tokens, cached_tokens: of its prompt.
    """

    def __init__(self, total_tokens: int, cached_tokens: int) -> None:
        self.total_tokens = total_tokens
        self.cached_tokens = cached_tokens

    async def end(self, answer: Sequence[str] = ()) -> None:
        """The answer is out, whole or not: ``answer`` is what was computed of it. Does nothing if it is over already.

        This one holds no pages.
        """


class RunningOnPages(Running):
    """A request that holds pages of a pool."""

    def __init__(self, pages: EnginePages, total_tokens: int, allocation: Allocation) -> None:
        super().__init__(total_tokens, allocation.cached_tokens)
        self._pages = pages
        self._allocation: Allocation | None = allocation

    async def end(self, answer: Sequence[str] = ()) -> None:
        """The last token of an answer is not in the cache: it was not computed, as nothing came after it."""
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            tokens = [each for piece in answer[:-1] for each in token_ids(piece)]
            await self._pages.end(allocation, tokens)


class EnginePages:
    """A pool of pages as requests use it. Lives on the event loop of its engine.

    Args:
        pool: the pages.
        publisher: who is told what happens to them; ``None``: nobody.
    """

    def __init__(self, pool: PagePool, publisher: Publisher | None) -> None:
        self.pool = pool
        self.publisher = publisher
        self._freed = asyncio.Condition()
        self._lives = 1

    def begin_anew(self) -> bool:
        """As an engine without events that was started again: nothing is held. False while a request runs."""
        if not self.pool.reset():
            return False
        self.pool.take_events()
        self._lives += 1
        return True

    async def begin(self, chat: Chat) -> Running:
        """Take the pages of a prompt, once there are enough.

        Raises:
            BadChatError: the prompt does not fit all pages together.
        """
        ids = token_ids(chat.prompt)
        async with self._freed:
            while (allocation := self._begin(ids, chat.salt)) is None:
                await self._freed.wait()
        self._publish()
        return RunningOnPages(self, len(ids), allocation)

    async def end(self, allocation: Allocation, answer: Sequence[int]) -> None:
        """Free the pages of a request that has computed ``answer``."""
        self.pool.extend(allocation, answer)
        self.pool.end(allocation)
        self._publish()
        async with self._freed:
            self._freed.notify_all()

    def answer(self, asked: str, body: bytes, window: int | None) -> tuple[int, bytes] | None:
        """Status and body for the paths of a vLLM server that are about its cache, ``None`` for all others.

        ``asked`` is method and path, with a space between.
        """
        if asked == "POST /tokenize":
            return _tokenized(body, window)
        if asked == "GET /metrics":
            return 200, self._metrics().encode()
        if asked == "GET /kv_event_sources":
            return 200, json.dumps(self._sources()).encode()
        if asked == "POST /reset_prefix_cache":
            return (200, b"{}") if self.pool.reset() else (503, b'{"error": "requests are running"}')
        return None

    def _begin(self, ids: list[int], salt: str | None) -> Allocation | None:
        try:
            return self.pool.begin(ids, salt)
        except InvalidInputError as error:
            raise BadChatError(f"the prompt does not fit the KV cache: {error}") from None

    def _publish(self) -> None:
        events = self.pool.take_events()
        if events and self.publisher is not None:
            self.publisher.publish(events)

    def _metrics(self) -> str:
        """Of vLLM's, those that tell its cache, of whose pages it reserves one; and the process."""
        pages, size = self.pool.pages + 1, self.pool.page_size
        labels = f'block_size="{size}",enable_prefix_caching="True",engine="0",num_gpu_blocks="{pages}"'
        return f"vllm:cache_config_info{{{labels}}} 1.0\nprocess_start_time_seconds {self._lives}.0\n"

    def _sources(self) -> dict[str, Any]:
        if self.publisher is None:
            return {}
        return {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self.publisher.endpoint,
                "replay_endpoint": self.publisher.replay_endpoint,
                "topic": self.publisher.topic,
            }
        }


def _tokenized(body: bytes, window: int | None) -> tuple[int, bytes]:
    """vLLM's ``/tokenize``: of a ``prompt``, or of ``messages`` as the template renders them."""
    try:
        request = json.loads(body)
        request = request if isinstance(request, Mapping) else {}
        text = _prompt(request)
    except (ValueError, RecursionError) as error:
        return 400, json.dumps({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}).encode()
    ids, strings = token_ids(text), tokenize(text) if request.get("return_token_strs") else None
    said = {"count": len(ids), "max_model_len": window, "tokens": ids, "token_strs": strings}
    return 200, json.dumps(said).encode()


def _prompt(request: Mapping[str, Any]) -> str:
    if isinstance(request.get("prompt"), str):
        return str(request["prompt"])
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadChatError("prompt or messages: one of them must be there")
    text = template(messages, request.get("tools"))
    return text if request.get("add_generation_prompt", True) else text.removesuffix(ANSWER_HEAD)
