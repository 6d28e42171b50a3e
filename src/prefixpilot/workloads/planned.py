"""Planned requests as lines of a file, and what a plan comes to in figures that can be added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from prefixpilot.core import Plan
from prefixpilot.prompts import render_blocks
from prefixpilot.workloads.base import WorkloadRequest


def planned_line(entry: WorkloadRequest, plan: Plan) -> dict[str, Any]:
    """What is written for one request: of a Batch file the line to run, of a trace its blocks in prompt order."""
    if entry.batch is not None:
        return entry.batch.render(render_blocks(plan))
    line: dict[str, Any] = {
        "request_id": plan.request_id,
        "blocks": [entry.name_of(block.position) for block in plan.blocks],
        "annotation": plan.order_annotation,
    }
    located = [(i, block.location_annotation) for i, block in enumerate(plan.blocks) if block.location_annotation]
    if located:
        line["replaced"] = [{"index": i, "annotation": annotation} for i, annotation in located]
    return line


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """Counts over plans; those of parts of a batch add up to those of the batch.

    What is cached is predicted for first turns only, under a cache that keeps all that is still needed.

    Attributes:
        requests_with_blocks, requests_reordered: how many of ``requests``.
        blocks_replaced: by an annotation; they stand in full earlier in the prompt.
        predicted_for_requests: those whose cached tokens are predicted.
    """

    requests: int = 0
    requests_with_blocks: int = 0
    requests_reordered: int = 0
    blocks: int = 0
    blocks_replaced: int = 0
    block_tokens: int = 0
    predicted_cached_tokens: int = 0
    predicted_for_requests: int = 0
    annotation_tokens: int = 0

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> PlanCounts:
        """O(blocks)."""
        plans = list(plans)
        predicted = [plan for plan in plans if plan.predicted_cached_tokens is not None]
        return cls(
            requests=len(plans),
            requests_with_blocks=sum(bool(plan.blocks) for plan in plans),
            requests_reordered=sum(list(plan.order) != sorted(plan.order) for plan in plans),
            blocks=sum(len(plan.blocks) for plan in plans),
            blocks_replaced=sum(len(plan.blocks) - len(plan.sent) for plan in plans),
            block_tokens=sum(block.tokens for plan in plans for block in plan.blocks),
            predicted_cached_tokens=sum(plan.predicted_cached_tokens or 0 for plan in predicted),
            predicted_for_requests=len(predicted),
            annotation_tokens=sum(plan.annotation_tokens for plan in plans),
        )

    def __add__(self, other: PlanCounts) -> PlanCounts:
        return PlanCounts(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    @property
    def predicted_hit_rate(self) -> float:
        """Of the blocks' tokens."""
        return self.predicted_cached_tokens / max(1, self.block_tokens)

    @property
    def net_cached_tokens(self) -> int:
        """Predicted cached tokens less those of the annotations; may be negative."""
        return self.predicted_cached_tokens - self.annotation_tokens
