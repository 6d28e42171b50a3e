"""Puts a tracker together from the settings: view, token source, and what finds where events come from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import monotonic

from prefixpilot.providers.limits import builtin_limits
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.cache.hosted_view import HostedView
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.publishers import Publishers
from prefixpilot.proxy.cache.settings import OFF, CacheSettings
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
