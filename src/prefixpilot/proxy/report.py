"""What the client is told of a plan: the response header, and ``GET /plans/{request_id}``."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from prefixpilot.core import BlockId, ContextBlock, Plan, RequestId
from prefixpilot.proxy.escaping import compact
from prefixpilot.proxy.settings import Mode
from prefixpilot.volatile.base import Change

MAX_HEADER_BYTES: Final = 4000
UNKNOWN: Final = "unknown"
"""What a plan says of the engine's cache where it is not followed."""
_KEPT_BYTES: Final = 3072
"""Of a kept report: its id, which is bounded, its numbers, and the containers."""
_KEPT_BLOCK_BYTES: Final = 64
_CHANGE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A request as it was planned.

    Attributes:
        blocks: those of the request, by the client's position.
        labels: label of each block, by the client's position.
        plan: ``None`` if nothing was planned (no blocks, a tool loop, a fallback).
        restored: how many earlier turns were sent again as they had been sent.
        ambiguous: the history fits several recorded branches.
        unmatched: earlier user messages of a known conversation that are in no recorded turn: edited, or cut.
        recorded: this turn will be sent again as it was; ``None`` if the request stands alone.
        fallback: step and kind of an error of ours, if there was one.
        gone: the conversation was recorded once, and its turns are not held any more.
        overflow: earlier turns that are sent as the client has them, because the window has no room for their blocks.
        cache: how the engine's cache was known when it was planned: ``exact``, ``degraded`` or ``unknown``.
    """

    request_id: RequestId
    mode: Mode
    blocks: tuple[ContextBlock, ...]
    labels: Sequence[str]
    plan: Plan | None
    restored: int
    ambiguous: bool
    fallback: str | None
    unmatched: int = 0
    recorded: bool | None = None
    gone: bool = False
    overflow: int = 0
    cache: str = UNKNOWN
    _summary: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def replaced(self) -> int:
        """Blocks that do not stand in full in this turn's own text."""
        if self.plan is None:
            return 0
        return len(self.plan.blocks) - [block.location_annotation for block in self.plan.blocks].count(None)

    def summary(self) -> dict[str, Any]:
        """All but the labels. What is unknown is ``null``. Made once; nobody changes it."""
        if self._summary is None:
            object.__setattr__(self, "_summary", self._told())
        assert self._summary is not None
        return self._summary

    def _told(self) -> dict[str, Any]:
        plan = self.plan
        summary = {
            "request_id": self.request_id,
            "mode": self.mode,
            "blocks": len(self.blocks),
            "prefix_len": plan.prefix_len if plan and plan.predicted_cached_tokens is not None else None,
            "replaced": self.replaced,
            "predicted_cached_tokens": plan.predicted_cached_tokens if plan else None,
            "restored": self.restored,
            "ambiguous": self.ambiguous,
            "unmatched": self.unmatched,
            "recorded": self.recorded,
            "gone": self.gone,
            "overflow": self.overflow,
            "cache": self.cache,
        }
        return summary if self.fallback is None else {**summary, "fallback": self.fallback}

    def kept(self) -> KeptReport:
        """All that is told of it, without the blocks' texts."""
        planned = () if self.plan is None else self.plan.blocks
        return KeptReport(
            self.summary(),
            tuple([block.id for block in self.blocks]),
            tuple(self.labels),
            tuple([block.position for block in planned]),
            tuple([block.location_annotation is not None for block in planned]),
        )

    def full(self) -> dict[str, Any]:
        """See :meth:`KeptReport.full`."""
        return self.kept().full()


class KeptReport(NamedTuple):
    """What is kept of a :class:`PlanReport`.

    Attributes:
        about: its summary.
        ids, labels: of each block, by the client's position.
        order: the position of the block at each place in the prompt; empty if nothing was planned.
        replaced: in parallel.
    """

    about: dict[str, Any]
    ids: tuple[BlockId | None, ...]
    labels: tuple[str, ...]
    order: tuple[int, ...]
    replaced: tuple[bool, ...]

    def full(self) -> dict[str, Any]:
        """The summary, and each block: label, the client's id, place in the prompt, whether it was replaced."""
        place_of = {position: place for place, position in enumerate(self.order)}
        labels = []
        for position, (block_id, label) in enumerate(zip(self.ids, self.labels, strict=True)):
            entry: dict[str, Any] = {"position": position, "label": label, "id": block_id}
            if position in place_of:
                place = place_of[position]
                entry |= {"place": place, "replaced": self.replaced[place]}
            labels.append(entry)
        return {**self.about, "labels": labels}

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate. O(blocks)."""
        strings = sum(map(getsizeof, self.ids)) + sum(map(getsizeof, self.labels))
        return _KEPT_BYTES + strings + _KEPT_BLOCK_BYTES * len(self.labels)


@dataclass(frozen=True, slots=True)
class TreatmentReport:
    """What was done to a request without blocks.

    Attributes:
        moved: regions and arrays that were put in another order.
        replaced: annotations in the place of texts that stand earlier.
        saved_tokens: estimated, that those save net.
        restored: earlier messages that were sent again in the form in which they had been sent.
        changes: what the rules for volatile text and the order of tools did; holds no text of the prompt.
        predicted_cached_tokens: of the documents that lead where units were ordered, by our index. ``None`` is unknown:
            nothing was ordered.
        cache: as in :class:`PlanReport`.
    """

    request_id: RequestId
    mode: Mode
    moved: int = 0
    replaced: int = 0
    saved_tokens: int = 0
    restored: int = 0
    changes: tuple[Change, ...] = ()
    predicted_cached_tokens: int | None = None
    cache: str = UNKNOWN

    def summary(self) -> dict[str, Any]:
        """All but the changes, of which it has the number."""
        return {
            "request_id": self.request_id,
            "mode": self.mode,
            "moved": self.moved,
            "replaced": self.replaced,
            "saved_tokens": self.saved_tokens,
            "predicted_cached_tokens": self.predicted_cached_tokens,
            "restored": self.restored,
            "changed": len(self.changes),
            "cache": self.cache,
        }

    def kept(self) -> TreatmentReport:
        """Itself: it holds no text."""
        return self

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate. O(changes)."""
        return _KEPT_BYTES + sum(_CHANGE_BYTES + sum(map(getsizeof, change)) for change in self.changes)

    def full(self) -> dict[str, Any]:
        """The summary, and each change."""
        return {**self.summary(), "changes": shown(self.changes)}

    def header(self) -> bytes:
        """Compact ASCII JSON."""
        return compact(self.summary())


def shown(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Changes as JSON."""
    return [{**change._asdict(), "pointer": list(change.pointer), "span": list(change.span)} for change in changes]


def unrecorded(header: bytes) -> bytes:
    """The header of a plan that the engine has refused: nothing of the turn is recorded."""
    told = json.loads(header)
    return header if told.get("recorded") is not True else compact({**told, "recorded": False})


def plan_header(report: PlanReport) -> bytes:
    """Compact ASCII JSON under 4 kB; labels that do not fit are at ``labels_at``."""
    summary = report.summary()
    header = compact({**summary, "labels": list(report.labels)})
    if len(header) <= MAX_HEADER_BYTES:
        return header
    return compact({**summary, "labels_at": f"/plans/{quote(report.request_id, safe='', encoding='latin-1')}"})


class RecentPlans:
    """The last plans, by request id, bounded in number and in bytes; the oldest goes first. JSON is made of one only
    when it is asked for.

    A report that alone has more than ``max_bytes`` is not kept.
    """

    def __init__(self, max_plans: int, max_bytes: int) -> None:
        self._max = max_plans
        self._max_bytes = max_bytes
        self._reports: OrderedDict[str, KeptReport | TreatmentReport] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: PlanReport | TreatmentReport) -> None:
        """Keep a report (its labels and numbers, no text); one of the same id is replaced."""
        self._size -= _size(self._reports.pop(report.request_id, None))
        whole = report.kept()
        self._reports[report.request_id] = whole
        self._size += _size(whole)
        while self._reports and (len(self._reports) > self._max or self._size > self._max_bytes):
            _, oldest = self._reports.popitem(last=False)
            self._size -= _size(oldest)

    def unrecord(self, request_id: RequestId) -> None:
        """The turn of that request, if it is still kept, was not recorded after all."""
        report = self._reports.get(request_id)
        if isinstance(report, KeptReport):
            self._reports[request_id] = report._replace(about={**report.about, "recorded": False})

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        gone = len(self._reports)
        self._reports.clear()
        self._size = 0
        return gone

    @property
    def size(self) -> int:
        """Bytes held: an upper estimate."""
        return self._size

    def get(self, request_id: str) -> bytes | None:
        """The report of a request as JSON, if it is still kept."""
        report = self._reports.get(request_id)
        return None if report is None else compact(report.full())


def _size(report: KeptReport | TreatmentReport | None) -> int:
    return 0 if report is None else report.size
