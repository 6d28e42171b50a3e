"""What ``/metrics`` shows of several engines: by their numbers, so that labels are fixed."""

from __future__ import annotations

from dataclasses import dataclass

from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.content import Usage
from prefixpilot.routing import Load

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge
except ImportError:
    raise MissingExtraError("prometheus-client", 'pip install "prefixpilot[proxy]"') from None


@dataclass(slots=True)
class Served:
    """What one engine was asked, and what its answers say.

    Attributes:
        requests: sent there, each try counted.
        prompt_tokens: of answers that told how many were cached.
        cached_tokens: of these.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def hit_rate(self) -> float | None:
        """``None``: no answer told."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class FleetFigures:
    """Counters and gauges by engine, in the proxy's registry. ``prefixpilot_fleet_up`` is 0 for one that is out, for
    whatever reason."""

    def __init__(self, registry: CollectorRegistry, count: int) -> None:
        def counter(name: str, text: str) -> list[Counter]:
            metric = Counter(f"prefixpilot_fleet_{name}", text, ["engine"], registry=registry)
            return [metric.labels(str(number)) for number in range(count)]

        def gauge(name: str, text: str) -> list[Gauge]:
            metric = Gauge(f"prefixpilot_fleet_{name}", text, ["engine"], registry=registry)
            return [metric.labels(str(number)) for number in range(count)]

        self.served = [Served() for _ in range(count)]
        self._requests = counter("requests", "Requests sent to an engine, each try counted")
        self.retried = counter("retried", "Of these, begun again at another engine")
        self.failures = counter("failures", "Requests and looks that failed there")
        self.ejections = counter("ejections", "How often an engine was taken out")
        self.prompt_tokens = counter("prompt_tokens", "Reported by an engine")
        self.cached_tokens = counter("cached_tokens", "Reported by an engine")
        self._up = gauge("up", "1 for an engine that gets requests, else 0")
        self._drained = gauge("drained", "1 for an engine that was taken out by hand, else 0")
        self._in_flight = gauge("in_flight", "Requests under way at an engine")
        self._prefill = gauge("prefill_tokens", "That an engine has still to compute of prompts, estimated")

    def count_request(self, engine: int) -> None:
        """A request goes there."""
        self._requests[engine].inc()
        self.served[engine].requests += 1

    def count_usage(self, engine: int, usage: Usage | None) -> None:
        """What that engine reported of one answer."""
        if usage is not None:
            self.prompt_tokens[engine].inc(usage.prompt_tokens or 0)
            self.cached_tokens[engine].inc(usage.cached_tokens or 0)
            if usage.cached_tokens is not None:
                self.served[engine].prompt_tokens += usage.prompt_tokens or 0
                self.served[engine].cached_tokens += usage.cached_tokens

    def show(self, engine: int, load: Load, *, drained: bool) -> None:
        """Set the gauges of one engine."""
        self._up[engine].set(load.available)
        self._drained[engine].set(drained)
        self._in_flight[engine].set(load.in_flight)
        self._prefill[engine].set(load.prefill_tokens)
