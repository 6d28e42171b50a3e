"""Plans for many requests that are known together (paper's offline and mixed modes), and their schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import BlockId, Plan, PlannedRequest, Request, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.index.node import common_prefix
from prefixpilot.pilot.forest import Forest, TreeKey
from prefixpilot.pilot.planner import Planner, in_full, insert, tree_key
from prefixpilot.pilot.tail_learner import WINDOW
from prefixpilot.pilot.units import Units, Wish
from prefixpilot.scheduling import SearchPath, schedule_by_group, schedule_depth_first


def check_distinct_ids(requests: Sequence[Request]) -> None:
    """Raise ``InvalidRequestError`` if two requests of a batch have the same id."""
    seen: dict[RequestId, int] = {}
    for position, request in enumerate(requests):
        first = seen.setdefault(request.request_id, position)
        if first != position:
            raise InvalidRequestError(
                f"requests[{position}].request_id",
                f"{request.request_id!r} is that of requests[{first}] too",
                "give each request its own id",
            )


class Progress:
    """Tells how many more requests have been planned; in all, exactly as many as there are."""

    def __init__(self, on_planned: Callable[[int], object] | None) -> None:
        self._on_planned = on_planned
        self._told = 0

    def add(self, requests: int) -> None:
        """So many more."""
        if self._on_planned is not None and requests > 0:
            self._told += requests
            self._on_planned(requests)

    def reach(self, requests: int) -> None:
        """So many in all: equal contexts are planned as one, and some ways of planning tell nothing."""
        self.add(requests - self._told)


def plan_batch(
    planner: Planner, requests: Sequence[Request], progress: Progress, into: Forest | None = None
) -> list[PlannedRequest]:
    """Plan and insert first turns, in execution order. ``position`` is the place in ``requests``.

    Args:
        into: a forest of its own for what the batch sends; without it that goes to the planner's.
    """
    batch = _Batch(planner, planner.forest if into is None else into, progress)
    by_key: dict[TreeKey, list[Request]] = {}
    for request in requests:
        by_key.setdefault(tree_key(request), []).append(request)
    plans: dict[RequestId, Plan] = {}
    for key, sharers in by_key.items():
        plans.update(batch.plan_tree(key, sharers))
        progress.reach(len(plans))
    paths = _paths(batch.forest, requests, {key: region for region, key in enumerate(by_key)})
    if into is None:
        planner.forest.trim()
    schedule = schedule_by_group if planner.config.schedule == "paper" else schedule_depth_first
    return _predict([PlannedRequest(i, requests[i], plans[requests[i].request_id]) for i in schedule(paths)])


class _Batch(NamedTuple):
    """How a batch is planned.

    Attributes:
        forest: what the batch sends goes there.
    """

    planner: Planner
    forest: Forest
    progress: Progress

    def plan_tree(self, key: TreeKey, requests: Sequence[Request]) -> dict[RequestId, Plan]:
        """Inherit from the tree what it offers; cluster the rest."""
        plans: dict[RequestId, Plan] = {}
        rest: list[Request] = []
        fresh = self.planner.forest.is_empty(key)
        for request in requests:
            if fresh and request.blocks:
                rest.append(request)
                continue
            plan = self._propose(request)
            if request.blocks and not plan.prefix_len and self.planner.config.matcher != "paper":
                rest.append(request)
                continue
            insert(self.forest, key, plan)
            plans[request.request_id] = plan
            self.progress.add(1)
        if rest:
            plans.update(self._cluster(key, rest))
        if self.forest is self.planner.forest:
            self._learn(key, [plans[request.request_id] for request in requests if request.blocks], fresh=fresh)
        return plans

    def _learn(self, key: TreeKey, plans: Sequence[Plan], *, fresh: bool) -> None:
        """Requests that came upon a warm tree are tried as if one by one; a batch from nothing says little of that."""
        tails = self.planner.tails
        if fresh:
            tails.remember_all(key, [tuple(dict.fromkeys(plan.sent)) for plan in plans])
            return
        for plan in plans[-WINDOW:]:
            tails.learn(key, *in_full(plan))

    def _propose(self, request: Request) -> Plan:
        beside = None if self.forest is self.planner.forest else self.forest
        return self.planner.propose(request, NEW_CONVERSATION, beside=beside, lead=False)

    def _cluster(self, key: TreeKey, requests: Sequence[Request]) -> dict[RequestId, Plan]:
        """Cluster what may share a prefix: contexts that begin with the same pinned blocks, or with none."""
        parts: dict[tuple[BlockId, ...], list[Wish]] = {}
        alone: list[Request] = []
        for request in requests:
            wish = Wish.of(self.planner, request)
            if wish.arranger is not None and (self.planner.config.matcher == "paper" or not wish.arranger.units.middle):
                alone.append(request)
            else:
                parts.setdefault(wish.beginning, []).append(wish)
        plans: dict[RequestId, Plan] = {}
        for wishes in parts.values():
            plans.update(self._build(key, wishes))
        for request in alone:
            plans[request.request_id] = self._propose(request)
            insert(self.forest, key, plans[request.request_id])
        return plans

    def _build(self, key: TreeKey, wishes: Sequence[Wish]) -> dict[RequestId, Plan]:
        units = Units(wishes)
        contexts = [units.context(wish) for wish in wishes]
        self.forest.build(key, contexts, units.sort_key, units.sent, self.progress.add)
        plans = {}
        for wish in wishes:
            request_id = wish.request.request_id
            order = units.orders.get(request_id)
            if order is None:
                prefix = self.forest.context(request_id)
                plan = self.planner.with_prefix(wish.request, NEW_CONVERSATION, wish.stored, prefix, cached=0)
            else:
                plan = self.planner.with_order(wish.request, NEW_CONVERSATION, wish.stored, order, cached=0)
            plans[request_id] = plan
        return plans


def _paths(forest: Forest, requests: Sequence[Request], regions: dict[TreeKey, int]) -> list[SearchPath]:
    """Search paths whose first element tells trees apart too. Requests without blocks come last."""
    by_tree = {key: forest.paths(key) for key in regions}
    nowhere: SearchPath = ((len(regions), 0),)
    result = []
    for request in requests:
        key = tree_key(request)
        path = by_tree[key].get(request.request_id)
        result.append(nowhere if path is None else ((regions[key], path[0]), *path[1:]))
    return result


def _predict(schedule: list[PlannedRequest]) -> list[PlannedRequest]:
    """Each request also hits what it shares with the one before it."""
    result: list[PlannedRequest] = []
    last: dict[TreeKey, tuple[BlockId, ...]] = {}
    for entry in schedule:
        key, plan = tree_key(entry.request), entry.plan
        head = tuple(block.block_id for block in plan.head)
        cached = max(plan.prefix_len, common_prefix(last.get(key, ()), head))
        last[key] = head
        tokens = sum(b.tokens for b in plan.blocks[:cached])
        result.append(replace(entry, plan=replace(plan, prefix_len=cached, predicted_cached_tokens=tokens)))
    return result
