"""Order within one request (Algorithm 2): the inherited prefix, then the rest in the retriever's order."""

from __future__ import annotations

from collections.abc import Sequence

from prefixpilot.core import BlockId


def order_blocks(blocks: Sequence[BlockId], prefix: Sequence[BlockId]) -> tuple[int, ...]:
    """Positions of ``blocks`` in prompt order: a permutation of ``range(len(blocks))``. O(len).

    Args:
        blocks: the retriever's order; duplicates allowed.
        prefix: distinct blocks, each in ``blocks``: what the matched or parent node holds, in its order.

    A duplicate keeps its place among the rest, so that its first copy always stands before it.

    >>> order_blocks([2, 1, 4], [1, 2])
    (1, 0, 2)
    """
    first = dict(zip(blocks, range(len(blocks)), strict=True))
    if len(first) < len(blocks):
        first = dict(zip(reversed(blocks), reversed(range(len(blocks))), strict=True))
    head = [first[block] for block in prefix]
    taken = set(head)
    return (*head, *[position for position in range(len(blocks)) if position not in taken])
