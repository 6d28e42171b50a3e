"""A node of the context index."""

from __future__ import annotations

from collections.abc import Iterator

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
        start: number of leading blocks equal to the parent's. In a tree grown by prefixes this is all of the parent's.
        rest: its own blocks behind the first of them, so that a look-up need not count.
        total: sum of ``tokens``.
        parent: ``None`` for the root (and for a node that has left the tree).
        children: by a key that rises in order of arrival; a child's position is its place in this order.
        branches: the children by their first own block; ``None`` for those that have none.
        slot: this node's key in ``parent.children``.
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
        "parent",
        "request_ids",
        "rest",
        "slot",
        "start",
        "tokens",
        "total",
    )

    def __init__(self, blocks: tuple[BlockId, ...], tokens: tuple[int, ...], distance: float = 0.0) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.distance = distance
        self.total = sum(tokens)
        self.start = 0
        self.rest = blocks[1:]
        self.frequency = 0
        self.length = len(blocks)
        self.parent: Node | None = None
        self.children: dict[int, Node] = {}
        self.branches: dict[BlockId | None, list[Node]] = {}
        self.slot = 0
        self._next_slot = 0
        self.request_ids: dict[RequestId, None] = {}

    @property
    def is_leaf(self) -> bool:
        """Whether it stands for a context that was sent, not for a prefix shared by several."""
        return not self.children

    @property
    def own_tokens(self) -> int:
        """Tokens of the blocks beyond the parent's."""
        return sum(self.tokens[self.start :])

    def attach(self, child: Node, slot: int | None = None) -> None:
        """Make ``child`` a child: at the end, or in the place of the child at ``slot`` (see :meth:`replace`).

        O(common prefix).
        """
        if slot is None:
            slot = self._next_slot
            self._next_slot += 1
        child.parent = self
        child.slot = slot
        blocks = child.blocks
        start = child.start = common_prefix(self.blocks, blocks)
        child.rest = blocks[start + 1 :]
        self.children[slot] = child
        branch = blocks[start] if start < len(blocks) else None
        siblings = self.branches.get(branch)
        if siblings is None:
            self.branches[branch] = [child]
        else:
            siblings.append(child)

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
        siblings = self.branches[branch]
        if len(siblings) == 1:
            del self.branches[branch]
        else:
            siblings.remove(child)
        child.parent = None

    @property
    def branch(self) -> BlockId | None:
        """First block beyond the parent's, or ``None``."""
        return self.blocks[self.start] if self.start < len(self.blocks) else None

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


def common_prefix(first: tuple[BlockId, ...], second: tuple[BlockId, ...]) -> int:
    """Length of the shared prefix of two contexts."""
    whole = min(len(first), len(second))
    if first[:whole] == second[:whole]:
        return whole
    length = 0
    while first[length] == second[length]:
        length += 1
    return length
