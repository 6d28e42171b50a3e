"""What ``GET /metrics`` shows. One registry per app; nothing here is read back."""

from __future__ import annotations

from typing import Final, Literal

from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.content import Usage

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", 'pip install "prefixpilot[proxy]"') from None

Outcome = Literal["planned", "passthrough", "client_error", "engine_error", "fallback"]
_OUTCOMES: Final[tuple[Outcome, ...]] = ("planned", "passthrough", "client_error", "engine_error", "fallback")
_TTFT_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The counters of one proxy."""

    def __init__(self) -> None:
        r = self._registry = CollectorRegistry()
        self.requests = Counter("prefixpilot_requests", "Requests, by outcome", ["outcome"], registry=r)
        self.fail_opens = Counter("prefixpilot_fail_opens", "Errors of ours, by step", ["step"], registry=r)
        self.ttft = Histogram(
            "prefixpilot_ttft_seconds",
            "From the whole request to the engine's first content, planned streaming requests",
            ["mode"],
            buckets=_TTFT_SECONDS,
            registry=r,
        )
        self.prompt_tokens = Counter(
            "prefixpilot_prompt_tokens", "Reported by the engine, planned requests", ["mode"], registry=r
        )
        self.cached_tokens = Counter(
            "prefixpilot_cached_tokens", "Reported by the engine, planned requests", ["mode"], registry=r
        )
        self.cached_unknown = Counter(
            "prefixpilot_cached_tokens_unknown",
            "Planned answers in which the engine did not say how many tokens were cached",
            ["mode"],
            registry=r,
        )
        self.predicted = Counter(
            "prefixpilot_predicted_cached_tokens", "Predicted by the index, never measured", registry=r
        )
        self.replaced = Counter(
            "prefixpilot_replaced_tokens", "Of blocks that an annotation stood for, as the plan counts", registry=r
        )
        self.held = Counter("prefixpilot_held_requests", "Planned as one batch by the admission window", registry=r)
        self.ambiguous = Counter(
            "prefixpilot_ambiguous_restorations", "Histories that fit several recorded branches", registry=r
        )
        self.unmatched = Counter(
            "prefixpilot_unmatched_histories",
            "Requests of a known conversation with an earlier user message that is in no recorded turn",
            registry=r,
        )
        self.unrecorded = Counter(
            "prefixpilot_unrecorded_turns", "Turns that the ledger had no room for, or no parent", registry=r
        )
        self.live_requests = Gauge("prefixpilot_index_live_requests", "Requests in the index", registry=r)
        self.conversations = Gauge("prefixpilot_conversations", "Conversations in the ledger", registry=r)
        for outcome in _OUTCOMES:
            self.requests.labels(outcome)

    def count_usage(self, usage: Usage | None, mode: str) -> None:
        """Count what the engine reported of one planned answer."""
        if usage is not None and usage.prompt_tokens is not None:
            self.prompt_tokens.labels(mode).inc(usage.prompt_tokens)
        if usage is not None and usage.cached_tokens is not None:
            self.cached_tokens.labels(mode).inc(usage.cached_tokens)
        else:
            self.cached_unknown.labels(mode).inc()

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)
