"""The picture of a hosted provider's cache: what its documents and its usage numbers say of each account and model.

Nobody tells of a provider's pages, so nothing here is told to the index: it is asked, compared and shown.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from prefixpilot.apis.base import Prompt
from prefixpilot.blocks import estimate_tokens
from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import SourceStatus
from prefixpilot.providers.hosted_cache import HostedBlock, HostedCache
from prefixpilot.providers.hosted_prompt import hosted_blocks
from prefixpilot.providers.limits import CacheLimits, Limits
from prefixpilot.proxy.cache.finding import Finding, Sizes
from prefixpilot.proxy.cache.hosted_causes import PIECE_TOKENS, hosted_evidence
from prefixpilot.proxy.cache.routes import verdict_of
from prefixpilot.proxy.cache.watch import Hosting, Marks, PageTokens, Prediction, Watch
from prefixpilot.residency.attribution import attribute
from prefixpilot.residency.state import CacheState

MAX_CACHES: Final = 32
"""Accounts and models that are followed; the least recently used goes first."""
MAX_ENTRIES: Final = 20_000
"""Of each of them."""
MAX_KEYS: Final = 1000
MINUTE_S: Final = 60.0


class _Selection(NamedTuple):
    """What selects a cache."""

    account: bytes
    model: str


class HostedView:
    """See the module. The tracker's thread asks and settles; the event loop reads figures, behind the same lock.

    Args:
        provider: of the table.
        limits: the table.
        count: tokens of a text, estimated.
    """

    state: CacheState = CacheState.UNKNOWN
    """A provider publishes no events: what is known is a model, corrected by its counts."""
    marks: Marks = MappingProxyType({})

    def __init__(self, provider: str, limits: Limits, count: Callable[[str], int] = estimate_tokens) -> None:
        self.provider = provider
        self._limits = limits
        self._count = count
        self._lock = Lock()
        self._caches: OrderedDict[_Selection, HostedCache] = OrderedDict()
        self._asked: OrderedDict[bytes, deque[float]] = OrderedDict()

    # -- requests

    def read(self, watch: Watch, prompt: Prompt | None) -> None:
        """A request has gone out: predict what it reads, and note that it was sent. O(bytes)."""
        row = None if prompt is None else self._limits.of(self.provider, watch.facts.model)
        if prompt is None or row is None:
            return
        blocks, now = hosted_blocks(prompt, row, self._count), watch.sent_at
        with self._lock:
            own = _Selection(watch.account, watch.facts.model)
            cache = self._cache(own, row)
            past = cache.past(blocks, now)
            prediction = cache.send(blocks, now)
            promised = prediction.state == "cold" and any(plan.predicted_cached_tokens for plan in watch.plans)
            others = self._others(own) if promised else ()
            elsewhere = max((other.predict(blocks, now).tokens for other in others), default=0)
            busy = self._is_busy(_key(prompt, blocks, own), row, now)
        watch.hosted = Hosting(cache, row, blocks, past, elsewhere, busy)
        page = row.increment_tokens or PIECE_TOKENS
        watch.prediction = Prediction(prediction.tokens, "hosted", page, prediction.state)

    def settle(self, watch: Watch) -> Finding:
        """The provider has answered: compare, and correct the picture. O(blocks)."""
        prediction, reported, hosted = watch.prediction, watch.cached_tokens, watch.hosted
        if prediction is None or hosted is None:
            return Finding(self.state.name, None, reported, None, None, None, 0)
        with self._lock:
            cached = prediction.tokens if reported is None else reported
            hosted.cache.observe(hosted.blocks, cached, watch.written_tokens, watch.prompt_tokens)
        if reported is None:
            return Finding(self.state.name, prediction.tokens, None, prediction.basis, None, None, 0)
        known = hosted_evidence(watch, prediction, hosted, reported)
        return Finding(
            self.state.name,
            prediction.tokens,
            reported,
            prediction.basis,
            verdict_of(prediction.tokens, reported, prediction.page_size),
            attribute(known),
            max(known.predicted - reported, 0),
        )

    def failed(self, watch: Watch) -> None:
        """There was no answer. O(blocks)."""
        if watch.hosted is not None:
            with self._lock:
                watch.hosted.cache.failed(watch.hosted.blocks, watch.sent_at)

    # -- inside

    def _cache(self, selection: _Selection, row: CacheLimits) -> HostedCache:
        cache = self._caches.get(selection)
        if cache is None:
            cache = self._caches[selection] = HostedCache(row, capacity=MAX_ENTRIES)
            if len(self._caches) > MAX_CACHES:
                self._caches.popitem(last=False)
        else:
            self._caches.move_to_end(selection)
        return cache

    def _others(self, own: _Selection) -> Iterable[HostedCache]:
        """Caches of other models of the account, and of the model in other accounts."""
        return (cache for other, cache in self._caches.items() if _related(other, own))

    def _is_busy(self, key: bytes, row: CacheLimits, now: float) -> bool:
        """Whether more requests of one key came within a minute than the provider keeps together. Notes this one."""
        if row.key_rate is None:
            return False
        times = self._asked.setdefault(key, deque(maxlen=row.key_rate + 1))
        times.append(now)
        self._asked.move_to_end(key)
        if len(self._asked) > MAX_KEYS:
            self._asked.popitem(last=False)
        return len(times) == times.maxlen and now - times[0] < MINUTE_S

    # -- what is shown, and what others ask of a picture

    def why(self) -> str:
        """See there."""
        return "a hosted provider tells nothing of its cache but in its answers"

    def sizes(self) -> Sizes:
        """No page of a provider is known."""
        return Sizes(None, None, 0, 0)

    def described(self) -> Mapping[str, Any]:
        """For ``/stats``: whose cache it is, and what is kept of it."""
        with self._lock:
            entries = sum(map(len, self._caches.values()))
            return {"provider": self.provider, "selections": len(self._caches), "entries": entries}

    def apply(self, batch: EventBatch) -> int:
        """Nothing: providers publish no events."""
        return 0

    def note(self, status: SourceStatus) -> None:
        """As :meth:`apply`."""

    def unheard(self, watch: Watch, now: float) -> None:
        """As :meth:`apply`."""

    @property
    def silence(self) -> int:
        """Nobody is expected to tell."""
        return 0

    def unfollow(self) -> None:
        """As :meth:`apply`."""

    def came(self) -> frozenset[PageTokens]:
        """Nothing, likewise."""
        return frozenset()

    def awaits(self, watch: Watch) -> None:
        """Nothing is told of a request but its counts."""

    def look(self, watch: Watch, *, last_time: bool = False) -> bool:
        """Nobody waits."""
        return True

    def evict(self, request_ids: Iterable[str]) -> None:
        """Nothing: a provider's entries are not those of requests."""

    def forget_contexts(self) -> None:
        """Nothing: what the provider holds stays known."""


def _related(one: _Selection, other: _Selection) -> bool:
    return (one.account == other.account) != (one.model == other.model)


def _key(prompt: Prompt, blocks: tuple[HostedBlock, ...], own: _Selection) -> bytes:
    """What the provider routes by: its cache key, and the head of the prompt."""
    named = prompt.body.get("prompt_cache_key")
    head = b"".join(block.key for block in blocks[:3])
    return own.account + own.model.encode() + (named.encode() if isinstance(named, str) else b"") + head
