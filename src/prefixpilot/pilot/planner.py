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
from prefixpilot.pilot.tail_learner import TailLearner
from prefixpilot.prompts import assemble, relevance_annotation
from prefixpilot.tails import Tail


class Planner:
    """Makes plans and keeps the index; knows nothing of conversations but the record that it is given."""

    def __init__(self, config: PilotConfig, count_tokens: Callable[[str], int] | None) -> None:
        self.config = config
        self.store = BlockStore(config.max_blocks, config.normalization, count_tokens)
        self.forest = Forest(config)
        self.tails = TailLearner(config)

    def propose(self, request: Request, record: ConversationRecord) -> Plan:
        """Order on turn 0, de-duplicate later (Algorithm 3). Changes nothing but the block store.

        The order is Algorithm 2's: the matched prefix, then the rest. What leads the rest is the tail policy's to say.
        """
        stored = self.intern(request)
        if record.turns:
            places = deduplicate([s.block_id for s in stored], record.labels)
            return self._plan(request, record, stored, range(len(stored)), places)
        key, length_of = tree_key(request), {s.block_id: s.tokens for s in stored}
        prefix = self.forest.match(key, tuple(length_of))
        taken = set(prefix)
        rest = [block for block in length_of if block not in taken]
        tail = Tail(prefix, rest, [length_of[block] for block in rest], self.forest.live(key))
        return self.with_prefix(request, record, stored, (*prefix, *self.tails.lead(key, tail)), cached=len(prefix))

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
        """``prefix`` first, then the rest by relevance; ``cached`` of its blocks are predicted to be in the cache."""
        ids = [s.block_id for s in stored]
        order = order_blocks(ids, prefix)
        places = deduplicate([ids[position] for position in order])
        return self._plan(request, record, stored, order, places, cached)

    def intern(self, request: Request) -> list[StoredBlock]:
        """What is known of each block, by position."""
        return self.store.intern_all(request.blocks)

    def insert(self, plan: Plan) -> None:
        """Insert a sent plan (turn 0), or grow the leaf of its conversation. The bounds are left to ``forest.trim``."""
        if plan.turn:
            if plan.opener is not None:
                self.forest.grow(plan.opener, len(plan.sent))
            return
        if not plan.blocks:
            return
        key = TreeKey(plan.tenant, plan.scope)
        sent, _, ranks, _, annotations, tokens = zip(*plan.blocks, strict=True)
        if annotations.count(None) < len(sent) or len(set(sent)) < len(sent):
            sent, _, ranks, _, _, tokens = zip(*_until_repeated(plan.blocks), strict=True)
        self.forest.insert(key, plan.request_id, sent, tokens, ranks)
        self.tails.learn(key, sent, tokens, ranks)

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
            predicted_cached_tokens=None if cached is None else sum([b.tokens for b in planned[:cached]]),
            turn=record.turns,
            opener=record.opener,
        )


def tree_key(request: Request) -> TreeKey:
    """The tree that a request belongs to."""
    return TreeKey(request.tenant, request.scope)


def distinct(stored: Sequence[StoredBlock]) -> tuple[BlockId, ...]:
    """The identities of a request's blocks, first copies only."""
    return tuple(dict.fromkeys(s.block_id for s in stored))


def _until_repeated(planned: Sequence[PlannedBlock]) -> list[PlannedBlock]:
    """The blocks that stand in full, up to the first that repeats one (as a plan in the given order may)."""
    in_full = [block for block in planned if block.location_annotation is None]
    head: dict[BlockId, PlannedBlock] = {}
    for block in in_full:
        if block.block_id in head:
            break
        head[block.block_id] = block
    return list(head.values())
