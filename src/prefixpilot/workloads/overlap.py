"""What the contexts of a workload have in common, in a few numbers with names.

They say what a generated workload is like, and beside which real one it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prefixpilot.blocks import block_identity
from prefixpilot.core import BlockId
from prefixpilot.workloads.base import Workload


class Overlap(NamedTuple):
    """Overlap statistics. Shares are of blocks, not of tokens, and in [0, 1].

    Attributes:
        requests: in all.
        blocks_per_request: distinct ones, on average.
        distinct_blocks: of the workload.
        seen_before: of a request's blocks, those that some earlier request held: the mean over requests.
        seen_in_session: the same of earlier requests of its own session.
        nearest_overlap: of a request's blocks, those that the most similar one earlier request held: the mean.
        first_block_again: share of requests whose first block was the first of an earlier one.
        top_tenth: share of all uses that the most used tenth of the blocks has.
    """

    requests: int
    blocks_per_request: float
    distinct_blocks: int
    seen_before: float
    seen_in_session: float
    nearest_overlap: float
    first_block_again: float
    top_tenth: float


def overlap_of(workload: Workload) -> Overlap:
    """Its statistics. O(sum over blocks of uses squared)."""
    contexts = [tuple(dict.fromkeys(map(block_identity, entry.request.blocks))) for entry in workload.requests]
    uses = Counter(block for context in contexts for block in context)
    largest = sorted(uses.values(), reverse=True)[: -(-len(uses) // 10)]
    rows = list(_shares(contexts, [entry.session_id for entry in workload.requests]))
    before, in_session, nearest = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    firsts = [context[0] for context in contexts if context]
    return Overlap(
        len(contexts),
        sum(uses.values()) / len(contexts),
        len(uses),
        before,
        in_session,
        nearest,
        (len(firsts) - len(set(firsts))) / len(contexts),
        sum(largest) / max(1, sum(uses.values())),
    )


class _Shares(NamedTuple):
    before: float
    in_session: float
    nearest: float


def _shares(contexts: Sequence[Sequence[BlockId]], sessions: Sequence[str]) -> Iterator[_Shares]:
    holders: dict[BlockId, list[int]] = {}
    for number, context in enumerate(contexts):
        shared = Counter(holder for block in context for holder in holders.get(block, ()))
        again = sum(block in holders for block in context)
        own = sum(any(sessions[h] == sessions[number] for h in holders.get(block, ())) for block in context)
        size = max(1, len(context))
        yield _Shares(again / size, own / size, max(shared.values(), default=0) / size)
        for block in context:
            holders.setdefault(block, []).append(number)
