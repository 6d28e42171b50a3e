"""The proxy as an ASGI app: requests to models through the pipeline, all else untouched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from importlib import import_module
from threading import RLock
from time import monotonic
from typing import Any, TypeVar

from prefixpilot.apis import API_OF_PATH, APIS, Api
from prefixpilot.core import Plan, TenantId
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot
from prefixpilot.proxy.account import Accounts, Export, model_of
from prefixpilot.proxy.admission import AdmissionWindow
from prefixpilot.proxy.call import Call, RefusedError, wants_plan
from prefixpilot.proxy.conversations import Conversations
from prefixpilot.proxy.delivery import Delivery
from prefixpilot.proxy.engine_models import EngineModels
from prefixpilot.proxy.explain import explained
from prefixpilot.proxy.fleet.engines import Engines
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.front import Front, current_account
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.in_flight import InFlight
from prefixpilot.proxy.intake import (
    LongBody,
    api_near,
    api_of_batch,
    check_not_misplaced,
    is_large,
    long_body,
    with_block_bound,
)
from prefixpilot.proxy.known import KnownTexts
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.seam import OrdinaryTreat
from prefixpilot.proxy.own_paths import Held, OwnPaths
from prefixpilot.proxy.pipeline import Pipeline
from prefixpilot.proxy.preface import Preface
from prefixpilot.proxy.report import UNKNOWN, RecentPlans
from prefixpilot.proxy.salting import salted
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Failed, Planner
from prefixpilot.proxy.tenants import Tenants
from prefixpilot.proxy.turns import Draft
from prefixpilot.proxy.windows import Windows
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.client import Refusal
from prefixpilot.proxy.wire.exchange import BodyTooLargeError, Exchange, Receive, Scope, Send
from prefixpilot.proxy.wire.upstream import (
    EngineBrokeOffError,
    EngineUnreachableError,
)

try:
    from starlette.routing import Router
except ImportError:
    raise MissingExtraError("starlette", 'pip install "prefixpilot[proxy]"') from None

T = TypeVar("T")


class ProxyApp:
    """One proxy: its pipeline, its metrics and its client of the engine. An ASGI app; the lifespan opens the client.

    Args:
        settings: where the engine is, and every bound.
        pilot: plans the blocks; a new one if ``None``.
        tracer_provider: of OpenTelemetry, where spans go if they are asked for; the global one if ``None``.
        clock: seconds, monotonic: rates of cache keys, lifetimes of a hosted provider's entries.
        steps: collaborators of :class:`Pipeline`, to put in the place of the ordinary ones.

    Attributes:
        loop: on which it serves; ``None`` outside of its lifespan.
    """

    def __init__(
        self,
        settings: ProxySettings,
        pilot: ContextPilot | None = None,
        *,
        tracer_provider: Any = None,
        clock: Callable[[], float] = monotonic,
        **steps: Any,
    ) -> None:
        pilot = pilot or ContextPilot(settings.pilot)
        self.settings = settings
        self.loop: asyncio.AbstractEventLoop | None = None
        self.metrics = Metrics()
        lock = RLock()
        self._planner: Planner = guarded(steps.pop("planner", pilot), lock)
        self._plans = guarded(RecentPlans(settings.max_plans, settings.max_plan_bytes), lock)
        self._conversations = Conversations(settings, self.metrics, lock, self._attempt, steps.pop("ledger", None))
        self._ledger = self._conversations.ledger
        self._texts = KnownTexts()
        self._windows = guarded(Windows(settings.store.context_window), lock)
        steps["parse"] = with_block_bound(steps.get("parse", self._texts.parse), settings.max_request_blocks)
        recognition = Recognition.of(settings.ordinary, lock)
        self._preface = Preface.of(settings, recognition, lock, clock)
        shared = self._conversations.shared
        self._engines = Engines(settings, self._planner, self.metrics, self._attempt, clock, shared)
        self._ordinary = OrdinaryTreat.of(
            settings.ordinary, self._planner, lock, recognition, self._preface, settings.max_displacement, self._known
        )
        steps.setdefault("treat", self._ordinary)
        self.pipeline = Pipeline(
            settings,
            self._planner,
            self._ledger,
            self.metrics,
            self._plans,
            windows=self._windows,
            texts=self._texts,
            preface=self._preface if self._preface.on else None,
            times=None if self._ordinary is None else self._ordinary.times,
            cache_state=self._known,
            **steps,
        )
        self._worker: ThreadPoolExecutor | None = None
        self._window: AdmissionWindow[Draft, Plan] = AdmissionWindow(
            settings.admission_window_ms / 1000, settings.max_held, self.pipeline.plan_together
        )
        if settings.admission_window_ms:
            import_module("prefixpilot.planners.shared_tokens")  # now, not while requests are held
        self._models = EngineModels(lambda: self._engines.any().upstream, self._windows, settings.ready_timeout)
        self._delivery = Delivery(settings, self._engines, self.pipeline, self.metrics, self._conversations, self._work)
        self._tenants = Tenants(settings.tenants, TenantId(settings.tenant))
        self._salts = settings.tenants.cache_salt_secret is not None
        self._front = self._made_front(tracer_provider)
        self._router = Router(default=self._front, lifespan=self._lifespan, redirect_slashes=False)

    def _made_front(self, tracer_provider: Any) -> Front:
        settings = self.settings
        in_flight = InFlight(settings.max_in_flight, settings.tenants.max_in_flight)
        kept = self._conversations, self._plans, in_flight, self._preface, self._ordinary, self._engines
        held = Held(self._planner, *kept, self._texts)
        own = OwnPaths(settings, held, self.metrics, self.pipeline, self._tenants, self.missing)
        accounts = Accounts(self.metrics, _spans(settings, tracer_provider))
        return Front(settings, self.metrics, in_flight, accounts, self._tenants, own.find, self._proxy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
        else:
            await self._front(scope, receive, send)

    def refuse(self, refusal: Refusal) -> bytes:
        """Told by the server of what is refused before it is a request; the body of the answer."""
        return self._front.refuse_unread(refusal)

    async def missing(self) -> str | None:
        """What is wrong with the engine; ``None`` if nothing is. What it has for slots is learnt on the way.

        For the loop of the app.
        """
        return await self._engines.missing()

    async def first_model(self) -> str | None:
        """The first of the models that the engine lists; ``None`` if it lists none. For the loop of the app."""
        return await self._models.first()

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        await self._engines.start()
        self._worker = ThreadPoolExecutor(1, "prefixpilot-large-requests")
        try:
            yield
        finally:
            self.loop = None
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._models.cancel()
            await self._engines.close()
            await asyncio.to_thread(self._conversations.close)

    def _known(self) -> str:
        """How the engine's cache is known now, as a plan says it."""
        return self._engines.state or UNKNOWN

    def _attempt(self, step: str, action: Callable[[], T]) -> T | Failed:
        return self.pipeline.attempt(step, action)

    # -- to the engine

    async def _proxy(self, exchange: Exchange) -> None:
        _check_request(exchange)
        post = exchange.method == "POST"
        if post and exchange.path in API_OF_PATH:
            await self._to_model(exchange, API_OF_PATH[exchange.path])
        elif wants_plan(exchange.headers):
            paths = ", ".join(api.paths[0].decode() for api in APIS)
            message = f"X-PrefixPilot-Mode: explain: there is no plan on this path; send the request to one of {paths}"
            raise RefusedError(400, message, "invalid_request_error", None, "wrong_path")
        elif post and (near := api_near(exchange.path)) is not None:
            await self._look_into(exchange, near, salts=self._salts)
        elif post and (each := api_of_batch(exchange.path)) is not None:
            await self._look_into(exchange, each, salts=False)
        else:
            length = h.get(exchange.headers, b"content-length")
            body: AsyncIterable[bytes] | None = exchange.stream()
            if not exchange.has_body or length == "0":
                await exchange.read(0)
                body = None
            await self._pass_through(exchange, body)

    async def _pass_through(self, exchange: Exchange, body: bytes | AsyncIterable[bytes] | None) -> None:
        await exchange.while_connected(self._delivery.pass_on(exchange, exchange.headers, body))

    async def _to_model(self, exchange: Exchange, api: Api) -> None:
        data, rest = await exchange.read_up_to(self.settings.max_body_bytes)
        if rest is not None:
            if self._salts:
                raise BodyTooLargeError
            await self._pass_long(exchange, long_body(exchange.headers, data, rest))
            return
        call = await self._call(exchange, data, api, salts=self._salts)
        await exchange.while_connected(self._plan_and_relay(exchange, call))

    async def _call(self, exchange: Exchange, body: bytes, api: Api, *, salts: bool) -> Call:
        """The request, salted if that is wanted. Not a step that fails open: what is unsalted must not go out."""
        account = current_account()
        call = Call(exchange.headers, body, api, tenant=account.tenant, request_id=account.request_id)
        if self.settings.tracing.enabled:
            account.model = await self._work(call, lambda: model_of(call, self.settings.max_body_bytes))
        if not salts:
            return call
        return await self._work(call, lambda: salted(self._tenants, call, self.settings.max_body_bytes))

    async def _plan_and_relay(self, exchange: Exchange, call: Call) -> None:
        if self._conversations.kept:
            key = self.pipeline.key(call)
            if key is not None and self._conversations.wants(key):
                await self._conversations.load(key)
        draft = await self._work(call, lambda: self.pipeline.attempt("prepare", lambda: self.pipeline.draft(call)))
        if isinstance(draft, Failed):
            raise _failed(draft)
        if isinstance(draft, Draft) and draft.options.conversation is not None and self._windows.wanted():
            self._models.ask()
        with self._window.under_way() if isinstance(draft, Draft) else nullcontext():
            plan = await self._window.admit(draft) if isinstance(draft, Draft) and draft.request is not None else None
            forward = await self._work(
                call, lambda: self.pipeline.attempt("prepare", lambda: self.pipeline.complete(draft, plan))
            )
            if isinstance(forward, Failed):
                raise _failed(forward)
            target = call.api.paths[0] + exchange.target[len(exchange.path) :] if forward.touched else exchange.target
            self.metrics.count_planning(monotonic() - call.received)
            if forward.explain:
                await self._explain(exchange, forward)
                return
            await self._delivery.to_model(exchange, call, forward, target)

    async def _explain(self, exchange: Exchange, forward: Forward) -> None:
        current_account().outcome = "explained"
        self.metrics.count_request("explained")
        await exchange.respond(200, explained(forward))

    async def _look_into(self, exchange: Exchange, api: Api, *, salts: bool) -> None:
        """Nothing is planned on this path, and blocks that are sent to it must not vanish."""
        data, rest = await exchange.read_up_to(self.settings.max_body_bytes)
        if rest is not None:
            if salts:
                raise BodyTooLargeError
            await self._pass_long(exchange, long_body(exchange.headers, data, rest))
            return
        call = await self._call(exchange, data, api, salts=salts)
        await self._work(call, lambda: check_not_misplaced(call, self.settings.max_body_bytes))
        body = call.body if exchange.has_body else None
        await exchange.while_connected(self._delivery.pass_on(exchange, call.headers, body))

    async def _pass_long(self, exchange: Exchange, body: LongBody) -> None:
        try:
            await self._pass_through(exchange, body)
        except (EngineUnreachableError, EngineBrokeOffError):
            if body.refused:
                raise BodyTooLargeError from None
            raise

    async def _work(self, call: Call, action: Callable[[], T]) -> T:
        """Run ``action`` on a request; on a large one in the worker, one at a time, while the loop serves others."""
        if self._worker is None or not is_large(call):
            return action()
        return await asyncio.wrap_future(self._worker.submit(action))


def _check_request(exchange: Exchange) -> None:
    """Raises RefusedError for what cannot be passed on as it is."""
    if not exchange.target.startswith(b"/"):
        message = f"the request target {exchange.target!r} cannot be passed on; send one that begins with /"
        raise RefusedError(400, message, "invalid_request_error", None, "invalid_target")
    if h.wants_websocket(exchange.headers):
        message = "the proxy does not pass WebSockets on; connect to the engine itself"
        raise RefusedError(501, message, "invalid_request_error", "Upgrade", "not_supported")


def _failed(failed: Failed) -> RefusedError:
    return RefusedError(500, f"the proxy failed on this request ({failed})", "server_error", None, "proxy_error")


def _spans(settings: ProxySettings, provider: Any) -> Export | None:
    """What makes spans, if they are asked for. Raises MissingExtraError."""
    if not settings.tracing.enabled:
        return None
    export: Export = import_module("prefixpilot.proxy.tracing").Spans(settings.engine, provider).export
    return export


def create_app(settings: ProxySettings, pilot: ContextPilot | None = None) -> ProxyApp:
    """The proxy of one engine or of several, as an ASGI app with a lifespan."""
    return ProxyApp(settings, pilot)
