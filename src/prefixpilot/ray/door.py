"""The door: takes a request whole, has it routed, and passes the answer on, piece by piece, as it comes. Without Ray.

What a replica cannot begin to answer, because it died, another is asked for, where to ask twice does no harm: requests
to models, and whatever only reads. An answer that has begun is never begun again: it breaks off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from prefixpilot.apis import API_OF_PATH
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.intake import api_near
from prefixpilot.proxy.wire.exchange import (
    BodyTooLargeError,
    ClientGoneError,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
    SlowClientError,
)
from prefixpilot.ray.carried import Carried, carried_of
from prefixpilot.ray.hints import Hint, hint_of

log = logging.getLogger("prefixpilot.ray")

ATTEMPTS: Final = 3
READS: Final = ("GET", "HEAD", "OPTIONS")
_LATER: Final = ((b"retry-after", b"1"),)


class Answer(Protocol):
    """An answer on its way from a replica."""

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        """ASGI messages of a response. Raises what kept the replica from answering."""
        ...

    def cancel(self) -> None:
        """The client has gone."""
        ...


class Door:
    """An ASGI app before the replicas.

    Args:
        ask: sends a request to a replica that the router chooses by the hint.
        lost: errors by which an answer says that its replica is no more; and
        full: those by which it says that there is no room.
        max_body_bytes: of a request; a longer one gets 413.
        receive_timeout: seconds in which a client may send nothing of a body.
    """

    def __init__(
        self,
        ask: Callable[[Hint, Carried], Answer],
        *,
        lost: tuple[type[Exception], ...],
        full: tuple[type[Exception], ...],
        max_body_bytes: int,
        receive_timeout: float,
    ) -> None:
        self._ask, self._lost, self._full = ask, lost, full
        self._max_body_bytes, self._receive_timeout = max_body_bytes, receive_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One event or exchange of ASGI."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        else:
            exchange = Exchange(scope, receive, send, self._receive_timeout)
            try:
                await self._serve(exchange, scope, send)
            except ClientGoneError:
                log.debug("the client has gone")
            except RefusedError as refusal:
                await _refuse(exchange, scope, refusal)

    async def _serve(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        try:
            body = await exchange.read(self._max_body_bytes)
        except BodyTooLargeError:
            message = f"a request may have {self._max_body_bytes} bytes here"
            raise RefusedError(413, message, "invalid_request_error", None, "body_too_large") from None
        except SlowClientError:
            message = f"the client sent nothing of its body for {self._receive_timeout:g} s"
            raise RefusedError(408, message, "invalid_request_error", None, "request_timeout") from None
        request = carried_of(scope, body)
        hint = hint_of(request.path, exchange.headers, body)
        again = request.path in API_OF_PATH or exchange.method in READS
        await exchange.while_connected(self._pass_on(exchange, hint, request, ATTEMPTS if again else 1, send))

    async def _pass_on(self, exchange: Exchange, hint: Hint, request: Carried, attempts: int, send: Send) -> None:
        for left in reversed(range(attempts)):
            answer = self._ask(hint, request)
            try:
                async for messages in answer:
                    for message in messages:
                        exchange.started = True
                        await send(message)
                return
            except self._lost as error:
                if exchange.started:
                    log.warning("broken off: its replica is lost (%s)", type(error).__name__)
                    raise
                if not left:
                    why = "no proxy replica could answer; try again"
                    raise RefusedError(503, why, "server_error", None, "replica_lost", _LATER) from None
                log.warning("asked again: the replica is lost (%s)", type(error).__name__)
            except self._full:
                why = "too many requests wait already; try again"
                raise RefusedError(503, why, "server_error", None, "overloaded", _LATER) from None
            except asyncio.CancelledError:
                answer.cancel()
                raise


async def _refuse(exchange: Exchange, scope: Scope, refusal: RefusedError) -> None:
    near = api_near(carried_of(scope, b"").path)
    await exchange.respond(refusal.status, refusal.body("chat" if near is None else near.name), more=refusal.headers)


async def _lifespan(receive: Receive, send: Send) -> None:
    for step in ("startup", "shutdown"):
        while (await receive())["type"] != f"lifespan.{step}":
            pass
        await send({"type": f"lifespan.{step}.complete"})
