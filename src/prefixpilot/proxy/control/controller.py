"""Which requests are treated: all but a small hold-out, and none on a route where treatment has not paid (invariant 5).

A route is what the operator would switch: tenant, API and model. On each, a share of the conversations is held out;
what the engine reports of these and of the treated ones decides. A conversation stays in its arm: its prefix must not
change in the middle. On a route in bypass the same share of conversations is treated, so that it can come back.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from prefixpilot.errors import ConfigError

Arm = Literal["treated", "held_out"]

MAX_SHARE: Final = 0.05
_HASHED: Final = float(1 << 64)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The controller.

    Attributes:
        hold_out: share of the conversations that stay as they came, 0 (off) to 0.05; on a route in bypass, the share
            that is treated.
        min_requests: requests that each arm must have before a route is judged.
        memory: requests after which one counts for 1/e of a new one.
        max_routes: routes kept; the least recently used goes first.
        ask_usage: ask the engine for the usage of streams of planned requests (``stream_options.include_usage``) where
            the client does not, and take it out of the stream again; not of compressed streams.
        cached_price: of a cached prompt token, in prompt tokens: 0 for an engine of one's own, else what the provider
            charges (0.1 to 0.5).
        written_price: of a prompt token that is written to the cache, where the provider charges for that.

    Raises:
        ConfigError: a setting cannot be used.
    """

    hold_out: float = 0.0
    min_requests: int = 30
    memory: int = 2000
    max_routes: int = 1000
    ask_usage: bool = False
    cached_price: float = 0.0
    written_price: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.hold_out <= MAX_SHARE:
            raise ConfigError("hold_out", f"is {self.hold_out!r}", f"use 0 (off) to {MAX_SHARE}")
        for name in ("min_requests", "memory", "max_routes"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use an int of 1 or more")
        for name in ("cached_price", "written_price"):
            if not 0 <= getattr(self, name) <= 10:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use prompt tokens per token, 0 to 10")


class Route(NamedTuple):
    """What is switched as one."""

    tenant: str
    api: str
    model: str


class Trial(NamedTuple):
    """One request's part in the comparison."""

    route: Route
    arm: Arm
    given_tokens: int


class Outcome(NamedTuple):
    """What one answered request cost.

    Attributes:
        given_tokens: of the prompt as the client sent it (for a treated one: an estimate, made in the same way in both
            arms), so that what treatment leaves out or adds counts.
        prompt_tokens, cached_tokens, written_tokens: as the engine reports them; ``None`` is unknown.
        ttft: seconds to the first content; ``None`` if the answer was not streamed.
    """

    given_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    written_tokens: int | None = None
    ttft: float | None = None


@dataclass(slots=True)
class Running:
    """A decaying mean, and how sure it is. O(1) a value.

    Attributes:
        weight: of all values, the newest having 1.
    """

    weight: float = 0.0
    mean: float = 0.0
    _squares: float = 0.0
    _weights_squared: float = 0.0

    def add(self, value: float, keep: float) -> None:
        """A new value; all earlier ones count for ``keep`` of what they did."""
        self.weight = self.weight * keep + 1
        self._weights_squared = self._weights_squared * keep * keep + 1
        distance = value - self.mean
        self.mean += distance / self.weight
        self._squares = self._squares * keep + distance * (value - self.mean)

    @property
    def variance_of_mean(self) -> float:
        """Of the mean, as that of independent values; 0 for fewer than two."""
        if self.weight <= 1:
            return 0.0
        return self._squares / self.weight * self._weights_squared / self.weight**2


@dataclass(slots=True)
class _Side:
    requests: int = 0
    cost: Running = field(default_factory=Running)
    ttft: Running = field(default_factory=Running)


@dataclass(slots=True)
class _Judged:
    treated: _Side = field(default_factory=_Side)
    held_out: _Side = field(default_factory=_Side)
    bypassed: bool = False

    def side(self, arm: Arm) -> _Side:
        return self.treated if arm == "treated" else self.held_out


class Gain(NamedTuple):
    """What treatment gains on a route, and the standard error; ``None`` where too little is known."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class RouteState:
    """A route, for reports.

    Attributes:
        cost: billed-equivalent tokens saved, as a share of the tokens that clients sent.
        ttft: seconds saved to the first content.
    """

    route: Route
    bypassed: bool
    treated: int
    held_out: int
    cost: Gain | None
    ttft: Gain | None


class Controller:
    """Assigns arms and judges routes. Not thread-safe; ``assign`` and ``add`` O(1)."""

    def __init__(self, settings: ControlSettings | None = None) -> None:
        self._settings = settings or ControlSettings()
        self._keep = math.exp(-1 / self._settings.memory)
        self._routes: OrderedDict[Route, _Judged] = OrderedDict()

    def __len__(self) -> int:
        return len(self._routes)

    @property
    def active(self) -> bool:
        """Whether any request is held out; if not, all are treated and nothing is judged."""
        return self._settings.hold_out > 0

    def assign(self, route: Route, conversation: str) -> Arm:
        """The arm of a conversation (or of a request that stands alone, by its id). Equal for equal arguments until the
        route is switched."""
        if not self.active:
            return "treated"
        judged = self._routes.get(route)
        in_share = _position(conversation) < self._settings.hold_out
        return "treated" if in_share == (judged is not None and judged.bypassed) else "held_out"

    def add(self, route: Route, arm: Arm, outcome: Outcome) -> None:
        """A request was answered. Nothing is kept while no request is held out."""
        if not self.active:
            return
        judged = self._routes.setdefault(route, _Judged())
        self._routes.move_to_end(route)
        side = judged.side(arm)
        side.requests += 1
        cost = self.cost_of(outcome)
        if cost is not None:
            side.cost.add(cost, self._keep)
        if outcome.ttft is not None:
            side.ttft.add(outcome.ttft, self._keep)
        judged.bypassed = self._judge(judged)
        if len(self._routes) > self._settings.max_routes:
            self._routes.popitem(last=False)

    def cost_of(self, outcome: Outcome) -> float | None:
        """Billed-equivalent tokens over the tokens that the client sent; ``None`` if the engine does not say enough."""
        if outcome.prompt_tokens is None or outcome.cached_tokens is None or outcome.given_tokens < 1:
            return None
        cached = min(outcome.cached_tokens, outcome.prompt_tokens)
        written = min(outcome.written_tokens or 0, outcome.prompt_tokens - cached)
        plain = outcome.prompt_tokens - cached - written
        billed = plain + cached * self._settings.cached_price + written * self._settings.written_price
        return billed / outcome.given_tokens

    def _judge(self, judged: _Judged) -> bool:
        """In bypass if cost or TTFT say so: the cost if nothing is gained; the TTFT, which is noisy and looked at after
        every request, if it is worse by four standard errors. Back if the cost is better and the TTFT not, by one."""
        cost, ttft = self._gain(judged, "cost"), self._gain(judged, "ttft")
        if cost is None and ttft is None:
            return judged.bypassed
        patience = 1 if judged.bypassed else 4
        slower = ttft is not None and ttft.value < -patience * ttft.error
        least = cost.error if judged.bypassed and cost is not None else 0.0
        return slower or (cost is not None and cost.value <= least)

    def _gain(self, judged: _Judged, of: Literal["cost", "ttft"]) -> Gain | None:
        treated: Running = getattr(judged.treated, of)
        held_out: Running = getattr(judged.held_out, of)
        least = min(self._settings.min_requests, self._settings.memory / 2)
        if treated.weight < least or held_out.weight < least:
            return None
        error = math.sqrt(treated.variance_of_mean + held_out.variance_of_mean)
        return Gain(held_out.mean - treated.mean, error)

    def states(self) -> list[RouteState]:
        """All routes that are judged, the least recently used first. O(routes)."""
        return [
            RouteState(
                route,
                judged.bypassed,
                judged.treated.requests,
                judged.held_out.requests,
                self._gain(judged, "cost"),
                self._gain(judged, "ttft"),
            )
            for route, judged in self._routes.items()
        ]


def _position(conversation: str) -> float:
    """0 to 1, evenly spread, the same in every process."""
    hashed = hashlib.blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed, "big") / _HASHED
