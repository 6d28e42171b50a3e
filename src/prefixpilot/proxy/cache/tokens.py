"""Token ids of the prompts that were sent, asked for beside the requests: bounded, in order, and dropped when late."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, Literal, NamedTuple, Protocol

from prefixpilot.errors import EngineError
from prefixpilot.proxy.cache.as_chat import as_chat
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import read_body
from prefixpilot.proxy.call import is_credential
from prefixpilot.proxy.wire.headers import RawHeaders
from prefixpilot.proxy.wire.upstream import Upstream, chunks, kind_of

MAX_BODY_BYTES: Final = 4 << 20
"""Of a request whose tokens are asked for."""
MAX_ANSWER_BYTES: Final = 64 << 20
MAX_WAITING_BYTES: Final = 64 << 20
MAX_WAITING: Final = 1024
AGAIN_AFTER_S: Final = 60.0
"""An engine without the path is not asked for so long."""
AS_THEY_ARE: Final = frozenset(("chat", "completions"))
"""APIs whose bodies `/tokenize` reads itself; those of the others are turned into chats."""
_MORE: Final = b'"return_token_strs":true'
_UNSUPPORTED: Final = frozenset((404, 405, 410, 501))

log = logging.getLogger(__name__)

Got = Literal["known", "refused", "failed", "unsupported", "dropped", "mismatched"]


class Asked(NamedTuple):
    """A request whose prompt is to be known.

    Attributes:
        api: its API.
        body: as sent to the engine, not compressed.
        headers: of the request; its credentials go with the question.
    """

    api: str
    body: bytes
    headers: RawHeaders


class Tokenized(NamedTuple):
    """What came of it.

    Attributes:
        got: how it went.
        data: the answer of ``/tokenize``, not read yet; empty unless ``got`` is ``known``.
        prompt: what stands in it, if it has been read.
    """

    got: Got
    data: bytes = b""
    prompt: EnginePrompt | None = None


class TokenSource(Protocol):
    """Where token ids come from."""

    async def tokenized(self, asked: Asked) -> Tokenized:
        """The prompt of a request in vLLM's shape. Bounded in time; raises nothing but ``CancelledError``."""
        ...


def with_token_strings(body: bytes) -> bytes | None:
    """The body of a request as a question to ``/tokenize``: all it says, and one member more. ``None``: no JSON object.

    What shapes a prompt (messages, tools, template and its arguments) has the same names there, and other members mean
    nothing to it. A member of the client's own goes before ours. O(bytes).

    >>> with_token_strings(b' {"prompt": "Hi"}')
    b'{"return_token_strs":true,"prompt": "Hi"}'
    """
    text = body.lstrip()
    if not text.startswith(b"{"):
        return None
    rest = text[1:]
    return b"{" + _MORE + (b"" if rest.lstrip().startswith(b"}") else b",") + rest


async def _question(asked: Asked) -> bytes | None:
    """What to ask ``/tokenize``; ``None``: it cannot be told how the engine renders this. Off the loop where it is long
    work."""
    if asked.api in AS_THEY_ARE:
        return with_token_strings(asked.body)
    return await asyncio.to_thread(_chat_question, asked)


def _chat_question(asked: Asked) -> bytes | None:
    chat = as_chat(asked.api, read_body(asked.body))
    return None if chat is None else json.dumps({"return_token_strs": True, **chat}).encode()


class EngineTokens:
    """Asks the engine itself: ``POST /tokenize``, as vLLM has it. For one event loop.

    Args:
        bound_s: seconds that one answer may take.
        clock: monotonic seconds.
    """

    def __init__(self, upstream: Upstream, bound_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._upstream = upstream
        self._bound_s = bound_s
        self._clock = clock
        self._not_before = 0.0

    async def tokenized(self, asked: Asked) -> Tokenized:
        """See :class:`TokenSource`."""
        if self._clock() < self._not_before:
            return Tokenized("unsupported")
        question = await _question(asked)
        if question is None:
            return Tokenized("refused")
        try:
            async with asyncio.timeout(self._bound_s):
                return await self._post(question, asked.headers)
        except (EngineError, TimeoutError) as error:
            log.debug("the engine tells no token ids: %s", kind_of(error))
            return Tokenized("failed")

    async def _post(self, question: bytes, headers: RawHeaders) -> Tokenized:
        sent = [(name, value) for name, value in headers if is_credential(name.lower())]
        sent.append((b"content-type", b"application/json"))
        async with self._upstream.request("POST", b"/tokenize", sent, question, repeatable=True) as response:
            if response.status in _UNSUPPORTED:
                self._not_before = self._clock() + AGAIN_AFTER_S
                return Tokenized("unsupported")
            if response.status != 200:
                return Tokenized("refused")
            data = bytearray()
            async for piece in chunks(response):
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    return Tokenized("refused")
        return Tokenized("known", bytes(data))


class TokenQueue:
    """Questions to a token source, a few at once; what came of them is handed on in the order in which they were asked.

    For one event loop. Never waits and never raises into a request: what does not fit is ``dropped``.

    Args:
        concurrency: questions under way at once.
    """

    def __init__(self, source: TokenSource, concurrency: int) -> None:
        self._source = source
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: asyncio.Queue[tuple[asyncio.Task[Tokenized], int, Callable[[Tokenized], None]]] = asyncio.Queue()
        self._bytes = 0
        self._deliverer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._waiting.qsize()

    def ask(self, asked: Asked, then: Callable[[Tokenized], None]) -> None:
        """Ask, and tell ``then`` later, on the loop; at once where there is no room. ``then`` must not raise."""
        size = len(asked.body)
        if size > MAX_BODY_BYTES or len(self) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            then(Tokenized("dropped"))
            return
        if self._deliverer is None:
            self._deliverer = asyncio.create_task(self._deliver())
        self._bytes += size
        self._waiting.put_nowait((asyncio.create_task(self._one(asked)), size, then))

    async def _one(self, asked: Asked) -> Tokenized:
        async with self._slots:
            return await self._source.tokenized(asked)

    async def _deliver(self) -> None:
        while True:
            task, size, then = await self._waiting.get()
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
            self._bytes -= size
            then(_result(task))

    def close(self) -> None:
        """Ask no more; nothing further is told."""
        if self._deliverer is not None:
            self._deliverer.cancel()
        while not self._waiting.empty():
            self._waiting.get_nowait()[0].cancel()


def _result(task: asyncio.Task[Tokenized]) -> Tokenized:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("token ids could not be asked for", exc_info=error)
    return Tokenized("failed") if task.cancelled() or error is not None else task.result()
