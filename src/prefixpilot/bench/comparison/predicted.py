"""What `replay` expects of a cell: the planner and a model of the engine's cache, without engine and proxy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from prefixpilot.bench.comparison.arms import ArmName
from prefixpilot.bench.comparison.prepared import BenchRequest
from prefixpilot.bench.rendering import Rendering
from prefixpilot.bench.replaying import Mode, simulate
from prefixpilot.blocks import estimate_tokens
from prefixpilot.core import ContextBlock, Request, RequestId
from prefixpilot.errors import InvalidInputError
from prefixpilot.prefix_cache import Access, PrefixCache, Segment
from prefixpilot.prefix_cache.base import nonempty_segments
from prefixpilot.prefix_cache.slots import SlotCache
from prefixpilot.workloads import Workload, WorkloadRequest

MODES: Final[dict[ArmName, Mode]] = {"arrival": "arrival", "deduped": "online", "scheduled": "offline"}
AROUND: Final = Rendering(head_tokens=31, question_tokens=24)
"""A chat template with a short system text; a question."""
BARE: Final = Rendering(head_tokens=1, question_tokens=12)
"""Next to no template."""
UNBOUNDED: Final = 1 << 40


class Model(NamedTuple):
    """Of an engine: its cache, empty, and what stands in a prompt beside the blocks."""

    cache: PrefixCache
    around: Rendering = AROUND


class LlamaCppCache:
    """llama.cpp's slots and store (:mod:`prefixpilot.prefix_cache.slots`) as a cache of tokens, one request at a time.

    Args:
        store_tokens: capacity of the store; ``None``: no bound but the number of prompts that are followed.
        slots: how many there are; each holds one more prompt.
    """

    def __init__(self, store_tokens: int | None, slots: int = 1) -> None:
        self.capacity_tokens = store_tokens
        self._slots = slots
        self.clear()

    @property
    def used_tokens(self) -> int:
        """In the store."""
        return sum(len(held.text) for held in self._cache.contents.store)

    def match_prefix(self, prompt: Sequence[Segment]) -> int:
        """As :class:`~prefixpilot.prefix_cache.PrefixCache`: what the slot of the server's choice would have."""
        text = _text(prompt)
        slot = self._cache.own_choice(text)
        return 0 if slot is None else self._cache.preview(text, slot).cached

    def access(self, prompt: Sequence[Segment]) -> Access:
        """As :class:`~prefixpilot.prefix_cache.PrefixCache`."""
        text, before = _text(prompt), self.used_tokens
        slot = self._cache.own_choice(text)
        if slot is None:
            raise InvalidInputError("prompt", "comes while all slots are busy", "send one at a time")
        self._count += 1
        cached = min(self._cache.place(text, slot, names=(str(self._count),)), len(text) - 1)
        self._cache.release(slot)
        used_up = tuple(self._count - int(name) for name in self._cache.used_up)
        return Access(cached, len(text), max(0, before - self.used_tokens), used_up)

    def clear(self) -> None:
        """Hold nothing."""
        self._cache = SlotCache(self._slots, UNBOUNDED if self.capacity_tokens is None else self.capacity_tokens)
        self._count = 0

    def check_invariants(self) -> None:
        """As :class:`~prefixpilot.prefix_cache.PrefixCache`."""
        self._cache.check_invariants()


def _text(prompt: Sequence[Segment]) -> bytes:
    """A byte for each token: others for other segments."""
    return b"".join(map(_bytes, nonempty_segments(prompt)))


def _bytes(segment: Segment) -> bytes:
    seed = hashlib.blake2b(repr(segment.key).encode(), digest_size=32).digest()
    return (seed * (segment.tokens // len(seed) + 1))[: segment.tokens]


def predicted_hit_rate(arm: ArmName, requests: Sequence[BenchRequest], model: Model, multi_turn: bool) -> float | None:
    """Share of the prompts' tokens, template and annotations included, that `replay` expects to be cached; lengths are
    estimates. ``None``: `replay` knows no such arm. As :func:`simulate` otherwise."""
    mode = MODES.get(arm)
    if mode is None:
        return None
    workload = _workload(requests)
    return simulate(workload, mode, model.cache, multi_turn=multi_turn, rendering=model.around).result.hit_rate


def _workload(requests: Sequence[BenchRequest]) -> Workload:
    entries = []
    for request in requests:
        blocks = tuple(
            ContextBlock(text=block.text, title=block.title, tokens=estimate_tokens(block.text or ""))
            for block in request.blocks
        )
        name = str(request.number)
        entries.append(WorkloadRequest(Request(blocks, RequestId(name)), request.session, request.turn, name))
    return Workload("prepared", tuple(entries))
