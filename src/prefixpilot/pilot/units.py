"""Contexts as a planner of batches sees them: a declared group is one block, and pinned blocks are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefixpilot.blocks import StoredBlock
from prefixpilot.blocks.store import SortKey
from prefixpilot.core import BatchContext, BlockId, Request, RequestId
from prefixpilot.ordering import Arranger
from prefixpilot.pilot.planner import Planner, distinct


class Wish(NamedTuple):
    """A request that is to be ordered, what is known of its blocks, and what keeps its constraints."""

    request: Request
    stored: Sequence[StoredBlock]
    arranger: Arranger | None

    @classmethod
    def of(cls, planner: Planner, request: Request) -> Wish:
        stored = planner.intern(request)
        return cls(request, stored, planner.arranger(request, stored))

    @property
    def beginning(self) -> tuple[BlockId, ...]:
        """The blocks that are pinned first."""
        return () if self.arranger is None else tuple(self.stored[p].block_id for p in self.arranger.units.first)


class Units:
    """Names and lengths of the units of a batch.

    A unit of one block goes by the block's identity, a group by a name that no block of the batch has; equal groups
    have equal names. Without constraints units and blocks are the same.

    Attributes:
        orders: positions in prompt order, of each constrained request that :meth:`sent` has seen.
    """

    def __init__(self, wishes: Sequence[Wish]) -> None:
        self.orders: dict[RequestId, tuple[int, ...]] = {}
        self._wish_of = {wish.request.request_id: wish for wish in wishes}
        self._sort_keys: dict[BlockId, SortKey] = {}
        self._tokens: dict[BlockId, int] = {}
        for wish in wishes:
            for stored in wish.stored:
                self._sort_keys[stored.block_id] = stored.sort_key
                self._tokens[stored.block_id] = stored.tokens
        self._groups: dict[tuple[BlockId, ...], BlockId] = {}

    def context(self, wish: Wish) -> BatchContext:
        """The units of a request that may be ordered, in the given order, each once."""
        if wish.arranger is None:
            names: Sequence[BlockId] = distinct(wish.stored)
        else:
            names = tuple(dict.fromkeys(self._name(wish, unit) for unit in wish.arranger.units.middle))
        return BatchContext(wish.request.request_id, tuple(names), tuple(self._tokens[name] for name in names))

    def sort_key(self, name: BlockId) -> SortKey:
        """Order of units inside a node: that of their blocks, groups last."""
        return self._sort_keys[name]

    def sent(self, planned: BatchContext) -> BatchContext:
        """What is sent for a planned context: its blocks, as near to the planned order as its constraints allow.

        The blocks that the cache shares only, so up to a repeat.
        """
        wish = self._wish_of[planned.request_id]
        if wish.arranger is None:
            return planned
        place = {name: i for i, name in enumerate(planned.blocks)}
        units = sorted(wish.arranger.units.middle, key=lambda unit: place[self._name(wish, unit)])
        order = wish.arranger.nearest([position for unit in units for position in unit])
        self.orders[planned.request_id] = order
        head: dict[BlockId, int] = {}
        for position in order:
            stored = wish.stored[position]
            if stored.block_id in head:
                break
            head[stored.block_id] = stored.tokens
        return BatchContext(planned.request_id, tuple(head), tuple(head.values()))

    def _name(self, wish: Wish, unit: range) -> BlockId:
        blocks = tuple(wish.stored[position].block_id for position in unit)
        if len(blocks) == 1:
            return blocks[0]
        name = self._groups.get(blocks)
        if name is None:
            name = self._unused()
            self._groups[blocks] = name
            self._sort_keys[name] = (4, len(self._groups))
            self._tokens[name] = sum(self._tokens[block] for block in blocks)
        return name

    def _unused(self) -> str:
        name = f"group {len(self._groups)}"
        while name in self._tokens:
            name += "'"
        return name
