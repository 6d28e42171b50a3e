"""What ``/metrics`` shows of the engine's cache. Labels are fixed, and no client can add one."""

from __future__ import annotations

from typing import Final, get_args

from prefixpilot.engines.base import Continuity
from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.cache.routes import Verdict
from prefixpilot.proxy.cache.sums import CacheSums
from prefixpilot.proxy.cache.tokens import Got
from prefixpilot.residency.attribution import Cause
from prefixpilot.residency.state import CacheState

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge
except ImportError:
    raise MissingExtraError("prometheus-client", 'pip install "prefixpilot[proxy]"') from None

BASES: Final = ("events", "model", "hosted")


class CacheFigures:
    """Counters and gauges of one proxy's picture of its engine's cache, in the proxy's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        self._state = Gauge(
            "prefixpilot_engine_cache_state", "1 for how the engine's cache is known now", ["state"], registry=r
        )
        self.compared = Counter(
            "prefixpilot_engine_predictions",
            "Cached tokens predicted against those the engine reported, by what the prediction was made from",
            ["basis", "verdict"],
            registry=r,
        )
        self.behind = Counter(
            "prefixpilot_engine_predictions_behind",
            "Requests for which what was known when they went out gave another number: events came later",
            registry=r,
        )
        self.predicted = Counter(
            "prefixpilot_engine_predicted_tokens", "Of the requests compared, predicted", ["basis"], registry=r
        )
        self.reported = Counter(
            "prefixpilot_engine_reported_tokens", "Of the requests compared, reported", ["basis"], registry=r
        )
        self.causes = Counter(
            "prefixpilot_engine_misses",
            "Requests by why the engine reused less than planned, or other than predicted; none: it did not",
            ["cause"],
            registry=r,
        )
        self.missed = Counter("prefixpilot_engine_missed_tokens", "Tokens of those, by cause", ["cause"], registry=r)
        self.token_ids = Counter(
            "prefixpilot_engine_token_ids",
            "Prompts whose token ids were wanted, by what came of it",
            ["got"],
            registry=r,
        )
        self.unfollowed = Counter(
            "prefixpilot_engine_unfollowed", "Requests that were not followed for want of room", registry=r
        )
        self.shortened = Counter(
            "prefixpilot_engine_contexts_shortened", "Contexts of the index cut down as pages were removed", registry=r
        )
        self.events = Counter("prefixpilot_engine_events", "Cache events applied", registry=r)
        self._batches = Gauge("prefixpilot_engine_event_batches", "Handed on so far", registry=r)
        self._lost = Gauge("prefixpilot_engine_event_batches_lost", "Known to be lost, or unreadable", registry=r)
        self._gaps = Gauge("prefixpilot_engine_event_gaps", "How often batches were missing", registry=r)
        self._sources = Gauge(
            "prefixpilot_engine_event_sources", "Sources of events by continuity", ["continuity"], registry=r
        )
        self._pages = Gauge("prefixpilot_engine_pages", "Pages that the engine is known to hold", registry=r)
        self._contexts = Gauge("prefixpilot_engine_contexts", "Contexts whose pages are known", registry=r)
        self._name_all()

    def _name_all(self) -> None:
        """Every label is there from the beginning, at 0."""
        for state in CacheState:
            self._state.labels(state.name).set(state is CacheState.UNKNOWN)
        for basis in BASES:
            self.predicted.labels(basis)
            self.reported.labels(basis)
            for verdict in get_args(Verdict):
                self.compared.labels(basis, verdict)
        for cause in Cause:
            self.causes.labels(cause.value)
            self.missed.labels(cause.value)
        for got in get_args(Got):
            self.token_ids.labels(got)
        for continuity in Continuity:
            self._sources.labels(continuity.value)

    def show(self, state: CacheState, sums: CacheSums) -> None:
        """Set the gauges.

        Args:
            state: how well the cache is known; of several, the one of which least is.
        """
        for each in CacheState:
            self._state.labels(each.name).set(each is state)
        self._batches.set(sum(status.batches for status in sums.statuses))
        self._lost.set(sum(status.lost for status in sums.statuses))
        self._gaps.set(sum(status.gaps for status in sums.statuses))
        for continuity in Continuity:
            self._sources.labels(continuity.value).set(sum(s.continuity is continuity for s in sums.statuses))
        self._pages.set(sums.pages)
        self._contexts.set(sums.contexts)
