"""Settings of the proxy. Frozen; they validate themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from prefixpilot.config import PilotConfig
from prefixpilot.core import DEFAULT_TENANT
from prefixpilot.errors import ConfigError
from prefixpilot.proxy.ordinary.settings import OrdinarySettings

Mode = Literal["on", "off"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

MIB: Final = 1 << 20
MAX_WINDOW_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Where the engine is, where to listen, and every bound.

    Attributes:
        engine: base URL of the engine, with or without ``/v1``.
        host, port: where to listen; port 0 takes a free one.
        mode: of requests that do not say (``X-PrefixPilot-Mode``).
        tenant: what the index and the conversations are kept under.
        cache_tokens: KV capacity of the engine in tokens, if known; bounds the index.
        connect_timeout: seconds to reach the engine.
        idle_timeout: seconds in which the engine may send nothing (a long prefill included).
        total_timeout: seconds for one request, all in all.
        ready_timeout: seconds ``/readyz`` waits for the engine.
        drain_timeout: seconds that requests in flight get at SIGTERM.
        max_body_bytes: of a request that we have to read; a longer one gets 413. What has neither blocks nor a
            conversation has no bound: it is streamed.
        max_request_blocks: of one request; more get 400.
        max_connections: open connections to the engine; further requests wait.
        max_conversations, max_turns, max_ledger_bytes: bounds of the ledger; turns are per conversation.
        max_plans, max_plan_bytes: recent plans kept for ``GET /plans/{request_id}``.
        max_contexts, max_blocks: bounds of the index, if the proxy makes its own: requests, and lengths of blocks.
        admission_window_ms: under concurrency, hold requests with blocks for so many milliseconds at most and plan them
            as one batch; 0 holds none.
        max_held: requests held at most; the window closes when so many are.
        ordinary: what is done to requests without blocks.

    Raises:
        ConfigError: a setting cannot be used.
    """

    engine: str
    host: str = "127.0.0.1"
    port: int = 8765
    mode: Mode = "on"
    tenant: str = DEFAULT_TENANT
    cache_tokens: int | None = None
    connect_timeout: float = 10.0
    idle_timeout: float = 600.0
    total_timeout: float = 3600.0
    ready_timeout: float = 2.0
    drain_timeout: float = 10.0
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
    ordinary: OrdinarySettings = field(default_factory=OrdinarySettings)

    def __post_init__(self) -> None:
        _check_engine(self.engine)
        if self.mode not in MODES:
            raise ConfigError("mode", f"is {self.mode!r}", f"use one of: {', '.join(MODES)}")
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

    @property
    def pilot(self) -> PilotConfig:
        """Settings of the index."""
        return PilotConfig(cache_tokens=self.cache_tokens, max_contexts=self.max_contexts, max_blocks=self.max_blocks)

    @property
    def engine_root(self) -> str:
        """The engine's URL without a trailing slash and without ``/v1``: what a raw path is put behind."""
        return self.engine.rstrip("/").removesuffix("/v1").rstrip("/")


_POSITIVE = (
    "connect_timeout",
    "idle_timeout",
    "total_timeout",
    "ready_timeout",
    "drain_timeout",
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


def _check_engine(engine: str) -> None:
    remedy = "give the engine's base URL, such as http://127.0.0.1:8000 or http://127.0.0.1:8000/v1"
    try:
        url = urlsplit(engine)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise ConfigError("engine", f"is {engine!r} ({error})", remedy) from None
    if url.scheme not in ("http", "https") or not host:
        raise ConfigError("engine", f"is {engine!r}", remedy)
    if url.query or url.fragment:
        raise ConfigError("engine", f"is {engine!r} and has a query or a fragment", remedy)
    if url.username is not None or url.password is not None:
        raise ConfigError(
            "engine", "holds a user name or a password", "let the client send its own Authorization header"
        )
