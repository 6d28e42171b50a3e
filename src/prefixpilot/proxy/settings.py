"""Settings of the proxy. Frozen; they validate themselves."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from prefixpilot.config import Annotate, PilotConfig
from prefixpilot.core import DEFAULT_TENANT
from prefixpilot.errors import ConfigError
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.proxy.configuration.values import Secret
from prefixpilot.proxy.control.controller import ControlSettings
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.proxy.hosted_settings import ProviderSettings
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.volatile.base import VolatileRules

Mode = Literal["on", "off", "shadow"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
LogFormat = Literal["text", "json"]
Slots = Literal["auto", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
Routing = Literal["context_aware", "round_robin", "least_loaded", "consistent_hash", "prefix_hash"]

MIB: Final = 1 << 20
MAX_WINDOW_MS: Final = 1000.0
MIN_SECRET_CHARS: Final = 16
_KEY_HASH: Final = re.compile("[0-9a-f]{64}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Who may use the paths of our own that show or change what all clients share.

    Attributes:
        token: what /evict, /reset, /stats, /metrics and /plans ask for as a bearer token; not set: they are open.
    """

    token: Secret | None = None

    def __post_init__(self) -> None:
        _check_secret("token", self.token)


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """Whose request it is. Tenants share neither index nor conversations.

    Attributes:
        keys: tenant by the SHA-256, in hex, of the key that its clients send (Authorization: Bearer, X-Api-Key or
            Api-Key).
        header: a header that names the tenant, where a gateway in front has checked who the client is; not set: none.
        trusted_peers: addresses and networks from which that header is believed; from others it gets a 403.
        required: refuse, with a 401, requests of which neither says whose they are; else they belong to `tenant`.
        max_in_flight: requests of one tenant that may be under way; more get a 429. Not set: no bound.
        cache_salt_secret: sets `cache_salt` in every request to one of the four APIs to an HMAC of the tenant and of
            the client's own salt, so that vLLM or SGLang share no KV cache between tenants; not set: none is added.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    header: str | None = None
    trusted_peers: tuple[str, ...] = ("127.0.0.1", "::1")
    required: bool = False
    max_in_flight: int | None = None
    cache_salt_secret: Secret | None = None

    def __post_init__(self) -> None:
        for key, tenant in self.keys.items():
            if not _KEY_HASH.fullmatch(key):
                raise ConfigError("keys", "has a key that is no SHA-256 in hex", "printf %s KEY | sha256sum")
            if not tenant.strip():
                raise ConfigError("keys", f"has no tenant for {key[:8]}...", "give each key the name of a tenant")
        if self.header is not None and not _HEADER_NAME.fullmatch(self.header):
            raise ConfigError("header", f"is {self.header!r}", "give a header's name, such as X-Tenant")
        for peer in self.trusted_peers:
            try:
                ipaddress.ip_network(peer)
            except ValueError as error:
                raise ConfigError("trusted_peers", f"has {peer!r} ({error})", "use 10.0.0.0/8 or 10.1.2.3") from None
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ConfigError("max_in_flight", f"is {self.max_in_flight}", "use an int of 1 or more, or leave it out")
        _check_secret("cache_salt_secret", self.cache_salt_secret)

    @property
    def distinguishes(self) -> bool:
        """Whether requests can be of several tenants."""
        return bool(self.keys) or self.header is not None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is written to stderr. Never a key; text of prompts only if asked for.

    Attributes:
        format: text for people, json for machines: one object a line.
        level: debug, info, warning or error.
        access: one line for each request: id, API, outcome, status, times, tokens.
        details: messages of unexpected errors too, in which a part of a prompt may stand.
    """

    format: LogFormat = "text"
    level: LogLevel = "info"
    access: bool = True
    details: bool = False

    def __post_init__(self) -> None:
        if self.format not in get_args(LogFormat):
            raise ConfigError("format", f"is {self.format!r}", f"use one of: {', '.join(get_args(LogFormat))}")
        if self.level not in get_args(LogLevel):
            raise ConfigError("level", f"is {self.level!r}", f"use one of: {', '.join(get_args(LogLevel))}")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Spans of OpenTelemetry (extra ``otel``).

    Attributes:
        enabled: make a span of each request to one of the four APIs, by the GenAI conventions. Where they go is set by
            the variables of OpenTelemetry itself, OTEL_EXPORTER_OTLP_ENDPOINT first.
    """

    enabled: bool = False


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Where the engine is, where to listen, and every bound.

    Attributes:
        engine: base URL of the engine, with or without ``/v1``; of several, the first.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        mode: of requests that do not say (``X-PrefixPilot-Mode``); shadow plans and reports, and sends what off sends.
        tenant: what the index and the conversations are kept under, of requests of which no other tenant is known.
        cache_tokens: KV capacity of the engine in tokens, if known; bounds the index.
        connect_timeout: seconds to reach the engine.
        idle_timeout: seconds in which the engine may send nothing (a long prefill included), or read nothing of a long
            request.
        total_timeout: seconds for one request, all in all.
        ready_timeout: seconds ``/readyz`` waits for the engine.
        receive_timeout: seconds in which a client may send nothing of a head or a body that it has begun.
        drain_timeout: seconds that requests in flight get at SIGTERM.
        max_header_bytes: of a request's head; a longer one gets 431.
        max_in_flight: requests under way, our own paths aside; more get 503 with Retry-After.
        max_body_bytes: of a request that we have to read; a longer one gets 413. What has neither blocks nor a
            conversation has no bound: it is streamed.
        max_request_blocks: of one request; more get 400.
        max_connections: open connections to the engine; further requests wait.
        max_conversations: conversations that the ledger keeps.
        max_turns: turns that it keeps of one conversation.
        max_ledger_bytes: bytes that it keeps in all.
        max_plans: recent plans kept for ``GET /plans/{request_id}``.
        max_plan_bytes: bytes that they have in all.
        max_contexts: requests that the index keeps, if the proxy makes its own.
        max_blocks: blocks whose lengths are kept, likewise.
        admission_window_ms: under concurrency, hold requests with blocks for so many milliseconds at most and plan them
            as one batch; 0 holds none.
        max_held: requests held at most; the window closes when so many are.
        annotate: after the blocks, name at most so many of the most relevant ones in their order, or all; a label costs
            6 to 7 tokens.
        gate: leave requests as they are (given order, no annotation) while ordering does not pay for its annotations.
        slots: auto names a slot (``id_slot``) for each request if the engine is llama.cpp, and plans without
            what it has used up; off leaves the choice to it.
        max_displacement: move no block by more than so many places from its retriever rank; not set: no bound.
        engines: base URLs of all engines, where there are several of one model; the first is `engine`. On the command
            line `--engine` may be repeated.
        routing: of several engines, which gets a request: context_aware (the one whose cache holds most of the prompt,
            unless its queue is longer), round_robin, least_loaded, consistent_hash (by conversation) or prefix_hash.
        fleet: several engines: how they are looked after.
        control: whether treatment pays, route by route.
        store: what is kept of conversations, where and for how long.
        admin, tenants, log, tracing: tables of settings.
        ordinary: what is done to requests without blocks.
        volatile: what is done to text that changes with each request, and to the order of tools; nothing by default.
        providers: what a hosted provider is told about its cache; nothing by default.
        cache: how the engine's cache is known; by default only what was sent is.

    Raises:
        ConfigError: a setting cannot be used.
    """

    engine: str = field(metadata={"first_of": "engines"})
    host: str = "127.0.0.1"
    port: int = 8765
    mode: Mode = "on"
    tenant: str = DEFAULT_TENANT
    cache_tokens: int | None = None
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    total_timeout: float = 3600.0
    ready_timeout: float = 2.0
    receive_timeout: float = 60.0
    drain_timeout: float = 10.0
    max_header_bytes: int = 64 * 1024
    max_in_flight: int = 2000
    max_body_bytes: int = 64 * MIB
    max_request_blocks: int = 1000
    max_connections: int = 1000
    max_conversations: int = 10_000
    max_turns: int = 512
    max_ledger_bytes: int = 256 * MIB
    max_plans: int = 1000
    max_plan_bytes: int = 16 * MIB
    max_contexts: int = 20_000
    max_blocks: int = 100_000
    admission_window_ms: float = 0.0
    max_held: int = 64
    annotate: Annotate = PilotConfig().annotate
    gate: bool = False
    slots: Slots = "auto"
    max_displacement: int | None = None
    engines: tuple[str, ...] = ()
    routing: Routing = "context_aware"
    fleet: FleetSettings = field(default_factory=FleetSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    tenants: TenantSettings = field(default_factory=TenantSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    ordinary: OrdinarySettings = field(default_factory=OrdinarySettings)
    volatile: VolatileRules = field(default_factory=VolatileRules)
    providers: ProviderSettings = field(default_factory=ProviderSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)

    def __post_init__(self) -> None:
        self._check_engine()
        self._check_engines()
        self._check_cache()
        if self.routing not in get_args(Routing):
            raise ConfigError("routing", f"is {self.routing!r}", f"use one of: {', '.join(get_args(Routing))}")
        if self.mode not in MODES:
            raise ConfigError("mode", f"is {self.mode!r}", f"use one of: {', '.join(MODES)}")
        if self.slots not in get_args(Slots):
            raise ConfigError("slots", f"is {self.slots!r}", f"use one of: {', '.join(get_args(Slots))}")
        if not 0 <= self.port <= 65535:
            raise ConfigError("port", f"is {self.port}", "use 0 (a free port) to 65535")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number above 0")
        if not 0 <= self.admission_window_ms <= MAX_WINDOW_MS:
            remedy = f"use 0 (off) to {MAX_WINDOW_MS:g} milliseconds"
            raise ConfigError("admission_window_ms", f"is {self.admission_window_ms!r}", remedy)
        if self.cache_tokens is not None and self.cache_tokens < 1:
            raise ConfigError("cache_tokens", f"is {self.cache_tokens!r}", "use an int of 1 or more, or None")
        self.pilot  # noqa: B018  (it checks its own)

    def _check_engine(self) -> None:
        """Raises ConfigError for what is no engine's URL."""
        check_engine_url(self.engine)

    def _check_engines(self) -> None:
        """Raises ConfigError: they are not all different, not all URLs, or do not begin with ``engine``."""
        if not self.engines:
            if self.fleet.standby:
                raise ConfigError("fleet.standby", "is set, and there is one engine", "name several, or leave it out")
            return
        for engine in self.engines:
            check_engine_url(engine, "engines")
        roots = [engine_root(engine) for engine in self.engines]
        twice = next((root for root in roots if roots.count(root) > 1), None)
        if twice is not None:
            raise ConfigError("engines", f"names {twice} twice", "name each engine once")
        if self.engines[0] != self.engine:
            reason = f"begins with {self.engines[0]}, and the engine is {self.engine}"
            raise ConfigError("engines", reason, "give all engines in one place")
        unknown = next((url for url in self.fleet.standby if engine_root(url) not in roots), None)
        if unknown is not None:
            raise ConfigError("fleet.standby", f"names {unknown}, which is none of engines", "name it there, too")
        if not set(roots) - {engine_root(url) for url in self.fleet.standby}:
            raise ConfigError("fleet.standby", "names all engines", "leave one out")

    def _check_cache(self) -> None:
        """Raises ConfigError: the endpoints of events are not those of so many engines."""
        try:
            for number in range(len(self.all_engines)):
                self.cache.of_engine(number, len(self.all_engines))
        except ConfigError as error:
            raise ConfigError(f"cache.{error.field}", error.reason, error.remedy) from None

    @property
    def all_engines(self) -> tuple[str, ...]:
        """Their base URLs, one or more."""
        return self.engines or (self.engine,)

    @property
    def standby(self) -> frozenset[int]:
        """Numbers of the engines that stand in for the others."""
        roots = {engine_root(url) for url in self.fleet.standby}
        return frozenset(i for i, engine in enumerate(self.all_engines) if engine_root(engine) in roots)

    def of_engine(self, number: int) -> ProxySettings:
        """The settings of a proxy of that engine alone."""
        own = {each.name: getattr(self, each.name) for each in fields(ProxySettings)}
        cache = self.cache.of_engine(number, len(self.all_engines))
        return ProxySettings(
            **{**own, "engine": self.all_engines[number], "engines": (), "fleet": FleetSettings(), "cache": cache}
        )

    @property
    def pilot(self) -> PilotConfig:
        """Settings of the index: it may hold what all engines hold together, but for those that stand by."""
        held = None if self.cache_tokens is None else self.cache_tokens * (len(self.all_engines) - len(self.standby))
        return PilotConfig(
            cache_tokens=held,
            max_contexts=self.max_contexts,
            max_blocks=self.max_blocks,
            annotate=self.annotate,
            gate=self.gate,
            max_displacement=self.max_displacement,
        )

    @property
    def engine_root(self) -> str:
        """The engine's URL without a trailing slash and without ``/v1``: what a raw path is put behind."""
        return engine_root(self.engine)


_POSITIVE = (
    "connect_timeout",
    "idle_timeout",
    "total_timeout",
    "ready_timeout",
    "receive_timeout",
    "drain_timeout",
    "max_header_bytes",
    "max_in_flight",
    "max_body_bytes",
    "max_request_blocks",
    "max_connections",
    "max_conversations",
    "max_turns",
    "max_ledger_bytes",
    "max_plans",
    "max_plan_bytes",
    "max_contexts",
    "max_blocks",
    "max_held",
)


def _check_secret(name: str, secret: Secret | None) -> None:
    if secret is not None and len(secret.value) < MIN_SECRET_CHARS:
        raise ConfigError(name, "is too short to be safe", f"use {MIN_SECRET_CHARS} characters or more at random")


def engine_root(engine: str) -> str:
    """An engine's URL without a trailing slash and without ``/v1``."""
    return engine.rstrip("/").removesuffix("/v1").rstrip("/")


def check_engine_url(engine: str, name: str = "engine") -> None:
    """Raises ConfigError, of that setting, for what is no base URL of an engine."""
    remedy = "give the engine's base URL, such as http://127.0.0.1:8000 or http://127.0.0.1:8000/v1"
    try:
        url = urlsplit(engine)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise ConfigError(name, f"is {engine!r} ({error})", remedy) from None
    if url.scheme not in ("http", "https") or not host:
        raise ConfigError(name, f"is {engine!r}", remedy)
    if url.query or url.fragment:
        raise ConfigError(name, f"is {engine!r} and has a query or a fragment", remedy)
    if url.username is not None or url.password is not None:
        raise ConfigError(name, "holds a user name or a password", "let the client send its own Authorization header")
