"""The bound on what any order of a workload's blocks and any schedule of its requests can save."""

from __future__ import annotations

from typing import Final, NamedTuple

from prefixpilot.blocks import BlockStore
from prefixpilot.core import BatchContext, BlockId, TenantId
from prefixpilot.workloads import Workload

MAX_REQUESTS: Final = 20_000
"""The bound takes time quadratic in the requests (20,000: some seconds); for more it is not computed."""


class _Copy(NamedTuple):
    """What must be equal for KV reuse. The n-th copy of a block in a context is a block of its own."""

    tenant: TenantId
    scope: str
    block_id: BlockId
    copy: int


def workload_bound(workload: Workload, max_requests: int = MAX_REQUESTS) -> int | None:
    """Tokens that a cache of any size, empty at the start, can serve at most, whatever the order and the schedule.

    Independent requests, blocks only. ``None`` (not computed) for more than ``max_requests``. O(requests^2) time,
    O(blocks) memory.
    """
    from prefixpilot.planners.bound import spanning_forest_bound

    if len(workload.requests) > max_requests:
        return None
    store = BlockStore(sum(len(entry.request.blocks) for entry in workload.requests) + 1)
    number: dict[_Copy, int] = {}
    contexts = []
    for entry in workload.requests:
        request, copies, lengths = entry.request, dict[BlockId, int](), dict[int, int]()
        for stored in map(store.intern, request.blocks):
            copies[stored.block_id] = copies.get(stored.block_id, 0) + 1
            copy = _Copy(request.tenant, request.scope, stored.block_id, copies[stored.block_id])
            lengths[number.setdefault(copy, len(number))] = stored.tokens
        contexts.append(BatchContext(request.request_id, tuple(lengths), tuple(lengths.values())))
    return spanning_forest_bound(contexts)
