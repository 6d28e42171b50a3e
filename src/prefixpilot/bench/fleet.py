"""A workload over several replicas: routing, caches and queues modelled, in simulated time. No engine.

Each replica computes prompts one after the other at a given speed, from the first token that its cache does not hold;
answers are decoded beside that and hold up nobody, as with continuous batching. A prompt is in the cache from the
moment it is sent: those before it in the queue are computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from prefixpilot.bench.arrivals import poisson
from prefixpilot.bench.replaying import SentPrompt
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import PrefixCache
from prefixpilot.routing import Load, RoutedRequest, Router


@dataclass(frozen=True, slots=True)
class Service:
    """How fast a replica is, and how requests arrive.

    Attributes:
        prefill_rate: prompt tokens a second.
        decode_rate: tokens of an answer a second, of each request.
        answer_tokens: of an answer.
        rate: requests a second, at random times (Poisson, seeded); ``None``: all are there at the beginning.
    """

    prefill_rate: float = 10_000.0
    decode_rate: float = 50.0
    answer_tokens: int = 100
    rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("prefill_rate", "decode_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use a number above 0")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError("rate", f"is {self.rate!r}", "use a number above 0, or leave it out")
        if self.answer_tokens < 0:
            raise ConfigError("answer_tokens", f"is {self.answer_tokens!r}", "use an int of 0 or more")


class Replica(NamedTuple):
    """What one replica did, in tokens and requests."""

    requests: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def prefilled_tokens(self) -> int:
        """What it computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What a fleet did.

    Attributes:
        replicas: what each did.
        ttft_p50_s, ttft_p95_s: from arrival to the end of a request's prefill, nearest rank.
        makespan_s: until the last prompt was computed.
        predicted_tokens: cached tokens that the policy believed in; 0 of policies without a picture.
    """

    replicas: tuple[Replica, ...]
    ttft_p50_s: float
    ttft_p95_s: float
    makespan_s: float
    predicted_tokens: int

    @property
    def requests(self) -> int:
        """In all."""
        return sum(replica.requests for replica in self.replicas)

    @property
    def hit_rate(self) -> float:
        """Cached tokens as a share of the prompts', over all replicas."""
        total = sum(replica.prompt_tokens for replica in self.replicas)
        return sum(replica.cached_tokens for replica in self.replicas) / total if total else 0.0

    @property
    def prefilled_tokens(self) -> int:
        """What all computed."""
        return sum(replica.prefilled_tokens for replica in self.replicas)

    @property
    def imbalance(self) -> float:
        """Largest over mean of what replicas computed; 1 is even."""
        mean = self.prefilled_tokens / len(self.replicas)
        return max(replica.prefilled_tokens for replica in self.replicas) / mean if mean else 1.0

    @property
    def requests_per_s(self) -> float:
        """Over the whole run."""
        return self.requests / self.makespan_s if self.makespan_s else math.inf


def simulate_fleet(
    prompts: Iterable[SentPrompt],
    router: Router,
    caches: Sequence[PrefixCache],
    service: Service | None = None,
    on_request: Callable[[], object] = lambda: None,
    arrivals: Iterable[float] | None = None,
) -> FleetReport:
    """Send prompts to the replicas that the router names. O(prompts x replicas), and what the caches cost.

    Args:
        prompts: in the order in which they arrive.
        caches: one a replica, as they are.
        arrivals: seconds at which they do, rising, as many at least; ``None``: as the service's rate says.

    Raises:
        ConfigError: no cache.
    """
    if not caches:
        raise ConfigError("replicas", "is 0", "use an int of 1 or more")
    service = service or Service()
    fleet = [_Replica(cache, service) for cache in caches]
    predicted, ttfts = 0, []
    for sent, now in zip(prompts, poisson(service.rate) if arrivals is None else arrivals, strict=False):
        request = RoutedRequest(sent.prompt, sent.conversation)
        route = router.route(request, [replica.load(now) for replica in fleet])
        router.sent(request, route.replica)
        predicted += route.cached_tokens
        ttfts.append(fleet[route.replica].take(sent, now))
        on_request()
    ordered = sorted(ttfts) or [0.0]
    return FleetReport(
        tuple(replica.done() for replica in fleet),
        _rank(ordered, 50),
        _rank(ordered, 95),
        max(replica.free_at for replica in fleet),
        predicted,
    )


class _Replica:
    """One engine in simulated time."""

    def __init__(self, cache: PrefixCache, service: Service) -> None:
        self._cache, self._service = cache, service
        self.free_at = 0.0
        self._ends: list[float] = []
        self._requests = self._total = self._cached = 0

    def load(self, now: float) -> Load:
        while self._ends and self._ends[0] <= now:
            heappop(self._ends)
        return Load(len(self._ends), round(max(0.0, self.free_at - now) * self._service.prefill_rate))

    def take(self, sent: SentPrompt, now: float) -> float:
        """Seconds until the prompt is computed."""
        access = self._cache.access(sent.prompt)
        self._requests += 1
        self._total += access.total_tokens
        self._cached += access.cached_tokens
        self.free_at = max(self.free_at, now) + access.prefilled_tokens / self._service.prefill_rate
        heappush(self._ends, self.free_at + self._service.answer_tokens / self._service.decode_rate)
        return self.free_at - now

    def done(self) -> Replica:
        return Replica(self._requests, self._total, self._cached)


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
