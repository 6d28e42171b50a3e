"""An engine's answer on its way to the client: piece by piece, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from prefixpilot.proxy.conversations import Conversations
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.learning import Observation
from prefixpilot.proxy.wire.exchange import Exchange
from prefixpilot.proxy.wire.upstream import EngineResponse, chunks, is_complete, whole
from prefixpilot.proxy.wire.usage import UsageFilter


async def pass_on(
    exchange: Exchange,
    response: EngineResponse,
    observation: Observation | None,
    conversations: Conversations,
    usage: UsageFilter | None,
    began: Callable[[], object] = lambda: None,
) -> None:
    """The body as it comes. The last piece of a JSON answer waits until all have come; the first content and the last
    piece wait until the turn is on disk, if it goes there. ``began`` is called with each piece."""
    if is_complete(response):
        began()
        data = whole(response)
        sent = data if usage is None else usage.feed(data) + usage.finish()
        await _end(exchange, sent, observation, conversations, unread=data)
        return
    held = b""
    hold = _holds_last(response, observation)
    async with aclosing(chunks(response)) as pieces:
        async for piece in pieces:
            began()
            if observation is not None:
                observation.feed(piece)
                if observation.unsettled():
                    await conversations.settle()
                if hold:
                    held, piece = piece, held
            if usage is not None:
                piece = usage.feed(piece)
            if piece:
                await exchange.write(piece)
    await _end(exchange, held if usage is None else usage.finish(), observation, conversations)


def head_waits(response: EngineResponse, observation: Observation | None) -> bool:
    """Whether the head goes out with the first of the body: where that has come, and where a client can do nothing
    without the last piece, which waits. What fails until then can still be told by a status."""
    return is_complete(response) or _holds_last(response, observation)


async def _end(
    exchange: Exchange, data: bytes, observation: Observation | None, conversations: Conversations, unread: bytes = b""
) -> None:
    """The last of an answer. Before the client can ask on, the turn is recorded: on disk, before this goes out; in
    memory, right behind it, in the same step of the loop, so that nobody waits for it."""
    if observation is None:
        await exchange.write(data, more=False)
    elif conversations.kept or not exchange.at_once:
        _read_to_end(observation, unread)
        if observation.unsettled():
            await conversations.settle()
        await exchange.write(data, more=False)
    else:
        try:
            await exchange.write(data, more=False)
        finally:
            _read_to_end(observation, unread)


def _read_to_end(observation: Observation, unread: bytes) -> None:
    observation.feed(unread)
    observation.finish()


def usage_filter(forward: Forward | None, response: EngineResponse) -> UsageFilter | None:
    """Of a stream with a usage event that only we asked for. One that is compressed passes as it is."""
    if forward is None or not forward.usage_asked or response.headers.get("Content-Encoding", "identity") != "identity":
        return None
    events = response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/event-stream"
    return UsageFilter() if events else None


def _holds_last(response: EngineResponse, observation: Observation | None) -> bool:
    return observation is not None and observation.holds_last and _is_json(response)


def _is_json(response: EngineResponse) -> bool:
    """Whether the answer is one JSON document: no lines or events that a client wants one by one."""
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"
