"""What ``GET /metrics`` and ``GET /stats`` show. One registry per app; labels are fixed, and no client can add one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import Plan
from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.report import TreatmentReport
from prefixpilot.volatile.base import Change, Rule

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtraError("prometheus-client", 'pip install "prefixpilot[proxy]"') from None

Outcome = Literal["planned", "passthrough", "explained", "client_error", "engine_error", "fallback"]

_OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_TTFT_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_MOST_WAITING: Final = 64
_OWN_SECONDS: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is held.

    Attributes:
        live_requests: in the index.
        conversations, ledger_bytes: in the ledger; bytes are an upper estimate.
        in_flight: requests under way.
        plans: kept for ``/plans``.
        forms, forms_bytes: of messages of ordinary requests, as they were sent; bytes are an upper estimate.
    """

    live_requests: int
    conversations: int
    ledger_bytes: int
    in_flight: int
    plans: int
    forms: int = 0
    forms_bytes: int = 0


class _Waiting(Collector):
    """Counts that have not been added up yet: ten of them a request, which take four calls and a lock each.

    Whoever reads the registry sees all of them, since this is its first collector. Any thread may use it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: deque[tuple[Callable[[float], None], float]] = deque()
        registry.register(self)

    def add(self, count: Callable[[float], None], amount: float) -> None:
        """Call ``count`` with that amount, at the latest when somebody reads."""
        self._counts.append((count, amount))
        if len(self._counts) >= _MOST_WAITING:
            self.collect()

    def collect(self) -> Iterable[Metric]:
        """Add them up; there are no metrics of its own."""
        counts = self._counts
        while counts:
            try:
                count, amount = counts.popleft()
            except IndexError:  # another thread was faster
                break
            count(amount)
        return ()


class Metrics:
    """The counters of one proxy."""

    def __init__(self) -> None:
        r = self._registry = CollectorRegistry()
        self._later = _Waiting(r).add
        self._children: dict[tuple[Counter | Histogram, str], Callable[[float], None]] = {}
        self.requests = Counter("prefixpilot_requests", "Requests, by outcome", ["outcome"], registry=r)
        self.refused = Counter("prefixpilot_refused", "Requests that we refused, by status", ["status"], registry=r)
        self.fail_opens = Counter("prefixpilot_fail_opens", "Errors of ours, by step", ["step"], registry=r)
        self.ttft = Histogram(
            "prefixpilot_ttft_seconds",
            "From a request's head to the engine's first content, requests to one of the four APIs",
            ["treated"],
            buckets=_TTFT_SECONDS,
            registry=r,
        )
        self.seconds = Histogram(
            "prefixpilot_request_seconds",
            "From a request's head to the end of its answer",
            ["treated"],
            buckets=_TTFT_SECONDS,
            registry=r,
        )
        self.planning = Histogram(
            "prefixpilot_planning_seconds",
            "From the whole request to what is sent to the engine: the latency that we add, holding included",
            buckets=_OWN_SECONDS,
            registry=r,
        )
        self.prompt_tokens = Counter(
            "prefixpilot_prompt_tokens", "Reported by the engine, answers that were read", ["mode"], registry=r
        )
        self.cached_tokens = Counter(
            "prefixpilot_cached_tokens", "Reported by the engine, answers that were read", ["mode"], registry=r
        )
        self.known_prompt_tokens = Counter(
            "prefixpilot_prompt_tokens_of_known",
            "Prompt tokens of the answers in which the engine said how many were cached: the hit rate's denominator",
            ["mode"],
            registry=r,
        )
        self.cached_known = Counter(
            "prefixpilot_cached_tokens_known",
            "Answers in which the engine said how many tokens were cached",
            ["mode"],
            registry=r,
        )
        self.cached_unknown = Counter(
            "prefixpilot_cached_tokens_unknown", "Answers in which it did not say so", ["mode"], registry=r
        )
        self.predicted = Counter(
            "prefixpilot_predicted_cached_tokens", "Predicted by the index, never measured", registry=r
        )
        self.replaced = Counter(
            "prefixpilot_replaced_tokens", "Of blocks that an annotation stood for, as the plan counts", registry=r
        )
        self.annotation_tokens = Counter(
            "prefixpilot_annotation_tokens", "Of the annotations sent, estimated: what they cost", registry=r
        )
        self.annotations = Counter("prefixpilot_annotations", "Annotations sent, by kind", ["kind"], registry=r)
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
        self.gone = Counter(
            "prefixpilot_gone_conversations", "Requests of a conversation whose turns are not held any more", registry=r
        )
        self.overflows = Counter(
            "prefixpilot_window_overflows", "Requests whose earlier turns were cut down to fit the window", registry=r
        )
        self.unsaved = Counter("prefixpilot_unsaved_turns", "Changes that could not be written to disk", registry=r)
        self.lost = Counter(
            "prefixpilot_lost_conversations",
            "Conversations on disk that expired, made room for others, or went with their file",
            registry=r,
        )
        self.store_healthy = Gauge(
            "prefixpilot_store_healthy", "1 if conversations are kept as the settings say, else 0", registry=r
        )
        self.ledger_bytes = Gauge("prefixpilot_ledger_bytes", "Of conversations in memory, estimated", registry=r)
        self.stored_conversations = Gauge("prefixpilot_stored_conversations", "Conversations on disk", registry=r)
        self.stored_bytes = Gauge("prefixpilot_stored_bytes", "In use in the file of conversations", registry=r)
        self.live_requests = Gauge("prefixpilot_index_live_requests", "Requests in the index", registry=r)
        self.conversations = Gauge("prefixpilot_conversations", "Conversations in the ledger", registry=r)
        self.in_flight = Gauge("prefixpilot_in_flight", "Requests under way", registry=r)
        self.treated = Counter(
            "prefixpilot_treated",
            "In requests without blocks: regions moved, texts replaced by annotations, messages restored",
            ["what"],
            registry=r,
        )
        self.shadow_treated = Counter(
            "prefixpilot_shadow_treated",
            "The same of requests in mode shadow: not done, only planned",
            ["what"],
            registry=r,
        )
        self.treated_saved = Counter(
            "prefixpilot_treated_saved_tokens", "Of the texts replaced, net of annotations, estimated", registry=r
        )
        self.volatile = Counter("prefixpilot_volatile_changes", "Made by a rule, by its name", ["rule"], registry=r)
        self.forms = Gauge("prefixpilot_forms", "Messages whose form is remembered", registry=r)
        self.forms_bytes = Gauge("prefixpilot_forms_bytes", "Of these forms, estimated", registry=r)
        for what in ("moved", "replaced", "restored"):
            self.treated.labels(what)
            self.shadow_treated.labels(what)
        for rule in get_args(Rule):
            self.volatile.labels(rule)
        for outcome in _OUTCOMES:
            self.requests.labels(outcome)
        for kind in ("order", "location"):
            self.annotations.labels(kind)

    @property
    def registry(self) -> CollectorRegistry:
        """Where further figures of this proxy belong."""
        return self._registry

    def _count(self, metric: Counter | Histogram, label: str, amount: float = 1) -> None:
        """Count for the child of a metric with one label. That is looked up once."""
        count = self._children.get((metric, label))
        if count is None:
            child = metric.labels(label)
            count = self._children[metric, label] = child.inc if isinstance(child, Counter) else child.observe
        self._later(count, amount)

    def count_request(self, outcome: Outcome) -> None:
        """Count one request."""
        self._count(self.requests, outcome)

    def count_planning(self, seconds: float) -> None:
        """Count how long one request took until it was sent to the engine."""
        self._later(self.planning.observe, seconds)

    def count_usage(self, usage: Usage | None, mode: str) -> None:
        """Count what the engine reported of one answer that was read."""
        prompt, cached = (None, None) if usage is None else (usage.prompt_tokens, usage.cached_tokens)
        if prompt is not None:
            self._count(self.prompt_tokens, mode, prompt)
        if cached is None:
            self._count(self.cached_unknown, mode)
            return
        self._count(self.cached_tokens, mode, cached)
        self._count(self.cached_known, mode)
        self._count(self.known_prompt_tokens, mode, prompt or 0)

    def count_plan(self, plan: Plan) -> None:
        """Count a plan that the engine has."""
        located = [block for block in plan.blocks if block.location_annotation is not None]
        if plan.predicted_cached_tokens:
            self._later(self.predicted.inc, plan.predicted_cached_tokens)
        texts = [block.location_annotation for block in located]
        if located:
            self.replaced.inc(sum(block.tokens for block in located))
            self._count(self.annotations, "location", len(located))
        if plan.order_annotation is not None:
            self._count(self.annotations, "order")
            texts.append(plan.order_annotation)
        if texts:
            self.annotation_tokens.inc(sum(estimate_tokens(text) for text in texts if text is not None))

    def count_treatment(self, report: TreatmentReport | None, changes: Sequence[Change]) -> None:
        """Count what was done to a request that the engine has."""
        for change in changes:
            self.volatile.labels(change.rule).inc()
        if report is not None:
            _count_figures(self.treated, report)
            self.treated_saved.inc(max(report.saved_tokens, 0))

    def count_shadow(self, report: TreatmentReport) -> None:
        """Count what would have been done to a request without blocks."""
        _count_figures(self.shadow_treated, report)

    def count_time(self, seconds: float, ttft: float | None, *, treated: bool) -> None:
        """Count how long one request took; ``ttft`` is ``None`` where the first content was not seen."""
        label = "yes" if treated else "no"
        self._count(self.seconds, label, seconds)
        if ttft is not None:
            self._count(self.ttft, label, ttft)

    def set_sizes(self, sizes: Sizes) -> None:
        """Show how much is held."""
        self.live_requests.set(sizes.live_requests)
        self.in_flight.set(sizes.in_flight)
        self.forms.set(sizes.forms)
        self.forms_bytes.set(sizes.forms_bytes)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def stats(self) -> dict[str, Any]:
        """The counts as JSON: requests, tokens, the measured hit rate and of how many answers it is."""
        sums = self._sums()
        known, unknown = sums["cached_tokens_known"], sums["cached_tokens_unknown"]
        return {
            "requests": self._by_label("prefixpilot_requests", "outcome"),
            "fail_opens": self._by_label("prefixpilot_fail_opens", "step"),
            "annotations": self._by_label("prefixpilot_annotations", "kind"),
            "treated": {**self._by_label("prefixpilot_treated", "what"), "saved_tokens": sums["treated_saved_tokens"]},
            "shadow_treated": self._by_label("prefixpilot_shadow_treated", "what"),
            "volatile_changes": self._by_label("prefixpilot_volatile_changes", "rule"),
            "cache": {
                "answers_known": known,
                "answers_unknown": unknown,
                "prompt_tokens": sums["prompt_tokens"] if known or unknown else None,
                "cached_tokens": sums["cached_tokens"] if known else None,
                "hit_rate": _ratio(sums["cached_tokens"], sums["prompt_tokens_of_known"]),
                "predicted_cached_tokens": sums["predicted_cached_tokens"],
                "replaced_tokens": sums["replaced_tokens"],
                "annotation_tokens": sums["annotation_tokens"],
            },
            "conversations": {
                name: sums[name] for name in ("ambiguous_restorations", "unmatched_histories", "unrecorded_turns")
            },
        }

    def _sums(self) -> Mapping[str, int]:
        """Each counter over all its labels, by its name without our prefix."""
        return {
            family.name.removeprefix("prefixpilot_"): int(
                sum(s.value for s in family.samples if s.name.endswith("_total"))
            )
            for family in self._registry.collect()
            if family.type == "counter"
        }

    def _by_label(self, name: str, label: str) -> dict[str, int]:
        families = (family for family in self._registry.collect() if family.name == name)
        samples = (s for family in families for s in family.samples if s.name.endswith("_total"))
        return {sample.labels[label]: int(sample.value) for sample in samples}


def _count_figures(counter: Counter, report: TreatmentReport) -> None:
    for what, count in (("moved", report.moved), ("replaced", report.replaced), ("restored", report.restored)):
        counter.labels(what).inc(count)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
