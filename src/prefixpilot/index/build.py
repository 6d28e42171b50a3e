"""Index construction by hierarchical clustering (Algorithm 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prefixpilot.core import BatchContext, BlockId
from prefixpilot.index.node import Node
from prefixpilot.index.tree import ContextIndex

SortKey = Callable[[BlockId], Any]


@dataclass(slots=True)
class _Draft:
    """A node in the making. ``first`` is its smallest context, by which siblings are ordered."""

    first: int
    content: frozenset[BlockId]
    distance: float = 0.0
    children: tuple[_Draft, ...] = ()


_NOTHING: Final[frozenset[BlockId]] = frozenset()


def build(index: ContextIndex, contexts: Sequence[BatchContext], sort_key: SortKey, device: str | None = None) -> None:
    """Algorithm 4: cluster the contexts, and hang the tree they make under the root of ``index``.

    Afterwards the leaf of each request holds its reordered context (parent's blocks first), and ``index.paths()`` its
    search path.

    1. Contexts that hold the same blocks redirect to one leaf, whose frequency rises; they count as often in averages.
    2. Average linkage over Eq. 1; each merge makes a node that holds the intersection of its two children.
    3. A node that holds nothing beyond its parent is removed and its children go to the grandparent. With the root as
       parent these are the paper's empty nodes.
    4. Top-down: a node's blocks are its parent's, followed by its own: an internal node's by ``sort_key``, a leaf's in
       the retriever's order.

    O(n^2) time over n distinct contexts (NumPy), O(n * blocks) for the tree; memory O(pairs that share a block), and
    O(n^2) where most do. None of them may be live.

    Args:
        device: of PyTorch, on which distances are computed; the tree is the same.

    Raises:
        MissingExtraError: a device is given, and PyTorch is not installed.
    """
    groups: dict[frozenset[BlockId], list[BatchContext]] = {}
    for context in contexts:
        groups.setdefault(frozenset(context.blocks), []).append(context)
    unique = [members[0] for members in groups.values()]
    tops = _cluster(unique, [len(members) for members in groups.values()], index.alpha, device)
    grown = _grow(index.root, tops, unique, sort_key)
    assigned = [
        (leaf, member.request_id)
        for leaf, members in zip(grown.leaves, groups.values(), strict=True)
        for member in members
    ]
    index.adopt(grown.tops, assigned)


def _cluster(contexts: Sequence[BatchContext], sizes: Sequence[int], alpha: float, device: str | None) -> list[_Draft]:
    """The forest of non-empty clusters, as drafts, by smallest context."""
    clusters: list[_Draft | None] = [_Draft(i, frozenset(c.blocks)) for i, c in enumerate(contexts)]
    tops: list[_Draft] = []
    if len(contexts) > 1:
        from prefixpilot.index.sparse_linkage import link_contexts

        for merge in link_contexts([c.blocks for c in contexts], sizes, alpha, device):
            one, other = clusters[merge.first], clusters[merge.second]
            shared = one.content & other.content if one is not None and other is not None else _NOTHING
            pair = tuple(c for c in (one, other) if c is not None)
            if shared:
                clusters[merge.first] = _Draft(pair[0].first, shared, merge.distance, pair)
            else:
                clusters[merge.first] = None
                tops.extend(pair)
            clusters[merge.second] = None
    tops.extend(c for c in clusters if c is not None)
    return sorted(tops, key=lambda draft: draft.first)


class _Grown(NamedTuple):
    tops: list[Node]
    leaves: list[Node]


def _grow(root: Node, tops: list[_Draft], contexts: Sequence[BatchContext], sort_key: SortKey) -> _Grown:
    """Nodes from drafts, breadth first. ``leaves[i]`` is the leaf of ``contexts[i]``."""
    length_of = {b: t for c in contexts for b, t in zip(c.blocks, c.tokens, strict=True)}
    grown = _Grown([], [root] * len(contexts))
    queue: list[tuple[_Draft, Node, frozenset[BlockId]]] = [(draft, root, _NOTHING) for draft in tops]
    for draft, parent, above in queue:
        if draft.children:
            own = tuple(sorted(draft.content - above, key=sort_key))
        else:
            own = tuple([b for b in contexts[draft.first].blocks if b not in above])
        node = Node(parent.blocks + own, parent.tokens + tuple([length_of[b] for b in own]), draft.distance)
        if parent is root:
            grown.tops.append(node)
        else:
            parent.attach(node)
        if draft.children:
            queue.extend([(child, node, draft.content) for child in _children(draft)])
        else:
            grown.leaves[draft.first] = node
    return grown


def _children(draft: _Draft) -> list[_Draft]:
    """Its children, those that hold nothing beyond it replaced by theirs, by smallest context."""
    result, pending = [], list(draft.children)
    while pending:
        child = pending.pop()
        if child.children and len(child.content) == len(draft.content):
            pending.extend(child.children)
        else:
            result.append(child)
    return sorted(result, key=lambda child: child.first)
