"""The proxy as an ASGI app: requests to models through the pipeline, a few paths of our own, all else untouched."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, nullcontext
from importlib import import_module
from threading import RLock
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from prefixpilot.apis import API_OF_PATH, Api
from prefixpilot.core import Plan
from prefixpilot.errors import MissingExtraError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts.request import parse_request
from prefixpilot.proxy.admission import AdmissionWindow
from prefixpilot.proxy.call import Call, RefusedError, is_encoded
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.guard import guarded
from prefixpilot.proxy.intake import (
    LongBody,
    api_near,
    check_not_misplaced,
    is_large,
    long_body,
    with_block_bound,
)
from prefixpilot.proxy.learning import Observation
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.pipeline import Pipeline
from prefixpilot.proxy.report import RecentPlans
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Failed, Planner
from prefixpilot.proxy.turns import Draft
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.exchange import BodyTooLargeError, ClientGoneError, Exchange, Receive, Scope, Send
from prefixpilot.proxy.wire.upstream import (
    EngineBrokeOffError,
    EngineResponse,
    EngineTimeoutError,
    EngineUnreachableError,
    Upstream,
    chunks,
    response_headers,
    response_reason,
)

try:
    from starlette.routing import Router
except ImportError:
    raise MissingExtraError("starlette", 'pip install "prefixpilot[proxy]"') from None

log = logging.getLogger(__name__)

PLANS: Final = b"/plans/"
METRICS_TYPE: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
MAX_EVICT_BYTES: Final = 16 << 20

T = TypeVar("T")
OwnPath = Callable[[Exchange], Awaitable[None]]


class ProxyApp:
    """One proxy: its pipeline, its metrics and its client of the engine. An ASGI app; the lifespan opens the client.

    Args:
        settings: where the engine is, and every bound.
        pilot: plans the blocks; a new one if ``None``.
        steps: collaborators of :class:`Pipeline`, to put in the place of the ordinary ones.
    """

    def __init__(self, settings: ProxySettings, pilot: ContextPilot | None = None, **steps: Any) -> None:
        pilot = pilot or ContextPilot(settings.pilot)
        self.settings = settings
        self.metrics = Metrics()
        lock = RLock()
        self._planner: Planner = guarded(steps.pop("planner", pilot), lock)
        self._plans = guarded(RecentPlans(settings.max_plans, settings.max_plan_bytes), lock)
        ledger = Ledger(settings.max_conversations, settings.max_turns, settings.max_ledger_bytes)
        self._ledger: Ledger = guarded(steps.pop("ledger", ledger), lock)
        steps["parse"] = with_block_bound(steps.get("parse", parse_request), settings.max_request_blocks)
        self.pipeline = Pipeline(settings, self._planner, self._ledger, self.metrics, self._plans, **steps)
        self._worker: ThreadPoolExecutor | None = None
        self._window: AdmissionWindow[Draft, Plan] = AdmissionWindow(
            settings.admission_window_ms / 1000, settings.max_held, self.pipeline.plan_together
        )
        if settings.admission_window_ms:
            import_module("prefixpilot.planners.shared_tokens")  # now, not while requests are held
        self._upstream = Upstream(settings)
        self._router = Router(default=self._serve, lifespan=self._lifespan, redirect_slashes=False)
        self._own: dict[tuple[str, bytes], OwnPath] = {
            ("GET", b"/healthz"): self._healthz,
            ("GET", b"/readyz"): self._readyz,
            ("GET", b"/metrics"): self._metrics,
            ("POST", b"/evict"): self._evict,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        await self._upstream.start()
        self._worker = ThreadPoolExecutor(1, "prefixpilot-large-requests")
        try:
            yield
        finally:
            self._worker.shutdown(wait=False, cancel_futures=True)
            await self._upstream.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange: every error on the way becomes an answer, or a broken-off answer if it has begun."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send)
        own = self._own_path(exchange)
        try:
            async with asyncio.timeout(self.settings.total_timeout):
                await (own or self._proxy)(exchange)
        except asyncio.CancelledError:
            await self._refuse(exchange, RefusedError(503, "the proxy is ending", "server_error", None, "ending"))
        except ClientGoneError:
            log.debug("the client of %s has gone", exchange.target)
        except RefusedError as refusal:
            await self._refuse(exchange, refusal)
        except BodyTooLargeError:
            message = f"the proxy has to read this body, and reads at most {self.settings.max_body_bytes} bytes of one"
            await self._refuse(exchange, RefusedError(413, message, "invalid_request_error", None, "body_too_large"))
        except EngineUnreachableError as error:
            await self._refuse(exchange, RefusedError(502, str(error), "server_error", None, "engine_unreachable"))
        except (EngineTimeoutError, TimeoutError) as error:
            message = str(error) or f"not answered within {self.settings.total_timeout:g} s"
            await self._refuse(exchange, RefusedError(504, message, "server_error", None, "engine_timeout"))
        except EngineBrokeOffError as error:
            log.warning("%s: %s", exchange.target, error)  # the answer stays without its end, as the engine left it

    async def _refuse(self, exchange: Exchange, refusal: RefusedError) -> None:
        if exchange.started:
            log.warning("%s: %s", exchange.target, refusal.message)
            return
        outcome: Outcome = "engine_error" if refusal.status in (502, 503, 504) else "client_error"
        self._count("fallback" if refusal.status == 500 else outcome)
        api = api_near(exchange.path)
        await exchange.respond(refusal.status, refusal.body("chat" if api is None else api.name))

    def _count(self, outcome: Outcome) -> None:
        self.metrics.requests.labels(outcome).inc()

    def _own_path(self, exchange: Exchange) -> OwnPath | None:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method == "GET" and exchange.path.startswith(PLANS):
            return self._plan
        return self._own.get((method, exchange.path))

    # -- to the engine

    async def _proxy(self, exchange: Exchange) -> None:
        _check_request(exchange)
        post = exchange.method == "POST"
        api, near = API_OF_PATH.get(exchange.path), api_near(exchange.path)
        if post and api is not None:
            await self._to_model(exchange, api)
        elif post and near is not None:
            await self._near_model(exchange, near)
        else:
            length = h.get(exchange.headers, b"content-length")
            body: AsyncIterable[bytes] | None = exchange.stream()
            if not exchange.has_body or length == "0":
                await exchange.read(0)
                body = None
            await self._pass_through(exchange, body)

    async def _pass_through(self, exchange: Exchange, body: bytes | AsyncIterable[bytes] | None) -> None:
        await exchange.while_connected(self._relay(exchange, exchange.target, exchange.headers, body, None))

    async def _to_model(self, exchange: Exchange, api: Api) -> None:
        data, rest = await exchange.read_up_to(self.settings.max_body_bytes)
        if rest is not None:
            await self._pass_long(exchange, long_body(exchange.headers, data, rest))
            return
        await exchange.while_connected(self._plan_and_relay(exchange, Call(exchange.headers, data, api)))

    async def _plan_and_relay(self, exchange: Exchange, call: Call) -> None:
        draft = await self._work(call, lambda: self.pipeline.attempt("prepare", lambda: self.pipeline.draft(call)))
        if isinstance(draft, Failed):
            raise _failed(draft)
        with self._window.under_way() if isinstance(draft, Draft) else nullcontext():
            plan = await self._window.admit(draft) if isinstance(draft, Draft) and draft.request is not None else None
            forward = await self._work(
                call, lambda: self.pipeline.attempt("prepare", lambda: self.pipeline.complete(draft, plan))
            )
            if isinstance(forward, Failed):
                raise _failed(forward)
            target = call.api.paths[0] + exchange.target[len(exchange.path) :] if forward.touched else exchange.target
            await self._relay(exchange, target, _request_headers(call, forward), forward.body, forward)

    async def _near_model(self, exchange: Exchange, api: Api) -> None:
        """Nothing is planned on this path, and blocks that are sent to it must not vanish."""
        data, rest = await exchange.read_up_to(self.settings.max_body_bytes)
        if rest is not None:
            await self._pass_long(exchange, long_body(exchange.headers, data, rest))
            return
        call = Call(exchange.headers, data, api)
        await self._work(call, lambda: check_not_misplaced(call, self.settings.max_body_bytes))
        await self._pass_through(exchange, data if exchange.has_body else None)

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

    async def _relay(
        self,
        exchange: Exchange,
        target: bytes,
        headers: h.RawHeaders,
        body: bytes | AsyncIterable[bytes] | None,
        forward: Forward | None,
    ) -> None:
        again = forward is not None  # to ask a model twice does no harm
        async with self._upstream.request(exchange.method, target, headers, body, repeatable=again) as response:
            outcome: Outcome = "passthrough" if forward is None else forward.outcome
            self._count(outcome if response.status < 400 else "engine_error")
            answer = response_headers(response)
            if forward is not None and forward.plan_header is not None:
                answer.append((h.PLAN, forward.plan_header))
            await exchange.start(response.status, answer, response_reason(response))
            await _pass_on(exchange, response, self._observe(forward, response))

    def _observe(self, forward: Forward | None, response: EngineResponse) -> Observation | None:
        if forward is None or not forward.observed:
            return None
        content_type = response.headers.get("Content-Type", "")
        encoding = response.headers.get("Content-Encoding", "")
        observation = self.pipeline.attempt(
            "observe", lambda: self.pipeline.observe(forward, response.status, content_type, encoding)
        )
        return None if isinstance(observation, Failed) else observation

    # -- paths of our own

    async def _healthz(self, exchange: Exchange) -> None:
        await exchange.respond(200, b'{"status": "ok"}')

    async def _readyz(self, exchange: Exchange) -> None:
        wrong = await self._upstream.probe()
        state = {"ready": wrong is None, "engine": self.settings.engine, "missing": [] if wrong is None else [wrong]}
        await exchange.respond(200 if wrong is None else 503, json.dumps(state).encode())

    async def _metrics(self, exchange: Exchange) -> None:
        self.metrics.live_requests.set(self._planner.live_requests)
        self.metrics.conversations.set(len(self._ledger))
        await exchange.respond(200, self.metrics.text(), METRICS_TYPE)

    async def _plan(self, exchange: Exchange) -> None:
        quoted = exchange.path.removeprefix(PLANS).decode("ascii")
        request_id = unquote(quoted, encoding="latin-1")  # as we read headers; or as a client reads its own id
        report = self._plans.get(request_id) or self._plans.get(unquote(quoted))
        if report is None:
            message = f"no plan of the request {request_id!r} is kept; the last {self.settings.max_plans} are"
            raise RefusedError(404, message, "invalid_request_error", "request_id", "not_found")
        await exchange.respond(200, report)

    async def _evict(self, exchange: Exchange) -> None:
        ids = _request_ids(await exchange.read(MAX_EVICT_BYTES))
        known = self.pipeline.attempt("evict", lambda: self._planner.evict(ids))
        if isinstance(known, Failed):
            raise RefusedError(500, f"the index failed ({known})", "server_error", None, "proxy_error")
        await exchange.respond(200, json.dumps({"evicted": known}).encode())


async def _pass_on(exchange: Exchange, response: EngineResponse, observation: Observation | None) -> None:
    """The body as it comes. The last piece of a JSON answer waits until it has been read."""
    held = b""
    hold = observation is not None and observation.holds_last and _is_json(response)
    async with aclosing(chunks(response)) as pieces:
        async for piece in pieces:
            if observation is not None:
                observation.feed(piece)
                if hold:
                    held, piece = piece, held
            if piece:
                await exchange.write(piece)
    if observation is not None:
        observation.finish()
    await exchange.write(held, more=False)


def _is_json(response: EngineResponse) -> bool:
    """Whether the answer is one JSON document: no lines or events that a client wants one by one."""
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"


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


def _request_headers(call: Call, forward: Forward) -> h.RawHeaders:
    """The client's headers; those that describe a body we changed are made anew."""
    if not forward.touched:
        return call.headers
    headers = h.without(call.headers, (b"content-length", *((b"content-encoding",) if is_encoded(call) else ())))
    if not (h.get(headers, h.REQUEST_ID) or "").strip():
        headers = h.without(headers, (h.REQUEST_ID,))
        headers.append((h.REQUEST_ID, forward.request_id.encode("ascii")))
    return headers


def _request_ids(body: bytes) -> list[str]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            400, f"the body is no JSON ({error})", "invalid_request_error", None, "invalid_value"
        ) from None
    ids = document.get("request_ids") if isinstance(document, dict) else None
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        message = 'request_ids: is missing or no list of strings; send {"request_ids": ["id", ...]}'
        raise RefusedError(400, message, "invalid_request_error", "request_ids", "invalid_value")
    return ids


def create_app(settings: ProxySettings, pilot: ContextPilot | None = None) -> ProxyApp:
    """The proxy of one engine, as an ASGI app with a lifespan."""
    return ProxyApp(settings, pilot)
