"""Puts a tracker together from the settings: view, token source, and where events come from."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from prefixpilot.engines.base import EventListener, EventSource, SourceStatus
from prefixpilot.engines.endpoints import WILDCARDS, EventEndpoint, check_endpoint, discover
from prefixpilot.errors import EngineError
from prefixpilot.providers.limits import builtin_limits
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.cache.hosted_view import HostedView
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.settings import AUTO, OFF, CacheSettings
from prefixpilot.proxy.cache.sizes import CacheSize, SizeAsker
from prefixpilot.proxy.cache.standing import THE_ENGINES
from prefixpilot.proxy.cache.tokens import EngineTokens, TokenQueue, TokenSource
from prefixpilot.proxy.cache.tracker import CacheTracker
from prefixpilot.proxy.cache.view import DEFAULT_PAGE, CacheView, Index
from prefixpilot.proxy.hosted import provider_of
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Attempt
from prefixpilot.proxy.wire.upstream import Upstream

NAME_IT: Final = "name its endpoint: --cache-events tcp://*:5557"
NOT_YET: Final = "--cache-events auto: the engine does not list its publishers yet"
NOT_LISTED: Final = (
    "--cache-events auto: the engine lists no publisher of events at GET /kv_event_sources; "
    f"give it --kv-events-config with publisher zmq, or {NAME_IT} "
    "(llama.cpp publishes none: leave --cache-events off)"
)
ASK_AGAIN_S: Final = (1.0, 5.0, 30.0)
"""Seconds between looks for the engine's list of publishers; the last one is repeated."""


def followed(
    settings: ProxySettings,
    planner: Index,
    upstream: Upstream,
    metrics: Metrics,
    attempt: Attempt,
    clock: Callable[[], float] = monotonic,
    figures: CacheFigures | None = None,
    whose: str = THE_ENGINES,
) -> CacheTracker | None:
    """What follows the engine's cache; ``None`` if nothing is to, and then the metrics say UNKNOWN.

    A hosted provider is followed by what its documents say, unless events or token ids are asked for.

    Args:
        figures: where several engines are followed, those that they share; new ones if ``None``.
        whose: cache it is, in the log.

    Raises:
        ConfigError: an endpoint, or a tokenizer, that cannot be used.
        MissingExtraError: events, or a local tokenizer, without the extra that they need.
    """
    cache, figures = settings.cache, figures or CacheFigures(metrics.registry)
    if not cache.on:
        return _hosted(settings, figures, attempt, clock)
    tokens_known = cache.tokens_from != OFF
    model = _model(settings) if tokens_known else None
    view = CacheView(planner, model, Knowledge(), models=tokens_known, max_contexts=cache.max_requests)
    source = _token_source(cache, upstream)
    tokens = None if source is None else TokenQueue(source, cache.tokenize_concurrency)
    publishers = None if cache.events == OFF else Publishers(cache, settings.engine_root)
    sizes, sized = SizeAsker(upstream), partial(_sized, settings, view)
    most = cache.max_requests
    return CacheTracker(view, figures, tokens, publishers, most, attempt, sizes, sized, clock=clock, whose=whose)


def _hosted(
    settings: ProxySettings, figures: CacheFigures, attempt: Attempt, clock: Callable[[], float]
) -> CacheTracker | None:
    """What follows a hosted provider; ``None`` where none is known, or it is not to be followed."""
    limits = builtin_limits()
    provider = provider_of(settings.providers, settings.engine, limits)
    if provider is None or not settings.cache.hosted:
        return None
    view = HostedView(provider, limits)
    most = settings.cache.max_requests
    return CacheTracker(view, figures, None, None, most, attempt, clock=clock, names_requests=False)


def _model(settings: ProxySettings) -> OwnModel | None:
    """Until the engine tells. ``None`` where events will: a model of other pages helps nobody."""
    size = settings.cache.page_size or (DEFAULT_PAGE if settings.cache.events == OFF else None)
    return None if size is None else OwnModel(size, settings.cache_tokens)


def _sized(settings: ProxySettings, view: CacheView, told: CacheSize, anew: bool) -> None:
    """What the settings say goes before what the engine tells; the index has its own bound then."""
    capacity = settings.cache_tokens or told.capacity_tokens
    bound = None if settings.cache_tokens or capacity is None else capacity * told.caches
    view.sized(settings.cache.page_size or told.page_size, capacity, bound=bound, anew=anew)


def _token_source(cache: CacheSettings, upstream: Upstream) -> TokenSource | None:
    if cache.tokens_from == "local":
        local: TokenSource = import_module("prefixpilot.proxy.cache.local_tokens").LocalTokens(cache.tokenizer)
        return local
    return EngineTokens(upstream, cache.tokenize_timeout) if cache.tokens_from == "engine" else None


class Publishers:
    """Finds where the engine publishes, and makes a source of its events.

    Raises:
        ConfigError: an endpoint that cannot be used.
        MissingExtraError: ZeroMQ is not installed.
    """

    def __init__(self, cache: CacheSettings, engine_root: str) -> None:
        self._cache = cache
        self._engine = engine_root
        self._waiting = ""
        self._unresolved: dict[str, str] = {}
        self._subscriber: Any = import_module("prefixpilot.engines.kv_events").KvEventSubscriber
        self._replays = {each.endpoint: each.replay for each in self._named()}
        for endpoint in self._named():
            check_endpoint(endpoint, "cache.events")

    async def source(self, listener: EventListener) -> EventSource:
        """A source that is not started yet. With ``auto`` it waits, as long as it takes, for the engine's own list."""
        endpoints = self._named() or await self._listed()
        self._waiting = ""
        self._replays = {each.endpoint: each.replay for each in endpoints}
        made: EventSource = self._subscriber(endpoints, listener, field=f"cache.events ({self._option})")
        return made

    def waiting(self) -> str:
        """See :class:`~prefixpilot.proxy.cache.tracker.SourceMaker`."""
        return self._waiting

    async def look(self, statuses: Sequence[SourceStatus]) -> None:
        """See there. Names are looked up on another thread."""
        silent = [status.source for status in statuses if not status.connected]
        silent += [] if statuses else self._cache.endpoints
        host = urlsplit(self._engine).hostname
        self._unresolved = await asyncio.to_thread(_unresolved, silent, host) if silent else {}
        if not statuses and silent:
            self._waiting = "; ".join(self._unresolved.values())

    def remedy(self, status: SourceStatus) -> str:
        """See there."""
        unresolved = self._unresolved.get(status.source)
        if unresolved is not None:
            return f"{unresolved} (cache.events, {self._option})"
        if not status.connected:
            return self._unconnected(status)
        if status.unanswered:
            return 'compare cache.replay (--cache-replay) with "replay_endpoint" in the engine\'s --kv-events-config'
        if status.unreadable and status.unreadable >= status.lost:
            return f"see that nothing but the engine publishes at cache.events ({self._option})"
        if self._replays.get(status.source, "") is None:
            return self._no_replay()
        return ""

    @property
    def _option(self) -> str:
        return f"--cache-events {self._cache.events}"

    def _unconnected(self, status: SourceStatus) -> str:
        if status.batches:
            return f"see that the engine runs, and that its endpoint is still that of cache.events ({self._option})"
        if self._cache.events == AUTO:
            return f"the engine lists it ({self._option}); open its port to this machine, or name another endpoint"
        return f'compare cache.events ({self._option}) with "endpoint" in the engine\'s --kv-events-config'

    def _no_replay(self) -> str:
        given = 'give the engine "replay_endpoint" in its --kv-events-config'
        if self._cache.events == AUTO:
            return f"{given} ({self._option} finds it)"
        return f"{given}, and name it in cache.replay (--cache-replay tcp://*:5558)"

    def _named(self) -> tuple[EventEndpoint, ...]:
        cache, host = self._cache, urlsplit(self._engine).hostname or "127.0.0.1"
        replays = cache.replay_endpoints or (None,) * len(cache.endpoints)
        pairs = zip(cache.endpoints, replays, strict=True)
        return tuple(EventEndpoint(endpoint, replay, ranks=cache.ranks, host=host) for endpoint, replay in pairs)

    async def _listed(self) -> tuple[EventEndpoint, ...]:
        assert self._cache.events == AUTO
        waits = iter(ASK_AGAIN_S)
        wait = 0.0
        while True:
            wait = next(waits, wait)
            try:
                found = await asyncio.to_thread(discover, self._engine)
                self._waiting = NOT_LISTED
            except EngineError as error:
                found, self._waiting = (), f"{NOT_YET} ({error}); {NAME_IT}"
            if found:
                return found
            await asyncio.sleep(wait)


def _unresolved(sources: Iterable[str], engine_host: str | None) -> dict[str, str]:
    """Of these endpoints, those whose host has no address, and why. Blocks for as long as a look-up takes."""
    found = {}
    for source in sources:
        named = source.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        host = engine_host if named in WILDCARDS else named
        try:
            if host is not None and source.startswith("tcp://"):
                socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            found[source] = f"the host {host!r} cannot be resolved ({error})"
    return found
