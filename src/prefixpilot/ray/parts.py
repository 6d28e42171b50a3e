"""The parts of a workload that are planned apart, each a batch of its own. Pure; without Ray."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from prefixpilot.blocks import BlockStore
from prefixpilot.config import PilotConfig
from prefixpilot.core import BatchContext, Request
from prefixpilot.pilot import ContextPilot
from prefixpilot.planners.partition import partition
from prefixpilot.workloads import WorkloadRequest
from prefixpilot.workloads.planned import PlanCounts, planned_line

MAX_BLOCKS = 10_000_000
"""Whose lengths are known while a workload is cut."""


class PlannedPart(NamedTuple):
    """What became of one part.

    Attributes:
        lines: its plan, one JSON line a request in execution order, each with its newline.
    """

    lines: bytes
    counts: PlanCounts


def parts_of(entries: Sequence[WorkloadRequest], parts: int, config: PilotConfig) -> list[list[int]]:
    """Positions of the requests of each part, rising: what shares blocks together, a conversation whole.

    Requests that share no tree (of other tenants, models) share nothing. What shares goes by the first turn of a
    conversation. O(total blocks).

    Raises:
        ConfigError: ``parts`` is below 1.
    """
    openers: dict[tuple[str, str | None], list[int]] = {}
    for position, entry in enumerate(entries):
        conversation = entry.request.conversation_id
        key = (entry.request.tenant, conversation if conversation is not None else f"\0{position}")
        openers.setdefault(key, []).append(position)
    chats = list(openers.values())
    store = BlockStore(MAX_BLOCKS, config.normalization)
    first = [entries[chat[0]].request for chat in chats]
    several = len({(request.tenant, request.scope) for request in first}) > 1
    contexts = [_context(store, request, several) for request in first]
    return [sorted(position for chat in part for position in chats[chat]) for part in partition(contexts, parts)]


def _context(store: BlockStore, request: Request, several: bool) -> BatchContext:
    """``several``: there are several trees, and a block of one is none of another."""
    stored = {known.block_id: known.tokens for known in store.intern_all(request.blocks)}
    names = [f"{request.tenant}\0{request.scope}\0{block!r}" for block in stored] if several else stored
    return BatchContext(request.request_id, tuple(names), tuple(stored.values()))


def plan_part(entries: Sequence[WorkloadRequest], config: PilotConfig) -> PlannedPart:
    """Order and schedule one part as ``prefixpilot plan`` does a batch."""
    schedule = ContextPilot(config).optimize_batch([entry.request for entry in entries])
    lines = [json.dumps(planned_line(entries[planned.position], planned.plan)) for planned in schedule]
    text = "".join(f"{line}\n" for line in lines)
    return PlannedPart(text.encode("ascii"), PlanCounts.of(planned.plan for planned in schedule))


def digest_of(source: bytes, config: PilotConfig, parts: Sequence[Sequence[int]]) -> str:
    """16 hex digits that differ where another input, other settings or another cut would give other parts.

    Args:
        source: a digest of the input.
    """
    said = blake2b(source, digest_size=8)
    said.update(repr(config).encode())
    said.update(repr([(len(part), part[0]) for part in parts if part]).encode())
    return said.hexdigest()
