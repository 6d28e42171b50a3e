"""A node of the context index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prefixpilot.core import BlockId, RequestId


class Node:
    """A context that the cache holds; the path from the root is its prefix.

    ::

        blocks   [ b0 b1 b2 | b3 b4 ]      tokens   [ 9 7 8 | 5 6 ]
                   parent's   own                              ^ per block
                              ^ start

    Attributes:
        blocks: all blocks from the root, in prompt order; distinct.
        tokens: their lengths, in parallel.
        own_tokens: tokens of the blocks beyond the parent's.
        start: number of leading blocks equal to the parent's. In a tree grown by prefixes this is all of the parent's.
        own: number of blocks beyond the parent's.
        total: sum of ``tokens``.
        parent: ``None`` for the root (and for a node that has left the tree).
        children: by a key that rises in order of arrival; a child's position is its place in this order.
        branches: of the children that begin with the same own block the first, by that block; ``None`` for those that
            have none.
        twin: the next sibling that begins with the same own block. In a tree grown by prefixes there is none.
        slot: this node's key in ``parent.children``.
        number: what it is called in the mirror of its tree, if that has one (see :mod:`prefixpilot.index.mirror`).
        request_ids: live requests with exactly this context; only leaves have any, as an ordered set.
        frequency: how many requests this node has served.
        distance: Eq. 1 distance at which Algorithm 4 made the node; 0 for any other.
        length: blocks held in the cache along this leaf's conversation; grows with its turns.
    """

    __slots__ = (
        "_next_slot",
        "blocks",
        "branches",
        "children",
        "distance",
        "frequency",
        "length",
        "number",
        "own",
        "own_tokens",
        "parent",
        "request_ids",
        "slot",
        "start",
        "tokens",
        "total",
        "twin",
    )

    def __init__(self, blocks: tuple[BlockId, ...], tokens: tuple[int, ...], distance: float = 0.0) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.distance = distance
        self.total = self.own_tokens = sum(tokens)
        self.start = 0
        self.own = self.length = len(blocks)
        self.frequency = 0
        self.parent: Node | None = None
        self.twin: Node | None = None
        self.children = _NO_CHILDREN
        self.branches = _NO_BRANCHES
        self.slot = self.number = 0
        self._next_slot = 0
        self.request_ids: dict[RequestId, None] = {}

    @property
    def is_leaf(self) -> bool:
        """Whether it stands for a context that was sent, not for a prefix shared by several."""
        return not self.children

    def attach(self, child: Node, slot: int | None = None) -> None:
        """Make ``child`` a child: at the end, or in the place of the child at ``slot`` (see :meth:`replace`).

        O(common prefix).
        """
        if slot is None:
            slot = self._next_slot
            self._next_slot += 1
        child.parent = self
        child.slot = slot
        if not self.children:
            self.children, self.branches = {}, {}
        blocks = child.blocks
        start = child.start = common_prefix(self.blocks, blocks)
        child.own = len(blocks) - start
        child.own_tokens = sum(child.tokens[start:]) if start else child.total
        self.children[slot] = child
        first = self.branches.setdefault(blocks[start] if child.own else None, child)
        if first is not child:
            *_, last = first.and_twins()
            last.twin = child

    def detach(self, child: Node) -> None:
        """Take ``child`` out; later siblings move up. O(siblings with the same first own block)."""
        del self.children[child.slot]
        self._forget_branch(child)

    def replace(self, old: Node, new: Node) -> None:
        """Put ``new`` in the place of the child ``old``, at the same position. As ``detach`` and ``attach``."""
        self._forget_branch(old)
        self.attach(new, old.slot)

    def _forget_branch(self, child: Node) -> None:
        branch = child.branch
        first = self.branches[branch]
        if first is not child:
            before = next(node for node in first.and_twins() if node.twin is child)
            before.twin = child.twin
        elif child.twin is None:
            del self.branches[branch]
        else:
            self.branches[branch] = child.twin
        child.parent = child.twin = None

    @property
    def branch(self) -> BlockId | None:
        """First block beyond the parent's, or ``None``."""
        return self.blocks[self.start] if self.start < len(self.blocks) else None

    def beginning_with(self, block: BlockId | None) -> Iterator[Node]:
        """The children whose first own block is ``block``, oldest first; for ``None`` those without own blocks."""
        first = self.branches.get(block)
        return iter(()) if first is None else first.and_twins()

    def and_twins(self) -> Iterator[Node]:
        """This node and the later siblings that begin with the same own block."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.twin

    def ancestors(self) -> Iterator[Node]:
        """This node and those above it, the root excluded, upward."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def position(self) -> int:
        """Index among the parent's children. O(siblings)."""
        assert self.parent is not None
        return next(i for i, slot in enumerate(self.parent.children) if slot == self.slot)


_NO_CHILDREN: Final[dict[int, Node]] = {}
_NO_BRANCHES: Final[dict[BlockId | None, Node]] = {}
"""What all nodes without children have in common: nothing. Never changed; two empty dicts a leaf would be 128 bytes."""


def common_prefix(first: tuple[BlockId, ...], second: tuple[BlockId, ...]) -> int:
    """Length of the shared prefix of two contexts."""
    whole = min(len(first), len(second))
    if first[:whole] == second[:whole]:
        return whole
    length = 0
    while first[length] == second[length]:
        length += 1
    return length
