"""Plans for many requests that are known together (paper's offline and mixed modes), and their schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import BatchContext, BlockId, Plan, PlannedRequest, Request, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.index.node import common_prefix
from prefixpilot.pilot.forest import TreeKey
from prefixpilot.pilot.planner import Planner, distinct, tree_key
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


def plan_batch(planner: Planner, requests: Sequence[Request]) -> list[PlannedRequest]:
    """Plan and insert first turns, in execution order. ``position`` is the place in ``requests``."""
    regions: dict[TreeKey, int] = {}
    for request in requests:
        regions.setdefault(tree_key(request), len(regions))
    plans: dict[RequestId, Plan] = {}
    for key in regions:
        plans.update(_plan_tree(planner, key, [r for r in requests if tree_key(r) == key]))
    paths = _paths(planner, requests, regions)
    planner.forest.trim()
    schedule = schedule_by_group if planner.config.schedule == "paper" else schedule_depth_first
    return _predict([PlannedRequest(i, requests[i], plans[requests[i].request_id]) for i in schedule(paths)])


def _plan_tree(planner: Planner, key: TreeKey, requests: Sequence[Request]) -> dict[RequestId, Plan]:
    """Inherit from the tree what it offers; cluster the rest."""
    plans: dict[RequestId, Plan] = {}
    rest: list[Request] = []
    fresh = planner.forest.is_empty(key)
    for request in requests:
        if fresh and request.blocks:
            rest.append(request)
            continue
        plan = planner.propose(request, NEW_CONVERSATION)
        if request.blocks and not plan.prefix_len and planner.config.matcher != "paper":
            rest.append(request)
            continue
        planner.insert(plan)
        plans[request.request_id] = plan
    if rest:
        plans.update(_cluster(planner, key, rest))
    return plans


def _cluster(planner: Planner, key: TreeKey, requests: Sequence[Request]) -> dict[RequestId, Plan]:
    stored = {r.request_id: planner.intern(r) for r in requests}
    sort_keys = {s.block_id: s.sort_key for blocks in stored.values() for s in blocks}
    tokens = {s.block_id: s.tokens for blocks in stored.values() for s in blocks}
    contexts = []
    for request in requests:
        blocks = distinct(stored[request.request_id])
        contexts.append(BatchContext(request.request_id, blocks, tuple(tokens[b] for b in blocks)))
    planner.forest.build(key, contexts, sort_keys.__getitem__)
    planner.tails.remember_all(key, [context.blocks for context in contexts])
    return {
        r.request_id: planner.with_prefix(
            r, NEW_CONVERSATION, stored[r.request_id], planner.forest.context(r.request_id), cached=0
        )
        for r in requests
    }


def _paths(planner: Planner, requests: Sequence[Request], regions: dict[TreeKey, int]) -> list[SearchPath]:
    """Search paths whose first element tells trees apart too. Requests without blocks come last."""
    by_tree = {key: planner.forest.paths(key) for key in regions}
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
        cached = max(plan.prefix_len, common_prefix(last.get(key, ()), plan.sent))
        last[key] = plan.sent
        tokens = sum(b.tokens for b in plan.blocks[:cached])
        result.append(replace(entry, plan=replace(plan, prefix_len=cached, predicted_cached_tokens=tokens)))
    return result
