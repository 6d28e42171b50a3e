"""A workload through the planner and a model of the engine's prefix cache.

The modelled prompt of a request is its blocks that stand in full, with their tokens. Questions, answers, system prompts
have no length in a trace and are left out; so are the few tokens of a label. Without conversations the annotations
are left out too (they stand behind the blocks, so no hit depends on them) and only counted. With conversations the
prompt is all earlier turns as sent, then this turn, annotations included at their estimated length. With a
:class:`~prefixpilot.bench.rendering.Rendering` all of that is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from prefixpilot.annotations import Templates
from prefixpilot.bench.rendering import Annotation, Rendering, block_segments, order_segments
from prefixpilot.config import PilotConfig
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import BlockId, ConversationId, Plan, Request, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prefix_cache import Access, PrefixCache, ReplayResult, Segment, Window
from prefixpilot.workloads import Workload, WorkloadRequest

Mode = Literal["arrival", "online", "offline"]


@dataclass(frozen=True, slots=True)
class SentRequest:
    """The blocks that one request sent in full, in prompt order, by the workload's ids (by identity where it has none).

    With conversations: those of this turn, without its history.
    """

    request_id: RequestId
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did.

    Attributes:
        workload: its name.
        mode: how requests were planned.
        multi_turn: whether sessions were conversations.
        cache_tokens: capacity of the cache; ``None`` for no bound.
        result: tokens of every request, in the order sent. Measured on the modelled cache, not on an engine.
        annotation_tokens: tokens of all annotations (``Plan.annotation_tokens``), each counted in the turn that it was
            made for.
        sent: parallel to ``result.accesses``.
        rendering: what stood in each prompt beside the blocks; ``None``: nothing.
    """

    workload: str
    mode: Mode
    multi_turn: bool
    cache_tokens: int | None
    result: ReplayResult
    annotation_tokens: int
    sent: tuple[SentRequest, ...]
    rendering: Rendering | None = None

    @property
    def hit_rate_behind_head(self) -> float:
        """The hit rate of what stands behind the head that every prompt has."""
        head = 0 if self.rendering is None else self.rendering.head_tokens
        accesses = self.result.accesses
        total = sum(access.total_tokens - head for access in accesses)
        return sum(max(access.cached_tokens - head, 0) for access in accesses) / total if total else 0.0

    @property
    def net_cached_tokens(self) -> int:
        """Cached tokens less those of the annotations; may be negative."""
        return self.result.cached_tokens - self.annotation_tokens

    @property
    def net_hit_rate(self) -> float:
        """Net cached tokens as a share of the total."""
        return self.net_cached_tokens / self.result.total_tokens if self.result.total_tokens else 0.0

    @property
    def windows(self) -> tuple[Window, ...]:
        """The hit rate over time: about 20 runs of equally many requests."""
        return self.result.windows(20)


def _checked(workload: Workload, mode: Mode, multi_turn: bool) -> Workload:
    """The workload, as turns if they are wanted."""
    if mode not in get_args(Mode):
        raise ConfigError("mode", f"is {mode!r}", f"use one of: {', '.join(get_args(Mode))}")
    return workload.as_conversations() if multi_turn else workload


class SentPrompt(NamedTuple):
    """One prompt on its way.

    Attributes:
        prompt: as a cache model takes it.
    """

    request_id: RequestId
    conversation: ConversationId | None
    prompt: list[Segment]


class _Step(NamedTuple):
    entry: WorkloadRequest
    plan: Plan


def simulate(
    workload: Workload,
    mode: Mode,
    cache: PrefixCache,
    *,
    multi_turn: bool = False,
    config: PilotConfig | None = None,
    rendering: Rendering | None = None,
    on_request: Callable[[], object] = lambda: None,
) -> ReplayReport:
    """Plan a workload, send it through ``cache`` (as it is, not cleared), and add up.

    Args:
        workload: its sessions are looked at only with ``multi_turn``.
        mode: ``arrival`` sends every block in full, in the given order and schedule; ``online`` plans one request after
            the other as they arrive, with an index no larger than the cache and without what the cache tells is used
            up; ``offline`` plans them all together and sends them in the planned schedule.
        multi_turn: sessions are conversations, whose turns stay in order; their history is part of the prompt.
            ``online`` and ``offline`` then de-duplicate.
        config: of the planner; ``cache_tokens`` is set here.
        rendering: what stands in a prompt beside its blocks; ``None`` leaves that out.
        on_request: called after each request.

    Raises:
        ConfigError: an unknown mode.
        TraceError: ``multi_turn`` on a workload without usable sessions.
    """
    workload = _checked(workload, mode, multi_turn)
    config = config or PilotConfig()
    prompts = _Prompts(config.templates, rendering)
    accesses: list[Access] = []
    sent: list[SentRequest] = []
    gone: list[RequestId] = []
    for step in _steps(workload, mode, cache.capacity_tokens, config, gone):
        access = cache.access(prompts.of(step.plan, step.entry.request.conversation_id))
        gone[:] = [sent[-ago].request_id for ago in access.used_up if ago <= len(sent)]
        accesses.append(access)
        sent.append(_sent(step))
        on_request()
    return ReplayReport(
        workload=workload.name,
        mode=mode,
        multi_turn=multi_turn,
        cache_tokens=cache.capacity_tokens,
        result=ReplayResult(tuple(accesses)),
        annotation_tokens=prompts.annotation_tokens,
        sent=tuple(sent),
        rendering=rendering,
    )


def sent_prompts(
    workload: Workload,
    mode: Mode,
    cache_tokens: int | None,
    *,
    multi_turn: bool = False,
    config: PilotConfig | None = None,
    rendering: Rendering | None = None,
) -> Iterator[SentPrompt]:
    """The prompts of a workload, in the order sent, as :func:`simulate` sends them; ``cache_tokens`` bounds the index
    in mode ``online``. Raises as :func:`simulate`."""
    workload = _checked(workload, mode, multi_turn)
    config = config or PilotConfig()
    prompts = _Prompts(config.templates, rendering)
    for step in _steps(workload, mode, cache_tokens, config):
        conversation = step.entry.request.conversation_id
        yield SentPrompt(step.plan.request_id, conversation, prompts.of(step.plan, conversation))


def _steps(
    workload: Workload, mode: Mode, cache_tokens: int | None, config: PilotConfig, gone: Sequence[RequestId] = ()
) -> Iterator[_Step]:
    """The requests with their plans, in the order sent. ``gone``: what the cache has lost, before each next one."""
    if mode == "offline":
        pilot = ContextPilot(config)
        for planned in pilot.optimize_batch([entry.request for entry in workload.requests]):
            yield _Step(workload.requests[planned.position], planned.plan)
    elif mode == "online":
        pilot = ContextPilot(replace(config, cache_tokens=cache_tokens))
        for entry in workload.requests:
            pilot.evict(gone)
            yield _Step(entry, pilot.optimize(entry.request))
    else:
        pilot, records = ContextPilot(config), _Records()
        for entry in workload.requests:
            plan = pilot.as_given(entry.request, records.of(entry.request))
            records.add(entry.request, plan)
            yield _Step(entry, plan)


class _Records:
    """What the turns of each conversation hold, in the given order."""

    def __init__(self) -> None:
        self._records: dict[ConversationId, ConversationRecord] = {}

    def of(self, request: Request) -> ConversationRecord:
        conversation = request.conversation_id
        return NEW_CONVERSATION if conversation is None else self._records.get(conversation, NEW_CONVERSATION)

    def add(self, request: Request, plan: Plan) -> None:
        if request.conversation_id is not None:
            self._records[request.conversation_id] = self.of(request).after(plan)


class _Prompts:
    """Makes prompts of plans, and keeps the history of each conversation."""

    def __init__(self, templates: Templates, rendering: Rendering | None) -> None:
        self._templates = templates
        self._rendering = rendering
        self._history: dict[ConversationId, list[Segment]] = {}
        self.annotation_tokens = 0

    def of(self, plan: Plan, conversation: ConversationId | None) -> list[Segment]:
        """The prompt of a plan. O(its length)."""
        rendering, templates = self._rendering, self._templates
        self.annotation_tokens += plan.annotation_tokens
        if rendering is not None:
            head, turn = rendering.head(), rendering.turn(plan, templates)
        else:
            head, turn = [], [*block_segments(plan, templates), *order_segments(plan, templates)]
        if conversation is None:
            kept = rendering is not None
            return head + [segment for segment in turn if kept or not isinstance(segment.key, Annotation)]
        history = self._history.setdefault(conversation, head)
        history.extend(turn)
        return list(history)


def _sent(step: _Step) -> SentRequest:
    in_full = [block for block in step.plan.blocks if block.location_annotation is None]
    names = ((step.entry.name_of(block.position), block.block_id) for block in in_full)
    return SentRequest(step.plan.request_id, tuple(known if name is None else name for name, known in names))
