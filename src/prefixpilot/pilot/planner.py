"""Plans for single requests: composes the block store, the forest, ordering, de-duplication and prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefixpilot.blocks import BlockStore, StoredBlock
from prefixpilot.config import PilotConfig
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, Place, Plan, PlannedBlock, Request
from prefixpilot.dedup import deduplicate
from prefixpilot.ordering import order_blocks
from prefixpilot.pilot.forest import Forest, TreeKey
from prefixpilot.prompts import assemble, relevance_annotation


class Planner:
    """Makes plans and keeps the index; knows nothing of conversations but the record that it is given."""

    def __init__(self, config: PilotConfig, count_tokens: Callable[[str], int] | None) -> None:
        self.config = config
        self.store = BlockStore(config.max_blocks, config.normalization, count_tokens)
        self.forest = Forest(config)

    def propose(self, request: Request, record: ConversationRecord) -> Plan:
        """Order on turn 0 (Algorithm 2), de-duplicate later (Algorithm 3). Changes nothing but the block store."""
        stored = self.intern(request)
        if record.turns:
            places = deduplicate([s.block_id for s in stored], record.labels)
            return self._plan(request, record, stored, range(len(stored)), places)
        prefix = self.forest.match(tree_key(request), distinct(stored))
        return self.with_prefix(request, record, stored, prefix, cached=len(prefix))

    def as_given(self, request: Request, record: ConversationRecord) -> Plan:
        """The given order, every block in full, no annotation."""
        stored = self.intern(request)
        return self._plan(request, record, stored, range(len(stored)), [Place.HERE] * len(stored))

    def with_prefix(
        self,
        request: Request,
        record: ConversationRecord,
        stored: Sequence[StoredBlock],
        prefix: Sequence[BlockId],
        cached: int,
    ) -> Plan:
        """``prefix`` first, then the rest by relevance; ``cached`` blocks are predicted to be in the cache."""
        ids = [s.block_id for s in stored]
        order = order_blocks(ids, prefix)
        places = deduplicate([ids[position] for position in order])
        return self._plan(request, record, stored, order, places, cached)

    def intern(self, request: Request) -> list[StoredBlock]:
        """What is known of each block, by position."""
        return [self.store.intern(block) for block in request.blocks]

    def insert(self, plan: Plan) -> None:
        """Insert a sent plan (turn 0), or grow the leaf of its conversation. The bounds are left to ``forest.trim``."""
        if plan.turn:
            if plan.opener is not None:
                self.forest.grow(plan.opener, len(plan.sent))
            return
        sent = _until_repeated(plan)
        if not sent:
            return
        self.forest.insert(
            TreeKey(plan.tenant, plan.scope),
            plan.request_id,
            sent=tuple(b.block_id for b in sent),
            tokens=tuple(b.tokens for b in sent),
            ranks=tuple(b.position for b in sent),
        )

    def _plan(
        self,
        request: Request,
        record: ConversationRecord,
        stored: Sequence[StoredBlock],
        order: Sequence[int],
        places: Sequence[Place],
        cached: int | None = None,
    ) -> Plan:
        templates = self.config.templates
        planned = assemble(stored, order, places, record, templates, self.config.labels)
        return Plan(
            request_id=request.request_id,
            tenant=request.tenant,
            scope=request.scope,
            blocks=planned,
            order_annotation=relevance_annotation(planned, templates),
            prefix_len=cached or 0,
            predicted_cached_tokens=None if cached is None else sum(b.tokens for b in planned[:cached]),
            turn=record.turns,
            opener=record.opener,
            templates=templates,
        )


def tree_key(request: Request) -> TreeKey:
    """The tree that a request belongs to."""
    return TreeKey(request.tenant, request.scope)


def distinct(stored: Sequence[StoredBlock]) -> tuple[BlockId, ...]:
    """The identities of a request's blocks, first copies only."""
    return tuple(dict.fromkeys(s.block_id for s in stored))


def _until_repeated(plan: Plan) -> list[PlannedBlock]:
    """The blocks that stand in full, up to the first that repeats one (as a plan in the given order may)."""
    head: dict[BlockId, PlannedBlock] = {}
    for block in plan.blocks:
        if block.location_annotation is not None:
            continue
        if block.block_id in head:
            break
        head[block.block_id] = block
    return list(head.values())
