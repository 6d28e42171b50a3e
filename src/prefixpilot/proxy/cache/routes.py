"""What predictions and reports came to, for each route: tenant, API and model. Bounded."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from prefixpilot.proxy.control.controller import Route

Verdict = Literal["exact", "within_page", "off"]
"""How a prediction stands to the engine's own count: equal, less than a page away, or neither."""

MAX_ROUTES: Final = 200


def verdict_of(predicted: int, reported: int, page_size: int) -> Verdict:
    """How far a prediction was off.

    >>> verdict_of(64, 64, 16), verdict_of(64, 80, 16), verdict_of(64, 0, 16)
    ('exact', 'within_page', 'off')
    """
    away = abs(predicted - reported)
    return "exact" if not away else "within_page" if away <= page_size else "off"


@dataclass(slots=True)
class RouteFigures:
    """Sums over the requests of one route. Tokens.

    Attributes:
        requests: whose answers were read.
        prompt_tokens, cached_tokens: as the engine reported them, of the answers that said both.
        compared: requests whose cached tokens were predicted and reported.
        predicted_tokens, reported_tokens: of those.
        verdicts: of those.
        behind: of those, for which what was known when they went out gave another number than what was told later.
        causes: why a prediction and a report differ, or why less was reused than the plan was made for.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    compared: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    behind: int = 0

    def __add__(self, other: RouteFigures) -> RouteFigures:
        """A new one, with the requests of both."""
        return RouteFigures(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def add_usage(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """One more answer."""
        self.requests += 1
        if prompt_tokens is not None and cached_tokens is not None:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens

    def add_comparison(self, predicted: int, reported: int, verdict: Verdict, *, behind: bool = False) -> None:
        """One more prediction that could be checked."""
        self.behind += behind
        self.compared += 1
        self.predicted_tokens += predicted
        self.reported_tokens += reported
        self.verdicts[verdict] += 1

    def comparison(self) -> dict[str, Any]:
        """The checked predictions, as JSON."""
        return {
            "compared": self.compared,
            "predicted_tokens": self.predicted_tokens if self.compared else None,
            "reported_tokens": self.reported_tokens if self.compared else None,
            "behind": self.behind if self.compared else None,
            "verdicts": dict(sorted(self.verdicts.items())),
        }

    def shown(self) -> dict[str, Any]:
        """As JSON; ``None`` is unknown, never zero."""
        known = self.prompt_tokens > 0
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens if known else None,
            "cached_tokens": self.cached_tokens if known else None,
            "hit_rate": round(self.cached_tokens / self.prompt_tokens, 4) if known else None,
            **self.comparison(),
            "causes": dict(sorted(self.causes.items())),
        }


class Routes:
    """Figures by route; the least recently used of more than ``max_routes`` goes. Not thread-safe."""

    def __init__(self, max_routes: int = MAX_ROUTES) -> None:
        self._max = max_routes
        self._routes: OrderedDict[Route, RouteFigures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._routes)

    def of(self, route: Route) -> RouteFigures:
        """The figures of a route, to add to."""
        figures = self._routes.get(route)
        if figures is None:
            figures = self._routes[route] = RouteFigures()
            if len(self._routes) > self._max:
                self._routes.popitem(last=False)
        self._routes.move_to_end(route)
        return figures

    def copied(self) -> dict[Route, RouteFigures]:
        """As they are now, the most recently used first."""
        return {route: RouteFigures() + figures for route, figures in reversed(self._routes.items())}
