"""What an analysis found. Frozen, JSON-ready; every token count is an estimate from the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from prefixpilot.bench.analysis.fronts import Finding
from prefixpilot.bench.analysis.unproved import Unproved
from prefixpilot.workloads.request_log import BadLine

ARMS: Final = (
    "arrival",
    "order",
    "order+dedupe",
    "order+dedupe+rules",
    "order+dedupe+schedule",
    "order+dedupe+rules+schedule",
)
"""All arms there can be, in the order in which they are told."""


class Point(NamedTuple):
    """After so many requests: tokens of their prompts, and those that the cache had."""

    requests: int
    tokens: int
    cached: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One way to send the log through the modelled cache.

    Attributes:
        name: one of :data:`ARMS`.
        prompt_tokens: of all prompts as sent, annotations included.
        cached_tokens: those that the cache had.
        median_prefilled, p95_prefilled: tokens that one request had to wait for.
        billed_tokens: in uncached input tokens, by the provider's prices; ``None`` if the log's models have none.
        curve: cached tokens over the log.
    """

    name: str
    prompt_tokens: int
    cached_tokens: int
    median_prefilled: int
    p95_prefilled: int
    billed_tokens: float | None
    curve: tuple[Point, ...]

    @property
    def prefilled_tokens(self) -> int:
        """What the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """Cached tokens as a share of the prompts'."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class BlockStatistics:
    """Context blocks that were found.

    Attributes:
        requests: how many requests have some.
        blocks, tokens: of all of them; copies count.
        repeated_tokens: of blocks that an earlier request of the log had too.
        bound_tokens: what no order and no schedule of these requests exceeds; ``None``: not computed (too many).
    """

    requests: int
    blocks: int
    tokens: int
    repeated_tokens: int
    bound_tokens: int | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log, analysed.

    Attributes:
        log: its name.
        bytes: its size, decompressed.
        requests: how many were read.
        refused: of them, those whose ``context_blocks`` the proxy would refuse: in no arm.
        touched: those that the proxy would send otherwise than they came.
        replaced: texts that it would send as a reference.
        conversations: requests that go on from none.
        bad_lines: how many lines held no request; ``bad_examples``: the first of them.
        apis, models: requests by each, the most frequent first.
        cache_tokens: capacity of the modelled cache; ``None``: no bound.
        arms: the same requests in each.
        blocks: see there.
        findings: what changes in front of the conversation, the costliest first.
        unproved: formats whose words were seen, but not where their documents begin and end: these stay as they are.
    """

    log: str
    bytes: int
    requests: int
    refused: int
    touched: int
    replaced: int
    conversations: int
    bad_lines: int
    bad_examples: tuple[BadLine, ...]
    apis: tuple[tuple[str, int], ...]
    models: tuple[tuple[str, int], ...]
    cache_tokens: int | None
    arms: tuple[ArmResult, ...]
    blocks: BlockStatistics
    findings: tuple[Finding, ...]
    unproved: tuple[Unproved, ...] = ()

    @property
    def best(self) -> ArmResult:
        """The arm without a schedule that prefills least: what the proxy does for requests as they come."""
        return min((arm for arm in self.arms if "schedule" not in arm.name), key=lambda arm: arm.prefilled_tokens)

    def as_json(self, *, show_text: bool = True) -> dict[str, Any]:
        """All of it, with the derived figures of each arm; without words of the log unless ``show_text``."""
        derived = [{"prefilled_tokens": arm.prefilled_tokens, "hit_rate": round(arm.hit_rate, 4)} for arm in self.arms]
        value = asdict(self)
        value["arms"] = [{**arm, **more} for arm, more in zip(value["arms"], derived, strict=True)]
        value["bad_examples"] = [bad._asdict() for bad in self.bad_examples]
        value["unproved"] = [each._asdict() for each in self.unproved]
        for given, finding in zip(value["findings"], self.findings, strict=True):
            example = finding.example if show_text else finding.example._replace(before="", after="")
            given["example"] = example._asdict()
        return value


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which ``share`` of them lie (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
