"""Four ways to find a context's place in the tree. None changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from prefixpilot.core import BlockId
from prefixpilot.distance import overlap
from prefixpilot.index.node import Node, common_prefix

_NEAR = 1e-9

Guide: TypeAlias = Callable[[Any, BlockId], Any]
"""Whether a block may come next: from the state so far (``None`` at the start) to the state with it, or ``None``."""


class Match(NamedTuple):
    """Where a context belongs.

    Attributes:
        node: the best matching node; the root if nothing matches.
        prefix: what the context inherits, in the order in which the cache holds it; each is one of its blocks.
        splits: insertion puts an internal node holding ``prefix`` in the place of ``node``, above it; otherwise the
            context becomes a child of ``node``.
    """

    node: Node
    prefix: tuple[BlockId, ...]
    splits: bool


def search(root: Node, blocks: Sequence[BlockId], alpha: float) -> Match:
    """Algorithm 1: from the root, enter the overlapping child at the smallest distance, again and again.

    Stops at a leaf, where no child overlaps, or where all of two or more children are equally distant (compared without
    rounding). Ties among nearest children go to the first. The context's positions in Eq. 1 are those it would be sent
    with from the node reached so far: that node's blocks first, then the rest by relevance (Algorithm 2). In the given
    order the paper's own example would be a tie (see docs/decisions). O(fan-out x context length) per level.
    """
    wanted = dict.fromkeys(blocks)
    node = root
    while node.children:
        inherited = [block for block in node.blocks if block in wanted]
        as_sent = dict.fromkeys([*inherited, *blocks])
        nearest = _nearest_child(node, {block: place for place, block in enumerate(as_sent)}, alpha)
        if nearest is None:
            break
        node = nearest
    shared = tuple(block for block in node.blocks if block in wanted)
    return Match(node, shared, splits=node.is_leaf and node.parent is not None)


def _nearest_child(node: Node, positions: dict[BlockId, int], alpha: float) -> Node | None:
    measured = [(overlap(positions, child.blocks), child) for child in node.children.values()]
    overlapping = [(o, child) for o, child in measured if o.shared]
    if not overlapping:
        return None
    bound = min(o.distance(alpha) for o, _ in overlapping) + _NEAR
    near = [(o.exact(alpha), child) for o, child in overlapping if o.distance(alpha) <= bound]
    smallest = min(exact for exact, _ in near)
    nearest = [child for exact, child in near if exact == smallest]
    if len(nearest) == len(measured) >= 2:
        return None
    return nearest[0]


def locate(root: Node, blocks: tuple[BlockId, ...]) -> Match:
    """The longest prefix of ``blocks``, as a sequence, that the tree holds. O(nodes on such paths x context length)."""
    best, longest = root, 0
    stack = [root]
    while stack:
        node = stack.pop()
        depth = len(node.blocks)
        if depth == len(blocks):
            continue
        child = node.branches.get(blocks[depth])
        while child is not None:
            matched = depth + 1 if child.own == 1 else common_prefix(child.blocks, blocks)
            if matched > longest:
                best, longest = child, matched
            if child.branches and matched == len(child.blocks):
                stack.append(child)
            child = child.twin
    return matched_at(best, longest)


def match_prefix(root: Node, blocks: Sequence[BlockId]) -> Match:
    """The path of most tokens among all paths of the tree whose blocks are all in ``blocks``: exact.

    Follows only children whose first own block is in the context, so that every prefix it returns has been sent just
    so. Among equally heavy paths those that begin with the more relevant block win, and of these the first found.
    O(nodes on such paths x context length). Most of its time goes to memory that is not in the core's cache, so it
    looks at as little of each node as it can.
    """
    rank = {block: place for place, block in enumerate(blocks)}
    width, backward = len(rank), list(reversed(rank))
    best, best_matched, best_tokens = root, 0, 0
    stack = [root.branches[block] for block in reversed(_shared_branches(root, rank))]
    while stack:
        node = stack.pop()
        if node.twin is not None:
            stack.append(node.twin)
        if node.own > 1:
            matched = _matched(node, rank)
            if matched < len(node.blocks):
                tokens = sum(node.tokens[:matched])
                if tokens > best_tokens:
                    best, best_matched, best_tokens = node, matched, tokens
                continue
        if node.total > best_tokens:
            best, best_matched, best_tokens = node, len(node.blocks), node.total
        branches = node.branches
        if len(branches) > width:
            stack.extend([branches[block] for block in backward if block in branches])
        elif branches:
            _push(stack, branches, rank)
    return matched_at(best, best_matched)


def _push(stack: list[Node], branches: dict[BlockId | None, Node], rank: dict[BlockId, int]) -> None:
    """The children that begin with one of the context's blocks, the first on top: mostly one or none.

    Other children are not touched: each would be a line of memory that the core's cache lacks.
    """
    below = len(stack)
    for block in branches:
        if block in rank:
            stack.append(branches[block])  # noqa: PERF401 - mostly one or none: a list of them takes longer
    if len(stack) > below + 1:
        stack[below:] = stack[: below - 1 : -1] if below else stack[::-1]


def _matched(node: Node, rank: dict[BlockId, int]) -> int:
    """Length of its prefix that is made of the context's blocks; the first own block is one of them."""
    matched, blocks = node.start + 1, node.blocks
    while matched < len(blocks) and blocks[matched] in rank:
        matched += 1
    return matched


def match_guided(root: Node, blocks: Sequence[BlockId], guide: Guide) -> Match:
    """As :func:`match_prefix`, among those paths every step of which ``guide`` allows."""
    rank = {block: place for place, block in enumerate(blocks)}
    best, best_matched, best_tokens = root, 0, 0
    stack: list[tuple[Node, int, Any]] = [(root, 0, None)]
    while stack:
        node, above, state = stack.pop()
        below = []
        for block in _shared_branches(node, rank):
            for child in node.beginning_with(block):
                matched, tokens, here = child.start, above, state
                own = child.blocks
                while matched < len(own) and own[matched] in rank:
                    after = guide(here, own[matched])
                    if after is None:
                        break
                    here = after
                    tokens += child.tokens[matched]
                    matched += 1
                if tokens > best_tokens:
                    best, best_matched, best_tokens = child, matched, tokens
                if matched == len(own) and child.children:
                    below.append((child, tokens, here))
        stack.extend(reversed(below))
    return matched_at(best, best_matched)


def matched_at(node: Node, matched: int) -> Match:
    """A match of the first ``matched`` blocks of a node: below it, if it is an internal node matched whole."""
    whole = matched == len(node.blocks) and (node.parent is None or not node.is_leaf)
    return _match((node, node.blocks[:matched], not whole))


_match = partial(tuple.__new__, Match)
"""``Match`` of a tuple, without the Python frame."""


def _shared_branches(node: Node, rank: dict[BlockId, int]) -> list[BlockId]:
    """The context's blocks that begin a child of ``node``, the most relevant first."""
    branches = node.branches
    if len(branches) <= len(rank):
        shared = [block for block in branches if block in rank]
        if len(shared) > 1:
            shared.sort(key=rank.__getitem__)
        return shared
    return [block for block in rank if block in branches]
