"""An engine without a model, OpenAI- and Anthropic-compatible: real HTTP, a modelled prefix cache, settable faults."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from prefixpilot.errors import EngineError
from prefixpilot.prefix_cache import PrefixCache, RadixPrefixCache
from prefixpilot.testing import chat_wire
from prefixpilot.testing.chat_wire import BadChatError, Chat
from prefixpilot.testing.engine_pages import EnginePages, Publisher, Running
from prefixpilot.testing.faults import (
    LATER_S,
    BreakOff,
    CloseConnection,
    ErrorEvent,
    Fault,
    Garbage,
    HalfClose,
    Respond,
    Stall,
)
from prefixpilot.testing.hosted_provider import HostedProvider
from prefixpilot.testing.loopback import LoopbackServer, Receive, Scope, Send
from prefixpilot.testing.messages_wire import MessagesWire
from prefixpilot.testing.openai_wire import ChatWire, CompletionsWire
from prefixpilot.testing.page_pool import PagePool
from prefixpilot.testing.responses_wire import ResponsesWire
from prefixpilot.testing.wires import Said, SimulatedReply, Wire, error_event, say

Headers: TypeAlias = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")
CutFault: TypeAlias = BreakOff | Stall
AnswerFault: TypeAlias = Respond | CutFault | ErrorEvent
SocketFault: TypeAlias = CloseConnection | Garbage | HalfClose
CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
WIRES: Mapping[str, Wire] = {
    **dict.fromkeys(CHAT_PATHS, ChatWire()),
    "/v1/completions": CompletionsWire(),
    "/v1/responses": ResponsesWire(),
    "/v1/messages": MessagesWire(),
}


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request as it came in.

    Attributes:
        number: counts from 0 over the engine's life.
        path: as on the wire, percent-encoding kept, without the query.
        query: as on the wire, without the question mark.
        headers: in the order received; names in lower case, repeated ones kept.
        body: the bytes.
    """

    number: int
    method: str
    path: str
    query: bytes
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key == name.lower()), None)

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


def default_reply(body: Mapping[str, Any]) -> str:
    """A few words that depend on nothing."""
    return "This is a simulated answer."


class SimulatedEngine:
    """Chat Completions, Completions, Responses, Messages (streaming and not), ``/v1/models`` and ``/health``; any other
    request is echoed as JSON.

    The prompt is ``chat_wire.template``'s, tokenized as ``chat_wire.tokenize`` states; its prefix cache is a model
    (``cache``), and at least one token of a prompt is always computed, as in real engines. Prefill is one request at a
    time. Use it as a context manager, or ``start`` and ``stop`` it.

    Attributes, which may be set at any time and hold for the requests that come after:
        fault: how to misbehave; ``None``: not at all.
        reply: the answer's text, or more than a text, from the request's body.
        delay_s: seconds before the first byte of any answer.
        chunk_delay_s: seconds before each content chunk of a stream.
        hang_up_after_answer: close each connection once its answer is complete, without saying so in the headers;
            llama.cpp does so after every stream, so a client that reuses the connection fails.
        prefill_tokens_per_s: speed of computing prompt tokens that are not cached; ``None``: at once.
        context_window: tokens that it says it takes (``max_model_len`` of its model); ``None``: it does not say.

    With ``pages`` it keeps its cache as vLLM does, token ids and all, and answers ``POST /tokenize``, ``GET
    /kv_event_sources`` and ``POST /reset_prefix_cache`` as vLLM does; ``cache`` is not used then. With ``provider`` it
    caches and counts as a hosted provider does, and neither is used.

    Args:
        cache: the model of its KV cache; an unbounded radix cache if ``None``.
        pages: a paged cache in its place.
        provider: a hosted provider's cache in its place.
        events: publishes what happens to the pages; started and stopped with the engine.
        timeout_s: bound of start and of stop, in seconds.
    """

    def __init__(
        self,
        *,
        cache: PrefixCache | None = None,
        pages: PagePool | None = None,
        provider: HostedProvider | None = None,
        events: Publisher | None = None,
        model: str = "simulated",
        reply: Callable[[Mapping[str, Any]], str | SimulatedReply] = default_reply,
        fault: Fault | None = None,
        delay_s: float = 0.0,
        chunk_delay_s: float = 0.0,
        prefill_tokens_per_s: float | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.cache: PrefixCache = RadixPrefixCache(None) if cache is None else cache
        self.pages = None if pages is None else EnginePages(pages, events)
        self.provider = provider
        self.model = model
        self.reply = reply
        self.fault = fault
        self.delay_s = delay_s
        self.chunk_delay_s = chunk_delay_s
        self.hang_up_after_answer = False
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.context_window: int | None = None
        self._server = LoopbackServer(self._serve, timeout_s)
        self._url: str | None = None
        self._changed = threading.Condition()
        self._requests: list[ReceivedRequest] = []
        self._disconnected: list[int] = []
        self._prefill = asyncio.Lock()

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``, without ``/v1``; after ``stop``, the address on which nothing listens any more."""
        if self._url is None:
            raise EngineError("the simulated engine is not started; call start()")
        return self._url

    @property
    def requests(self) -> tuple[ReceivedRequest, ...]:
        """Every request received, in order."""
        with self._changed:
            return tuple(self._requests)

    @property
    def disconnected(self) -> tuple[int, ...]:
        """Numbers of the requests whose client went away before the answer was complete, in the order noticed."""
        with self._changed:
            return tuple(self._disconnected)

    @property
    def chats(self) -> tuple[ReceivedRequest, ...]:
        """The chat requests among them."""
        return tuple(r for r in self.requests if r.path in CHAT_PATHS)

    def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> bool:
        """Block until ``count`` requests have come; False once the bound has passed."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._requests) >= count, timeout_s)

    def wait_for_disconnect(self, count: int = 1, timeout_s: float = 10.0) -> bool:
        """Block until ``count`` disconnects have been noticed; False once the bound has passed."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._disconnected) >= count, timeout_s)

    def start(self) -> SimulatedEngine:
        if self.pages is not None and self.pages.publisher is not None:
            self.pages.publisher.start()
        self._url = self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop()
        if self.pages is not None and self.pages.publisher is not None:
            self.pages.publisher.stop()

    def __enter__(self) -> SimulatedEngine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: record it, then answer until the answer is complete or the client is gone.

        One whose client goes before it is whole is no request.
        """
        body = await _read_body(receive)
        if body is None:
            return
        request, fault = self._record(scope, body), self.fault
        if isinstance(fault, SocketFault):
            await self._hang_up(scope, receive, fault)
            return
        answer = asyncio.ensure_future(self._answer(request, send, fault))
        gone = asyncio.ensure_future(_client_gone(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self._note_disconnect(request.number)
        finally:
            answer.cancel()
            gone.cancel()
        if answer.done():
            await answer  # raises what it raised
            if self.hang_up_after_answer:
                self._server.transport(scope).close()

    def _record(self, scope: Scope, body: bytes) -> ReceivedRequest:
        headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"])
        path = scope["raw_path"].decode("latin-1")
        with self._changed:
            number = len(self._requests)
            request = ReceivedRequest(number, scope["method"], path, scope["query_string"], headers, body)
            self._requests.append(request)
            self._changed.notify_all()
        return request

    def _note_disconnect(self, number: int) -> None:
        with self._changed:
            self._disconnected.append(number)
            self._changed.notify_all()

    async def _answer(self, request: ReceivedRequest, send: Send, fault: AnswerFault | None) -> None:
        await asyncio.sleep(self.delay_s)
        if isinstance(fault, Respond):
            headers = [(k.encode(), v.encode()) for k, v in fault.headers]
            await _respond(send, fault.status, fault.body, [(b"content-type", fault.content_type.encode()), *headers])
        elif request.path in WIRES and request.method == "POST":
            await self._model(WIRES[request.path], request, send, fault)
        elif request.path == "/health":
            await _respond(send, 200, b'{"status": "ok"}', [JSON_TYPE])
        elif request.path in ("/v1/models", "/models"):
            await _respond(send, 200, self._models(), [JSON_TYPE])
        else:
            said = self._of_pages(request)
            await _respond(send, *((200, _echo(request)) if said is None else said), [JSON_TYPE])

    def _of_pages(self, request: ReceivedRequest) -> tuple[int, bytes] | None:
        asked = f"{request.method} {request.path}"
        return None if self.pages is None else self.pages.answer(asked, request.body, self.context_window)

    def _models(self) -> bytes:
        model: dict[str, Any] = {"id": self.model, "object": "model", "created": 0, "owned_by": "prefixpilot"}
        if self.context_window is not None:
            model["max_model_len"] = self.context_window
        return json.dumps({"object": "list", "data": [model]}).encode()

    async def _hang_up(self, scope: Scope, receive: Receive, fault: SocketFault) -> None:
        await asyncio.sleep(self.delay_s)
        transport = self._server.transport(scope)
        if isinstance(fault, Garbage | HalfClose):
            transport.write(fault.data)
        if isinstance(fault, Garbage) and fault.later:
            await asyncio.sleep(LATER_S)
            transport.write(fault.later)
        if isinstance(fault, HalfClose):
            transport.write_eof()
        else:
            transport.close()
        await _client_gone(receive)

    async def _model(
        self, wire: Wire, request: ReceivedRequest, send: Send, fault: CutFault | ErrorEvent | None
    ) -> None:
        try:
            body = request.json()
            chat = wire.read(body if isinstance(body, Mapping) else {})
            running = await self._compute(chat, body)
        except (BadChatError, ValueError, RecursionError) as error:
            await _respond(send, 400, wire.error_body(str(error)), [JSON_TYPE])
            return
        try:
            counted = running.total_tokens, running.cached_tokens, running.counts
            said = say(chat, request.number, self.reply(body), *counted)
            if chat.stream:
                await self._stream(send, wire, said, running, fault)
                return
            await running.end(said.pieces)
            if isinstance(fault, ErrorEvent):
                await _respond(send, 500, json.dumps(wire.error(fault.error)).encode(), [JSON_TYPE])
            else:
                await _respond(send, 200, wire.whole(said), [JSON_TYPE], fault)
        finally:
            await running.end()

    async def _compute(self, chat: Chat, body: Mapping[str, Any]) -> Running:
        """Prefill: the request holds its pages from here on."""
        async with self._prefill:
            running = await self._begin(chat, body)
            if self.prefill_tokens_per_s:
                await asyncio.sleep((running.total_tokens - running.cached_tokens) / self.prefill_tokens_per_s)
        return running

    async def _begin(self, chat: Chat, body: Mapping[str, Any]) -> Running:
        if self.provider is not None:
            return Running(*self.provider.begin(body, chat))
        if self.pages is not None:
            return await self.pages.begin(chat)
        access = self.cache.access(chat_wire.segments(chat))
        return Running(access.total_tokens, min(access.cached_tokens, access.total_tokens - 1))

    async def _stream(
        self, send: Send, wire: Wire, said: Said, running: Running, fault: CutFault | ErrorEvent | None
    ) -> None:
        await _begin(send, 200, [(b"content-type", b"text/event-stream")])
        for event in wire.begin(said):
            await _body(send, event)
        for piece in said.pieces if fault is None else said.pieces[: fault.after_chunks]:
            await asyncio.sleep(self.chunk_delay_s)
            await _body(send, wire.piece(said, piece))
        if isinstance(fault, CutFault):
            await _stop(fault)
            return
        if isinstance(fault, ErrorEvent):
            await _body(send, error_event(wire.error(fault.error)), more=False)
            return
        await running.end(said.pieces)
        for event in wire.end(said):
            await _body(send, event)
        await _body(send, b"", more=False)


async def _read_body(receive: Receive) -> bytes | None:
    """``None``: the client went before the end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _begin(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _respond(send: Send, status: int, body: bytes, headers: Headers, fault: CutFault | None = None) -> None:
    """A whole answer, or the first half of its body if there is a fault."""
    await _begin(send, status, [*headers, (b"content-length", str(len(body)).encode())])
    if fault is not None:
        await _body(send, body[: len(body) // 2])
        await _stop(fault)
    else:
        await _body(send, body, more=False)


async def _stop(fault: CutFault) -> None:
    """The answer gets no end: uvicorn closes its connection when this returns; if it stalls, when the client goes."""
    if isinstance(fault, Stall):
        await asyncio.Event().wait()


def _echo(request: ReceivedRequest) -> bytes:
    return json.dumps(
        {
            "method": request.method,
            "path": request.path,
            "query": request.query.decode("latin-1"),
            "headers": [list(pair) for pair in request.headers],
            "body": request.body.decode("utf-8", "replace"),
        }
    ).encode()
