"""A request on its way to an engine, and the answer on its way back: with several engines, the next one where one fails
before it has begun to answer, and never after."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, Protocol, TypeVar

from prefixpilot.proxy.cache.watch import Watch, with_expected
from prefixpilot.proxy.call import Call, is_encoded
from prefixpilot.proxy.conversations import Conversations
from prefixpilot.proxy.fleet.engines import Engine, Engines, home_out, none_fit
from prefixpilot.proxy.fleet.pool import Seat
from prefixpilot.proxy.fleet.prompts import Asked, asked
from prefixpilot.proxy.fleet.responses import named_in
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.front import current_account
from prefixpilot.proxy.learning import Observation
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.pipeline import Pipeline
from prefixpilot.proxy.relay import head_waits, pass_on, usage_filter
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Failed
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.exchange import Exchange
from prefixpilot.proxy.wire.upstream import (
    IDEMPOTENT,
    EngineBrokeOffError,
    EngineResponse,
    EngineUnreachableError,
    NoAnswerError,
    UnsendableError,
    response_headers,
    response_reason,
)
from prefixpilot.routing import RoutedRequest

DRAINING: Final = frozenset((502, 503))
"""What an engine, or the gateway before it, answers that takes no more requests."""

T = TypeVar("T")
Body = bytes | AsyncIterable[bytes] | None


class Work(Protocol):
    """Runs what takes long on a large request beside the loop."""

    def __call__(self, call: Call, action: Callable[[], T]) -> Awaitable[T]: ...


class _DrainingError(EngineUnreachableError):
    """It answered, with nothing but that it takes no more; another engine may."""


class Delivery:
    """Sends what the pipeline has decided on, or what passes as it came."""

    def __init__(
        self,
        settings: ProxySettings,
        engines: Engines,
        pipeline: Pipeline,
        metrics: Metrics,
        conversations: Conversations,
        work: Work,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._pipeline = pipeline
        self._metrics = metrics
        self._conversations = conversations
        self._work = work

    async def to_model(self, exchange: Exchange, call: Call, forward: Forward, target: bytes) -> None:
        """A request to one of the four APIs, by what it decided; the answer to the client."""
        headers = _request_headers(call, forward, named=self._engines.names_requests)

        async def send(engine: Engine, seat: Seat | None, spare: bool) -> None:
            account = current_account()
            self._engines.sent(forward, engine)
            with (
                engine.slots.sending(call, forward, headers, account) as sending,
                nullcontext() if engine.cache is None else engine.cache.following(call, forward, account) as watch,
            ):
                way = _Way(engine, seat, spare, target, sending.headers, sending.body)
                await self._relay(exchange, way, forward, watch)

        try:
            asked = await self._asked(call, forward) if self._engines.several else None
            routed, home = (None, None) if asked is None else (asked.routed, self._engines.responses.of(asked.previous))
            await self._send(exchange, routed, home, send, lambda error: True)
        finally:
            self._pipeline.over(forward)

    async def pass_on(self, exchange: Exchange, headers: h.RawHeaders, body: Body) -> None:
        """Any other request, as it came, to an engine that is fit."""
        again = exchange.method in IDEMPOTENT and isinstance(body, bytes | None)

        async def send(engine: Engine, seat: Seat | None, spare: bool) -> None:
            await self._relay(exchange, _Way(engine, seat, spare, exchange.target, headers, body), None, None)

        # a body that streams has not been read as long as there was no connection
        await self._send(exchange, None, self._home(exchange, body), send, lambda error: again or error.unseen)

    def _home(self, exchange: Exchange, body: Body) -> int | None:
        """The engine that alone has what the request is about; ``None``: any will do, or nobody knows."""
        if not self._engines.several:
            return None
        named = self._pipeline.attempt("route", lambda: named_in(exchange.path, body))
        return None if isinstance(named, Failed) else self._engines.responses.of(named)

    async def _asked(self, call: Call, forward: Forward) -> Asked | None:
        """The request as routing sees it; an error of ours leaves the choice to chance."""
        most = self._settings.max_body_bytes
        seen = await self._work(call, lambda: self._pipeline.attempt("route", lambda: asked(call, forward, most)))
        return None if isinstance(seen, Failed) else seen

    async def _send(
        self,
        exchange: Exchange,
        routed: RoutedRequest | None,
        home: int | None,
        send: Callable[[Engine, Seat | None, bool], Awaitable[None]],
        may_repeat: Callable[[NoAnswerError], bool],
    ) -> None:
        """To ``home``; or, if that is ``None``, to one engine after another, until one begins to answer."""
        engines = self._engines
        if not engines.several:
            await send(engines.all[0], None, False)
            return
        if home is not None:
            await self._send_home(home, routed, send)
            return
        tried: set[int] = set()
        failed: NoAnswerError | None = None
        while (seat := engines.seat(routed, tried)) is not None:
            tried.add(seat.engine)
            engine, spare = engines.all[seat.engine], engines.pool.spare(tried)
            try:
                with self._seated(engine, seat):
                    await send(engine, seat, spare)
                return
            except NoAnswerError as error:
                if exchange.started or not spare or not error.silent or not may_repeat(error):
                    raise
                failed = error
                if engines.figures is not None:
                    engines.figures.retried[seat.engine].inc()
        raise failed or none_fit(len(engines.all))

    async def _send_home(
        self, home: int, routed: RoutedRequest | None, send: Callable[[Engine, Seat | None, bool], Awaitable[None]]
    ) -> None:
        seat = self._engines.seat_at(home, routed)
        if seat is None:
            raise home_out(home)
        engine = self._engines.all[home]
        with self._seated(engine, seat):
            await send(engine, seat, False)

    @contextmanager
    def _seated(self, engine: Engine, seat: Seat) -> Iterator[None]:
        """Within it the request is at that engine; what fails there counts against it."""
        account = current_account()
        try:
            yield
        except (UnsendableError, _DrainingError):
            raise
        except (NoAnswerError, EngineBrokeOffError) as error:
            self._engines.failed(engine, type(error).__name__)
            raise
        else:
            self._engines.pool.health[seat.engine].answered()
        finally:
            self._engines.leave(seat, account)

    async def _relay(self, exchange: Exchange, way: _Way, forward: Forward | None, watch: Watch | None) -> None:
        again = forward is not None  # to ask a model twice does no harm
        upstream = way.engine.upstream
        sent = None if forward is None else forward.tell
        response = await upstream.answer(
            exchange.method, way.target, way.headers, way.body, repeatable=again, sent=sent
        )
        try:
            if way.spare and again and response.status in DRAINING:
                raise _DrainingError(f"engine {way.engine.number} answered {response.status}", silent=True)
            outcome: Outcome = "passthrough" if forward is None else forward.outcome
            account = current_account()
            account.outcome = outcome if response.status < 400 else "engine_error"
            account.treated = forward is not None and forward.touched
            self._metrics.count_request(account.outcome)
            answer = response_headers(response)
            told = None if forward is None else self._pipeline.told(forward, response.status)
            if told is not None:
                answer.append((h.PLAN, told if watch is None else self._expected(told, watch)))
            began = _nothing
            if way.seat is not None:
                account.engine = way.seat.engine
                answer.append((h.ENGINE, str(way.seat.engine).encode("ascii")))
                began = self._began(way.seat)
            observation = self._observe(forward, response)
            if observation is not None and way.seat is not None:
                observation.tell_name(self._made(way.engine))
            waits = head_waits(response, observation)
            await exchange.start(response.status, answer, response_reason(response), waits=waits)
            usage = usage_filter(forward, response)
            try:
                await pass_on(exchange, response, observation, self._conversations, usage, began)
            finally:
                if observation is not None:
                    account.first_content, account.usage = observation.first_content, observation.usage
        finally:
            response.close()

    def _began(self, seat: Seat) -> Callable[[], None]:
        return lambda: self._engines.pool.began(seat)

    def _made(self, engine: Engine) -> Callable[[str], None]:
        return lambda response_id: self._engines.responses.made(response_id, engine.number)

    def _expected(self, header: bytes, watch: Watch) -> bytes:
        """A plan header, and what the picture of the engine's cache predicts, if that is there by now."""
        told = self._pipeline.attempt("report", lambda: with_expected(header, watch.prediction))
        return header if isinstance(told, Failed) else told

    def _observe(self, forward: Forward | None, response: EngineResponse) -> Observation | None:
        if forward is None:
            return None
        content_type = response.headers.get("Content-Type", "")
        encoding = response.headers.get("Content-Encoding", "")
        observation = self._pipeline.attempt(
            "observe", lambda: self._pipeline.observe(forward, response.status, content_type, encoding)
        )
        return None if isinstance(observation, Failed) else observation


class _Way:
    """Where one try of a request goes.

    Attributes:
        seat: ``None`` with one engine.
        spare: another engine may be tried after this one.
    """

    __slots__ = ("body", "engine", "headers", "seat", "spare", "target")

    def __init__(
        self, engine: Engine, seat: Seat | None, spare: bool, target: bytes, headers: h.RawHeaders, body: Body
    ) -> None:
        self.engine = engine
        self.seat = seat
        self.spare = spare
        self.target = target
        self.headers = headers
        self.body = body


def _nothing() -> None:
    """Nobody counts when an answer begins."""


def _request_headers(call: Call, forward: Forward, *, named: bool) -> h.RawHeaders:
    """The client's headers; those that describe a body we changed are made anew. ``named``: each request has an id."""
    if not forward.touched and not named:
        return call.headers
    changed = (b"content-length", *((b"content-encoding",) if is_encoded(call) else ())) if forward.touched else ()
    headers = h.without(call.headers, changed)
    if not (h.get(headers, h.REQUEST_ID) or "").strip():
        headers = h.without(headers, (h.REQUEST_ID,))
        headers.append((h.REQUEST_ID, forward.request_id.encode("ascii")))
    return headers
