"""Plans for single requests: composes the block store, the forest, ordering, de-duplication and prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from prefixpilot.annotations import block_names, estimate_annotation_tokens, free_number
from prefixpilot.blocks import BlockStore, StoredBlock
from prefixpilot.config import PilotConfig
from prefixpilot.constraints import UNCONSTRAINED
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import BlockId, Place, Plan, PlannedBlock, Request
from prefixpilot.dedup import deduplicate
from prefixpilot.index.node import common_prefix
from prefixpilot.ordering import Arranger, order_blocks
from prefixpilot.pilot.forest import Forest, TreeKey
from prefixpilot.pilot.gate import Gate
from prefixpilot.pilot.tail_learner import TailLearner
from prefixpilot.prompts import (
    Columns,
    assemble,
    assemble_in_full,
    full_columns,
    lengths_of,
    new_plan,
    relevance_annotation,
    texts_of,
)
from prefixpilot.tails import Tail

_ID = attrgetter("block_id")
_LABEL = attrgetter("label")
_LOCATION = attrgetter("location_annotation")
_TOKENS = attrgetter("tokens")
"""Columns of stored and planned blocks: ``map`` over these takes half the time of a comprehension."""


class Planner:
    """Makes plans and keeps the index; knows nothing of conversations but the record that it is given."""

    def __init__(self, config: PilotConfig, count_tokens: Callable[[str], int] | None) -> None:
        self.config = config
        self.store = BlockStore(config.max_blocks, config.normalization, count_tokens)
        self.forest = Forest(config)
        self.tails = TailLearner(config)
        self.gate = Gate()
        self._count_tokens = count_tokens

    def propose(
        self,
        request: Request,
        record: ConversationRecord,
        *,
        gated: bool = False,
        beside: Forest | None = None,
        lead: bool = True,
    ) -> Plan:
        """Order on turn 0, de-duplicate later (Algorithm 3). Changes nothing but the block store.

        The order is Algorithm 2's: the matched prefix, then the rest. What leads the rest is the tail policy's to say.

        Args:
            gated: as given where ordering has not paid on this route.
            beside: what other requests are about to send; the heavier prefix of the two is inherited.
            lead: whether the tail policy is asked; not so in batches.
        """
        stored = self.intern(request)
        arranger = self.arranger(request, stored)
        if record.turns:
            order = _given(stored, arranger)
            places = deduplicate([stored[position].block_id for position in order], record.labels)
            return self._plan(request, record, stored, tuple(order), places)
        guide = None if arranger is None else arranger.advance
        key, length_of = tree_key(request), lengths_of(stored)
        ids = tuple(length_of)
        prefix = self.forest.match(key, ids, guide)
        if beside is not None:
            sent_beside = beside.match(key, ids, guide)
            prefix = max(prefix, sent_beside, key=lambda blocks: sum(length_of[block] for block in blocks))
        wish = prefix
        if lead:
            for block in prefix:
                del length_of[block]
            tail = _tail((prefix, tuple(length_of), tuple(length_of.values()), self.forest.live(key)))
            wish = (*prefix, *self.tails.lead(key, tail))
        if arranger is None and len(ids) == len(stored):
            plan = self._plan(request, record, stored, order_blocks(ids, wish), None, len(prefix))
        else:
            plan = self.with_prefix(request, record, stored, wish, cached=len(prefix), arranger=arranger)
        return self.gated(request, record, plan) if gated else plan

    def as_given(self, request: Request, record: ConversationRecord) -> Plan:
        """The given order but for pinned blocks, every block in full, no annotation."""
        stored = self.intern(request)
        order = _given(stored, self.arranger(request, stored))
        plan = self._plan(request, record, stored, tuple(order), [Place.HERE] * len(stored))
        return plan if plan.order_annotation is None else replace(plan, order_annotation=None, annotation_tokens=0)

    def gated(self, request: Request, record: ConversationRecord, plan: Plan) -> Plan:
        """The plan of a first turn, or the given order where ordering has not paid on this route."""
        key = tree_key(request)
        given = self.as_given(request, record)
        cached = self._sent_before(given)
        tokens = sum(block.tokens for block in given.blocks[:cached])
        gain = (plan.net_cached_tokens or 0) - tokens
        if self.gate.is_open(key):
            return replace(plan, gain=gain)
        return replace(given, prefix_len=cached, predicted_cached_tokens=tokens, gain=gain)

    def given_cached(self, given: Plan) -> int:
        """Tokens of a plan in the given order that an earlier request began with."""
        return sum(block.tokens for block in given.blocks[: self._sent_before(given)])

    def _sent_before(self, given: Plan) -> int:
        return self.forest.sent_prefix(TreeKey(given.tenant, given.scope), tuple(b.block_id for b in given.head))

    def with_prefix(
        self,
        request: Request,
        record: ConversationRecord,
        stored: Sequence[StoredBlock],
        prefix: Sequence[BlockId],
        cached: int,
        arranger: Arranger | None = None,
    ) -> Plan:
        """``prefix`` first, then the rest by relevance, as near to that as ``arranger`` allows.

        ``cached`` of its blocks are predicted to be in the cache, as far as they then still lead.
        """
        ids = list(map(_ID, stored))
        order = order_blocks(ids, prefix)
        if arranger is None:
            return self.with_order(request, record, stored, order, cached)
        order = arranger.nearest(order)
        sent = tuple(ids[position] for position in order)
        return self.with_order(request, record, stored, order, common_prefix(tuple(prefix[:cached]), sent))

    def with_order(
        self,
        request: Request,
        record: ConversationRecord,
        stored: Sequence[StoredBlock],
        order: Sequence[int],
        cached: int,
    ) -> Plan:
        """These positions in this order; the first ``cached`` are predicted to be in the cache."""
        places = deduplicate([stored[position].block_id for position in order])
        return self._plan(request, record, stored, tuple(order), places, cached)

    def arranger(self, request: Request, stored: Sequence[StoredBlock]) -> Arranger | None:
        """What keeps the request's constraints; ``None`` if it has none."""
        limit = self.config.max_displacement
        if limit is None and request.constraints is UNCONSTRAINED:
            return None
        return Arranger.of(request.constraints, [s.block_id for s in stored], limit)

    def intern(self, request: Request) -> list[StoredBlock]:
        """What is known of each block, by position."""
        return self.store.intern_all(request.blocks)

    def learn(self, plan: Plan) -> None:
        """Take a plan as sent. The bounds are left to ``forest.trim``."""
        key = _tree_key((plan.tenant, plan.scope))
        if plan.gain is not None:
            self.gate.add(key, plan.gain)
        if plan.turn:
            if plan.opener is not None:
                self.forest.grow(plan.opener, len(plan.sent))
            return
        self.tails.learn(key, *insert(self.forest, key, plan))

    def _plan(
        self,
        request: Request,
        record: ConversationRecord,
        stored: Sequence[StoredBlock],
        order: tuple[int, ...],
        places: Sequence[Place] | None,
        cached: int | None = None,
    ) -> Plan:
        """``places`` in prompt order; ``None``: all distinct and in full."""
        templates = self.config.templates
        record = self._told_apart(record, stored)
        counted = places is None and self.config.labels == "counted"
        if counted:
            labels = block_names(record.next_number, len(order), templates)
            planned = assemble_in_full(stored, order, labels)
        else:
            places = (Place.HERE,) * len(order) if places is None else places
            planned = assemble(stored, order, places, record, templates, self.config.labels)
            labels = tuple(map(_LABEL, planned))
        annotation = relevance_annotation(order, labels, templates, self.config.annotate, distinct=counted)
        annotations = (annotation,) if places is None else (annotation, *map(_LOCATION, planned))
        return new_plan(
            request.request_id,
            request.tenant,
            request.scope,
            planned,
            annotation,
            cached or 0,  # prefix_len
            None if cached is None else sum(map(_TOKENS, planned[:cached])),  # predicted_cached_tokens
            record.turns,
            record.opener,
            templates,
            self._annotation_tokens(annotations),
            None,  # gain
            record.next_number,  # first_number
        )

    def _told_apart(self, record: ConversationRecord, stored: Sequence[StoredBlock]) -> ConversationRecord:
        """The record, counted on from a number none of whose labels stands in the text of a block."""
        texts = texts_of(stored)
        if not texts:
            return record
        first = free_number(record.next_number, len(stored), texts, self.config.templates)
        return record if first == record.next_number else replace(record, next_number=first)

    def _annotation_tokens(self, annotations: Sequence[str | None]) -> int:
        tokens = 0
        for text in annotations:
            if text is not None:
                tokens += self._length_of(text)
        return tokens

    def _length_of(self, annotation: str) -> int:
        if self._count_tokens is not None:
            return self._count_tokens(annotation)
        return estimate_annotation_tokens(annotation, self.config.templates)


def columns(blocks: Sequence[PlannedBlock]) -> Columns:
    """The columns of blocks that are distinct and stand in full."""
    if not blocks:
        return Columns()
    ids, _, ranks, _, _, tokens = zip(*blocks, strict=True)
    return Columns(ids, tokens, ranks)


def head_columns(plan: Plan) -> Columns:
    """The columns of ``plan.head``: of most plans, whose blocks are all distinct and in full, at a glance."""
    found = full_columns(plan.blocks)
    return columns(plan.head) if found is None else found


def insert(forest: Forest, key: TreeKey, plan: Plan) -> Columns:
    """Insert what a first turn sends: the blocks that another prompt can share. Returns all that stand in full."""
    sent = head_columns(plan)
    if sent.ids:
        forest.insert(key, plan.request_id, sent.ids, sent.tokens, sent.ranks)
    return sent if len(sent.ids) == len(plan.blocks) else in_full(plan)


def in_full(plan: Plan) -> Columns:
    """The distinct blocks of a plan that stand in full."""
    first = {b.block_id: b for b in reversed(plan.blocks) if b.location_annotation is None}
    return columns(tuple(first.values()))


def tree_key(request: Request) -> TreeKey:
    """The tree that a request belongs to."""
    return _tree_key((request.tenant, request.scope))


_tail = partial(tuple.__new__, Tail)
_tree_key = partial(tuple.__new__, TreeKey)
"""Named tuples of a tuple, without the Python frame."""


def distinct(stored: Sequence[StoredBlock]) -> tuple[BlockId, ...]:
    """The identities of a request's blocks, first copies only."""
    return tuple(dict.fromkeys(s.block_id for s in stored))


def _given(stored: Sequence[StoredBlock], arranger: Arranger | None) -> Sequence[int]:
    return range(len(stored)) if arranger is None else arranger.given
