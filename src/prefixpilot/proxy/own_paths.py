"""The paths of our own: health, readiness, metrics, stats, plans, eviction, reset. Everything else is the engine's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote

from prefixpilot.proxy.admin import check_admin
from prefixpilot.proxy.cache.watch import bounded
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.control.controller import RouteState
from prefixpilot.proxy.conversations import Conversations
from prefixpilot.proxy.fleet.engines import Engines
from prefixpilot.proxy.in_flight import InFlight
from prefixpilot.proxy.known import KnownTexts
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.metrics import Metrics, Sizes
from prefixpilot.proxy.openapi import document
from prefixpilot.proxy.ordinary.seam import OrdinaryTreat
from prefixpilot.proxy.pipeline import Pipeline
from prefixpilot.proxy.preface import Preface
from prefixpilot.proxy.report import RecentPlans
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Failed, Planner
from prefixpilot.proxy.tenants import Tenants
from prefixpilot.proxy.wire.exchange import Exchange

PLANS: Final = b"/plans/"
CONVERSATIONS: Final = b"/conversations/"
ENGINES: Final = re.compile(rb"/engines/([0-9]{1,9})/(drain|resume)")
METRICS_TYPE: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
MAX_EVICT_BYTES: Final = 16 << 20
EVICTED_AT_ONCE: Final = 256
"""Ids, some milliseconds; then other requests have their turn."""
OPEN: Final = frozenset((b"/healthz", b"/readyz", b"/openapi.json"))
"""Paths that ask for no token: they show nothing of what clients send."""

FOR_ALL: Final = "all proxies that share store.redis_url, within fleet.check_interval"
FOR_ONE: Final = "this proxy alone, until it ends; with store.redis_url all that share it"
"""How far a drain reaches."""

OwnPath = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Held:
    """What the paths show and change: the one owner of each is the app."""

    planner: Planner
    conversations: Conversations
    plans: RecentPlans
    in_flight: InFlight
    preface: Preface
    ordinary: OrdinaryTreat | None
    engines: Engines
    texts: KnownTexts

    @property
    def sizes(self) -> Sizes:
        """How much is held now."""
        ledger = self.conversations.ledger
        forms = (0, 0) if self.ordinary is None else self.ordinary.forms
        held = (self.planner.live_requests, len(ledger), ledger.size, len(self.in_flight), len(self.plans))
        return Sizes(*held, *forms)

    def forget(self) -> dict[str, int]:
        """All but conversations; how much of each there was."""
        self.preface.clear()
        self.engines.forget()
        self.texts.clear()
        forms = 0 if self.ordinary is None else self.ordinary.clear()
        return {"requests": self.planner.reset(), "plans": self.plans.clear(), "forms": forms}


class OwnPaths:
    """Finds and serves the paths of our own.

    Args:
        probe: what is wrong with the engine; ``None`` if nothing is.
    """

    def __init__(
        self,
        settings: ProxySettings,
        held: Held,
        metrics: Metrics,
        pipeline: Pipeline,
        tenants: Tenants,
        probe: Callable[[], Awaitable[str | None]],
    ) -> None:
        self._settings = settings
        self._held = held
        self._metrics = metrics
        self._pipeline = pipeline
        self._tenants = tenants
        self._probe = probe
        self._started = monotonic()
        self._openapi = json.dumps(document()).encode("ascii")
        self._paths: Mapping[tuple[str, bytes], OwnPath] = {
            ("GET", b"/healthz"): self._healthz,
            ("GET", b"/readyz"): self._readyz,
            ("GET", b"/openapi.json"): self._describe,
            ("GET", b"/metrics"): self._show_metrics,
            ("GET", b"/stats"): self._show_stats,
            ("POST", b"/evict"): self._evict,
            ("POST", b"/reset"): self._reset,
        }

    def find(self, exchange: Exchange) -> OwnPath | None:
        """What serves a request; ``None``: it is not for us."""
        method = "GET" if exchange.method == "HEAD" else exchange.method
        if method == "GET" and exchange.path.startswith(PLANS):
            return self._behind_the_door(self._plan)
        if method == "POST" and ENGINES.fullmatch(exchange.path):
            return self._behind_the_door(self._stand)
        if method == "DELETE" and exchange.path.startswith(CONVERSATIONS):
            return self._delete
        path = self._paths.get((method, exchange.path))
        return path if path is None or exchange.path in OPEN else self._behind_the_door(path)

    def _behind_the_door(self, path: OwnPath) -> OwnPath:
        async def serve(exchange: Exchange) -> None:
            check_admin(self._settings.admin.token, exchange.headers)
            await path(exchange)

        return serve

    async def _healthz(self, exchange: Exchange) -> None:
        await exchange.respond(200, b'{"status": "ok"}')

    async def _readyz(self, exchange: Exchange) -> None:
        wrong = await self._probe()
        state = {
            "ready": wrong is None,
            "engine": self._settings.engine,
            **({"engines": self._held.engines.standing()} if self._held.engines.several else {}),
            "missing": [] if wrong is None else [wrong],
            "degraded": [
                *([] if self._held.conversations.healthy else ["conversations are kept in memory only"]),
                *self._held.engines.out(),
                *self._held.engines.in_doubt(),
            ],
        }
        await exchange.respond(200 if wrong is None else 503, json.dumps(state).encode())

    async def _describe(self, exchange: Exchange) -> None:
        await exchange.respond(200, self._openapi)

    async def _show_metrics(self, exchange: Exchange) -> None:
        self._held.conversations.show()
        self._held.engines.show()
        self._metrics.set_sizes(self._held.sizes)
        await exchange.respond(200, self._metrics.text(), METRICS_TYPE)

    async def _show_stats(self, exchange: Exchange) -> None:
        uptime = round(monotonic() - self._started, 3)
        routes = [_route(state) for state in self._pipeline.routes()]
        shown = {**self._metrics.stats(), **self._held.engines.stats(), "routes": routes}
        stats = {"uptime_s": uptime, "sizes": asdict(self._held.sizes), **shown}
        await exchange.respond(200, json.dumps(stats).encode())

    async def _plan(self, exchange: Exchange) -> None:
        names = _names(exchange.path.removeprefix(PLANS))
        report = next((found for name in names if (found := self._held.plans.get(name)) is not None), None)
        if report is None:
            request_id = names[0]
            message = f"no plan of the request {request_id!r} is kept; the last {self._settings.max_plans} are"
            raise RefusedError(404, message, "invalid_request_error", "request_id", "not_found")
        findings = map(self._held.engines.finding, names)
        finding = next((found for found in findings if found is not None), None)
        if finding is not None:
            told = bounded(json.loads(report), finding["usable"])
            report = json.dumps({**told, "engine": finding}).encode("ascii")
        await exchange.respond(200, report)

    async def _evict(self, exchange: Exchange) -> None:
        ids = _request_ids(await exchange.read(MAX_EVICT_BYTES))
        evicted = 0
        for some in (ids[at : at + EVICTED_AT_ONCE] for at in range(0, len(ids), EVICTED_AT_ONCE)):
            known = self._pipeline.attempt("evict", partial(self._held.planner.evict, some))
            if isinstance(known, Failed):
                await _answer(exchange, known)
                return
            evicted += known
            await asyncio.sleep(0)
        self._held.engines.evicted(ids)
        await _answer(exchange, {"evicted": evicted})

    async def _stand(self, exchange: Exchange) -> None:
        """Take an engine out, or in again."""
        found = ENGINES.fullmatch(exchange.path)
        assert found is not None
        number, engines = int(found[1]), self._held.engines
        await exchange.read(MAX_EVICT_BYTES)
        if number >= len(engines.all):
            message = f"there is no engine {number}; they have the numbers 0 to {len(engines.all) - 1}"
            raise RefusedError(404, message, "invalid_request_error", "engine", "not_found")
        try:
            if found[2] == b"resume":
                await engines.drains.resume(number)
            elif not await engines.drains.drain(number):
                message = "no other engine would be left; end the proxy (SIGTERM) to drain all"
                raise RefusedError(409, message, "invalid_request_error", "engine", "last_engine")
        except StoreError as error:
            message = f"nothing was done: the store by which other proxies know does not answer ({error}); ask again"
            raise RefusedError(503, message, "server_error", "engine", "not_shared") from None
        told = {**engines.told(number), "holds_for": FOR_ALL if engines.drains.shared else FOR_ONE}
        await exchange.respond(200, json.dumps(told).encode())

    async def _reset(self, exchange: Exchange) -> None:
        await exchange.read(MAX_EVICT_BYTES)
        conversations = len(self._held.conversations.ledger)
        forgotten = self._pipeline.attempt("reset", self._held.forget)
        _, gone = await self._held.conversations.clear()
        if not gone:
            raise _not_deleted("conversations are not used any more, but their removal")
        done = forgotten if isinstance(forgotten, Failed) else {**forgotten, "conversations": conversations}
        await _answer(exchange, done)

    async def _delete(self, exchange: Exchange) -> None:
        """Both modes of a conversation of whoever asks."""
        tenant = self._tenants.of(exchange.headers, exchange.peer)
        keys = self._pipeline.keys(exchange.headers, tenant, _names(exchange.path.removeprefix(CONVERSATIONS)))
        known, gone = await self._held.conversations.delete(keys)
        if not gone:
            raise _not_deleted("the conversation is not used any more, but its removal")
        if not known:
            message = "no conversation of this id is kept for whoever sends these credentials"
            raise RefusedError(404, message, "invalid_request_error", "conversation", "not_found")
        await exchange.empty(204)


async def _answer(exchange: Exchange, result: Mapping[str, Any] | Failed) -> None:
    if isinstance(result, Failed):
        raise RefusedError(500, f"the proxy failed ({result})", "server_error", None, "proxy_error")
    await exchange.respond(200, json.dumps(result).encode())


def _names(quoted: bytes) -> tuple[str, ...]:
    """What an id in a path may mean: as we read headers, and as a client reads its own id."""
    text = quoted.decode("ascii")
    return tuple(dict.fromkeys((unquote(text, encoding="latin-1"), unquote(text))))


def _not_deleted(what: str) -> RefusedError:
    message = f"{what} from the disk is not certain; ask again"
    return RefusedError(503, message, "server_error", "conversation", "not_deleted")


def _route(state: RouteState) -> dict[str, Any]:
    gains = {"cost_gain": state.cost, "ttft_gain_s": state.ttft}
    shown = {name: None if gain is None else gain._asdict() for name, gain in gains.items()}
    counts = {"treated": state.treated, "held_out": state.held_out}
    return {**state.route._asdict(), "bypassed": state.bypassed, **counts, **shown}


def _request_ids(body: bytes) -> list[str]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = f"the body is no JSON ({error})"
        raise RefusedError(400, reason, "invalid_request_error", None, "invalid_value") from None
    ids = document.get("request_ids") if isinstance(document, dict) else None
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        message = 'request_ids: is missing or no list of strings; send {"request_ids": ["id", ...]}'
        raise RefusedError(400, message, "invalid_request_error", "request_ids", "invalid_value")
    return ids
