"""What every request goes through: whose it is, whether there is room, its account; and every error as an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from os import urandom
from typing import Final

from prefixpilot.apis import API_OF_PATH
from prefixpilot.core import TenantId
from prefixpilot.proxy import logs
from prefixpilot.proxy.account import OWN, PASSED, Account, Accounts
from prefixpilot.proxy.call import MAX_ID_CHARS, RefusedError
from prefixpilot.proxy.in_flight import InFlight
from prefixpilot.proxy.intake import api_near, api_of_batch
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.tenants import Tenants
from prefixpilot.proxy.wire import headers as h
from prefixpilot.proxy.wire.client import Refusal
from prefixpilot.proxy.wire.exchange import (
    BodyTooLargeError,
    ClientGoneError,
    Exchange,
    Receive,
    Scope,
    Send,
    SlowClientError,
)
from prefixpilot.proxy.wire.upstream import EngineBrokeOffError, EngineTimeoutError, EngineUnreachableError, kind_of

log = logging.getLogger(__name__)

GATEWAY_ERRORS: Final = frozenset((502, 503, 504))
Serve = Callable[[Exchange], Awaitable[None]]

_current: ContextVar[Account] = ContextVar("prefixpilot_account")


def current_account() -> Account:
    """The account of the request that is being served. Raises LookupError outside of one."""
    return _current.get()


class Front:
    """Serves one exchange after another.

    Args:
        own: finds what serves a path of our own.
        proxy: serves all others.
    """

    def __init__(
        self,
        settings: ProxySettings,
        metrics: Metrics,
        in_flight: InFlight,
        accounts: Accounts,
        tenants: Tenants,
        own: Callable[[Exchange], Serve | None],
        proxy: Serve,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._in_flight = in_flight
        self._accounts = accounts
        self._own = own
        self._proxy = proxy
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange: every error on the way becomes an answer, or a broken-off answer if it has begun."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, self._settings.receive_timeout)
        own = self._own(exchange)
        account = _account(exchange, own is not None, TenantId(self._settings.tenant))
        _current.set(account)
        logs.request_id.set(account.request_id)
        try:
            await self._answer(exchange, own, account)
        finally:
            account.status = exchange.status
            self._accounts.close(account, exchange.headers)

    async def _answer(self, exchange: Exchange, own: Serve | None, account: Account) -> None:
        try:
            if own is None:
                account.tenant = self._tenants.of(exchange.headers, exchange.peer)
                self._in_flight.enter(account.tenant)
            try:
                async with asyncio.timeout(self._settings.total_timeout):
                    await (own or self._proxy)(exchange)
            finally:
                if own is None:
                    self._in_flight.leave(account.tenant)
        except asyncio.CancelledError:
            await self._refuse(exchange, RefusedError(503, "the proxy is ending", "server_error", None, "ending"))
        except ClientGoneError:
            self._gone(exchange, account)
        except EngineBrokeOffError as error:
            # an answer that has begun stays without its end, as the engine left it
            await self._refuse(exchange, _broken_off(error))
        except Exception as error:
            refusal = self._refusal(exchange, error)
            await self._refuse(exchange, refusal or self._unexpected(error))
            if refusal is None:
                raise  # the server logs it

    def refuse_unread(self, refusal: Refusal) -> bytes:
        """The body of an answer to what is no HTTP. Where that was no request, this is its account."""
        path = refusal.target.partition(b"?")[0]
        if not refusal.request:
            tenant = TenantId(self._settings.tenant)
            account = Account(urandom(16).hex(), "", "", tenant, status=refusal.status, code=refusal.code)
            self._count(account, refusal.status)
            self._accounts.close(account, [])
        error = RefusedError(refusal.status, refusal.message, "invalid_request_error", None, refusal.code)
        return error.body(_shape(path))

    def _gone(self, exchange: Exchange, account: Account) -> None:
        account.code = "client_gone"
        if exchange.refused is not None and account.outcome is None:
            exchange.status, account.code = exchange.refused.status, exchange.refused.code
            self._count(account, exchange.status)
        log.debug("the client has gone")

    def _unexpected(self, error: Exception) -> RefusedError:
        self._metrics.fail_opens.labels("serve").inc()
        message = f"the proxy failed on this request ({type(error).__name__})"
        return RefusedError(500, message, "server_error", None, "proxy_error")

    def _refusal(self, exchange: Exchange, error: Exception) -> RefusedError | None:
        """The answer that an error stands for; ``None``: it is none of those that are expected."""
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, SlowClientError) or (exchange.slow and isinstance(error, EngineUnreachableError)):
            bound = self._settings.receive_timeout
            message = f"the client sent nothing of its body for {bound:g} s"
            closing = ((b"connection", b"close"),)
            return RefusedError(408, message, "invalid_request_error", None, "request_timeout", closing)
        if isinstance(error, BodyTooLargeError):
            most = self._settings.max_body_bytes if error.most is None else error.most
            message = f"the proxy has to read this body, and reads at most {most} bytes of one"
            return RefusedError(413, message, "invalid_request_error", None, "body_too_large")
        if isinstance(error, EngineUnreachableError):
            return RefusedError(502, str(error), "server_error", None, "engine_unreachable")
        if isinstance(error, EngineTimeoutError | TimeoutError):
            message = str(error) or f"not answered within {self._settings.total_timeout:g} s"
            return RefusedError(504, message, "server_error", None, "engine_timeout")
        return None

    async def _refuse(self, exchange: Exchange, refusal: RefusedError) -> None:
        account = current_account()
        account.code = refusal.code
        if exchange.started:
            log.warning("broken off: %s", refusal.message)
            return
        if account.api != OWN:
            self._count(account, refusal.status)
        body = refusal.body("chat" if account.api == OWN else _shape(exchange.path))
        await exchange.respond(refusal.status, body, more=refusal.headers)

    def _count(self, account: Account, status: int) -> None:
        gateway: Outcome = "engine_error" if status in GATEWAY_ERRORS else "client_error"
        counted = account.outcome is not None  # the engine had answered, and that did not go out
        account.outcome = "fallback" if status == 500 else gateway
        if not counted:
            self._metrics.count_request(account.outcome)
        self._metrics.refused.labels(str(status)).inc()


def _account(exchange: Exchange, own: bool, tenant: TenantId) -> Account:
    given = (h.get(exchange.headers, h.REQUEST_ID) or "").strip()
    api = API_OF_PATH.get(exchange.path) if exchange.method == "POST" else None
    return Account(
        given[:MAX_ID_CHARS] or urandom(16).hex(),
        exchange.method,
        exchange.path.decode("latin-1"),
        tenant,
        OWN if own else PASSED if api is None else api.name,
    )


def _shape(path: bytes) -> str:
    """The API as which an error is written to whoever asked for that path."""
    api = api_near(path) or api_of_batch(path)
    return "chat" if api is None else api.name


def _broken_off(error: EngineBrokeOffError) -> RefusedError:
    message = f"the engine broke off its answer ({kind_of(error)})"
    return RefusedError(502, message, "server_error", None, "engine_broke_off")
