"""The context index: one tree over the ordered contexts that were sent (paper 4.1 and 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixpilot.core import BlockId, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.index.match import Guide, Match, locate, match_guided, match_prefix, matched_at, search
from prefixpilot.index.mirror import Mirror
from prefixpilot.index.node import Node

__all__ = ["ContextIndex", "Match"]


class ContextIndex:
    """A tree whose leaves are the live contexts and whose internal nodes are the prefixes they share.

    Grown with :meth:`insert` alone, every node's blocks are a prefix of its children's, so that a path from the root is
    by construction a prefix that the engine has seen. :meth:`insert_at` with a match of :meth:`search` follows the
    paper to the letter, where the node made under a matched leaf holds a set intersection that need not be a prefix.

    * Equal contexts share one leaf, whose frequency rises. A live context always has a leaf of its own.
    * An internal node has two children or more: one that eviction leaves with a single child is replaced by it, since
      the child says all that it said.
    * Search paths are computed from the tree when asked for, never stored.

    A compiled build keeps a mirror of a tree that is grown by prefixes, which finds the same in less time.

    Memory is O(contexts x blocks per context). Not thread-safe: one owner.
    """

    def __init__(self, alpha: float = 0.001) -> None:
        self.alpha = alpha
        self.root = Node((), ())
        self.total_tokens = 0
        self._leaves: dict[tuple[BlockId, ...], Node] = {}
        self._leaf_of: dict[RequestId, Node] = {}
        self._mirror = Mirror(self.root)

    def __len__(self) -> int:
        """Number of live requests."""
        return len(self._leaf_of)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The live contexts, oldest first."""
        return tuple(self._leaves.values())

    # -- look-up: nothing changes

    def search(self, blocks: Sequence[BlockId]) -> Match:
        """Algorithm 1 (see :func:`prefixpilot.index.match.search`)."""
        return search(self.root, blocks, self.alpha)

    def match_prefix(self, blocks: Sequence[BlockId], guide: Guide | None = None) -> Match:
        """The heaviest sent prefix made of ``blocks`` (see :func:`prefixpilot.index.match.match_prefix`)."""
        if guide is not None:
            return match_guided(self.root, blocks, guide)
        kernel = self._mirror.kernel
        return match_prefix(self.root, blocks) if kernel is None else matched_at(*kernel.match(blocks))

    def locate(self, blocks: tuple[BlockId, ...]) -> Match:
        """The longest prefix of ``blocks``, as they stand (see :func:`prefixpilot.index.match.locate`)."""
        kernel = self._mirror.kernel
        return locate(self.root, blocks) if kernel is None else matched_at(*kernel.locate(blocks))

    def leaf(self, request_id: RequestId) -> Node:
        """The leaf of a live request.

        Raises:
            InvalidRequestError: it is not live.
        """
        try:
            return self._leaf_of[request_id]
        except KeyError:
            raise InvalidRequestError("request_id", f"{request_id!r} is not live", "insert it first") from None

    def path(self, node: Node) -> tuple[int, ...]:
        """Search path of a node: positions of children from the root. O(height x fan-out)."""
        return tuple(reversed([n.position() for n in node.ancestors()]))

    def paths(self) -> dict[RequestId, tuple[int, ...]]:
        """Search paths of all live requests, depth first, in one walk. O(nodes x height)."""
        result: dict[RequestId, tuple[int, ...]] = {}
        stack: list[tuple[Node, tuple[int, ...]]] = [(self.root, ())]
        while stack:
            node, path = stack.pop()
            result.update(dict.fromkeys(node.request_ids, path))
            children = list(enumerate(node.children.values()))
            stack.extend((child, (*path, i)) for i, child in reversed(children))
        return result

    def traverse(self, path: Sequence[int]) -> Node:
        """The node at the end of a search path. O(height x fan-out).

        Raises:
            InvalidRequestError: the path leaves the tree.
        """
        node = self.root
        for depth, position in enumerate(path):
            children = tuple(node.children.values())
            if not 0 <= position < len(children):
                raise InvalidRequestError(
                    f"path[{depth}]", f"is {position}, of {len(children)} children", "compute the path anew"
                )
            node = children[position]
        return node

    # -- change

    def insert(self, blocks: tuple[BlockId, ...], tokens: tuple[int, ...], request_id: RequestId) -> Node:
        """Insert a context that was sent, at its longest prefix in the tree. Returns its leaf.

        Args:
            blocks: distinct, not empty, in the order sent.
            tokens: their lengths, in parallel.
            request_id: not live.

        O(context length), and O(1) if it matches an internal node whole.
        """
        equal = self._leaves.get(blocks)
        match = self.locate(blocks) if equal is None else Match(equal, blocks, splits=False)
        return self.insert_at(match, blocks, tokens, request_id)

    def insert_at(
        self, match: Match, blocks: tuple[BlockId, ...], tokens: tuple[int, ...], request_id: RequestId
    ) -> Node:
        """Insert at a match found since the last change. Arguments and errors as :meth:`insert`."""
        self._check_new(blocks, tokens, request_id)
        leaf = self._leaves.get(blocks)
        if leaf is None:
            leaf = Node(blocks, tokens)
            self._place(match, leaf)
            self._leaves[blocks] = leaf
        self._assign(leaf, request_id)
        return leaf

    def adopt(self, tops: Iterable[Node], assigned: Iterable[tuple[Node, RequestId]]) -> None:
        """Hang finished subtrees under the root (Algorithm 4) and assign requests to their leaves.

        No context of theirs may be in the tree already. O(nodes).
        """
        for top in tops:
            self.root.attach(top)
            nodes = _below(top)
            self.total_tokens += sum(n.own_tokens for n in nodes)
            for node in nodes:
                self._mirror.attached(node)
        for leaf, request_id in assigned:
            self._check_new(leaf.blocks, leaf.tokens, request_id)
            self._leaves[leaf.blocks] = leaf
            self._assign(leaf, request_id)

    def evict(self, request_ids: Iterable[RequestId]) -> int:
        """Forget requests that the engine evicted; returns how many were live. O(height) each.

        A leaf goes with its last request; parents that are left empty go too, and one left with a single child is
        replaced by it.
        """
        known = 0
        for request_id in request_ids:
            leaf = self._leaf_of.pop(request_id, None)
            if leaf is None:
                continue
            known += 1
            del leaf.request_ids[request_id]
            if not leaf.request_ids:
                del self._leaves[leaf.blocks]
                self._prune(leaf)
        return known

    def shorten(self, request_id: RequestId, blocks: int) -> bool:
        """Of a live request only the first ``blocks`` blocks are still cached, 1 or more; whether that was news.

        Its leaf moves up to where these blocks stand, and frequencies stay what they were. O(height + blocks).

        Raises:
            InvalidRequestError: it is not live.
        """
        leaf = self.leaf(request_id)
        if blocks >= len(leaf.blocks):
            return False
        self.evict([request_id])
        above = self.insert(leaf.blocks[:blocks], leaf.tokens[:blocks], request_id).parent
        while above is not None and above.parent is not None:
            above.frequency -= 1
            above = above.parent
        return True

    def grow(self, path: Sequence[int], blocks: int) -> Node:
        """Traverse to a leaf and note that its conversation has grown (paper 4.2). O(height x fan-out)."""
        return self.grow_leaf(self.traverse(path), blocks)

    def grow_leaf(self, leaf: Node, blocks: int) -> Node:
        """Note that a leaf's conversation has grown by ``blocks`` blocks; returns the leaf. O(height)."""
        leaf.length += blocks
        self._touch(leaf)
        return leaf

    def touch(self, request_id: RequestId) -> None:
        """A live request was sent once more: frequencies rise along its path. O(height)."""
        self._touch(self.leaf(request_id))

    # -- inside

    def _check_new(self, blocks: tuple[BlockId, ...], tokens: tuple[int, ...], request_id: RequestId) -> None:
        if request_id in self._leaf_of:
            raise InvalidRequestError("request_id", f"{request_id!r} is live already", "evict it, or use another id")
        if not blocks:
            raise InvalidRequestError("blocks", "is empty", "insert contexts of at least one block")
        if len(tokens) != len(blocks):
            raise InvalidRequestError("tokens", f"has {len(tokens)} entries", f"give one per block: {len(blocks)}")
        if len(set(blocks)) != len(blocks):
            raise InvalidRequestError("blocks", "repeats a block", "insert each block once")

    def _place(self, match: Match, leaf: Node) -> None:
        parent = self._split(match, leaf) if match.splits else match.node
        parent.attach(leaf)
        self._mirror.attached(leaf)
        self.total_tokens += leaf.own_tokens

    def _split(self, match: Match, leaf: Node) -> Node:
        old, above = match.node, match.node.parent
        assert above is not None
        prefix = match.prefix
        if old.blocks[: len(prefix)] == prefix:
            middle = Node(prefix, old.tokens[: len(prefix)])
        else:
            length_of = dict(zip(old.blocks, old.tokens, strict=True))
            middle = Node(prefix, tuple([length_of[b] for b in prefix]))
        middle.frequency = old.frequency
        self.total_tokens -= old.own_tokens
        above.replace(old, middle)
        middle.attach(old)
        self.total_tokens += middle.own_tokens + old.own_tokens
        self._mirror.split(middle, old)
        return middle

    def _assign(self, leaf: Node, request_id: RequestId) -> None:
        leaf.request_ids[request_id] = None
        self._leaf_of[request_id] = leaf
        self._touch(leaf)

    @staticmethod
    def _touch(node: Node) -> None:
        while node.parent is not None:
            node.frequency += 1
            node = node.parent

    def _prune(self, node: Node) -> None:
        parent = node.parent
        while parent is not None and not node.children:
            self.total_tokens -= node.own_tokens
            parent.detach(node)
            self._mirror.detached(node)
            node, parent = parent, parent.parent
        if parent is not None and len(node.children) == 1:
            (child,) = node.children.values()
            self.total_tokens -= node.own_tokens + child.own_tokens
            parent.replace(node, child)
            self._mirror.joined(node, child)
            self.total_tokens += child.own_tokens


def _below(top: Node) -> list[Node]:
    nodes = [top]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes
