"""What is known of caches in numbers that add up: of one engine, or of all engines behind one proxy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.cache.routes import RouteFigures
from prefixpilot.proxy.control.controller import Route

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class CacheSums:
    """Of the caches of so many engines as were added.

    Attributes:
        waiting: comparisons that wait for the events of their own request.
        pages: that the engines are known to hold.
        contexts: whose pages are known.
        shortened: contexts of the index cut down as pages were removed.
        by_basis: checked predictions, by what they were made from.
        causes: requests by why less was reused, or other than predicted.
        statuses: of the sources of events.
        routes: figures by route, the most recently used of an engine first.
    """

    waiting: int = 0
    pages: int = 0
    contexts: int = 0
    shortened: int = 0
    by_basis: Mapping[str, RouteFigures] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    statuses: tuple[SourceStatus, ...] = ()
    routes: Mapping[Route, RouteFigures] = field(default_factory=dict)

    def __add__(self, other: CacheSums) -> CacheSums:
        """O(size of both)."""
        return CacheSums(
            self.waiting + other.waiting,
            self.pages + other.pages,
            self.contexts + other.contexts,
            self.shortened + other.shortened,
            _added(self.by_basis, other.by_basis),
            self.causes + other.causes,
            self.statuses + other.statuses,
            _added(self.routes, other.routes),
        )

    def shown(self) -> dict[str, Any]:
        """As JSON, for ``/stats``."""
        return {
            "pages": self.pages,
            "contexts": self.contexts,
            "waiting": self.waiting,
            "predictions": {basis: figures.comparison() for basis, figures in sorted(self.by_basis.items())},
            "causes": dict(sorted(self.causes.items())),
            "contexts_shortened": self.shortened,
            "sources": [{**status._asdict(), "continuity": status.continuity.value} for status in self.statuses],
            "routes": [{**route._asdict(), **figures.shown()} for route, figures in self.routes.items()],
        }


def together(sums: Iterable[CacheSums]) -> CacheSums:
    """All of them; of none, zeros."""
    return sum(sums, CacheSums())


def _added(one: Mapping[K, RouteFigures], other: Mapping[K, RouteFigures]) -> dict[K, RouteFigures]:
    return {key: one.get(key, RouteFigures()) + other.get(key, RouteFigures()) for key in {**one, **other}}
