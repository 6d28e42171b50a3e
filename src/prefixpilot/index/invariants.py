"""What a context index promises, checked from scratch."""

from __future__ import annotations

from prefixpilot.errors import InvariantError
from prefixpilot.index.node import Node, common_prefix
from prefixpilot.index.tree import ContextIndex


def check_tree(index: ContextIndex, *, prefixes: bool = True, distinct: bool = False) -> None:
    """Raise ``InvariantError`` unless the tree is sound. O(nodes x blocks).

    Args:
        prefixes: also demand that every node's blocks begin with its parent's (trees not grown by Algorithm 1).
        distinct: also demand that no two siblings begin with the same block (trees grown by ``insert`` alone).
    """
    total, leaves, live = 0, 0, 0
    stack = [index.root]
    while stack:
        node = stack.pop()
        _check_links(node)
        if distinct:
            _require(all(first.twin is None for first in node.branches.values()), "siblings begin alike", node)
        _check_content(node, prefixes=prefixes)
        if node is not index.root:
            total += node.own_tokens
            if node.is_leaf:
                leaves += 1
                live += len(node.request_ids)
                _require(any(leaf is node for leaf in index.leaves), "a leaf is not registered", node)
            for request_id in node.request_ids:
                _require(index.leaf(request_id) is node, f"{request_id} points elsewhere", node)
        stack.extend(node.children.values())
    _require(total == index.total_tokens, f"{index.total_tokens} tokens counted, {total} held", index.root)
    _require(leaves == len(index.leaves), f"{len(index.leaves)} leaves registered, {leaves} held", index.root)
    _require(live == len(index), f"{len(index)} requests registered, {live} held", index.root)


def _check_links(node: Node) -> None:
    for slot, child in node.children.items():
        _require(child.parent is node and child.slot == slot, "a child does not point back", node)
        _require(any(c is child for c in node.beginning_with(child.branch)), "a child has no branch", node)
    begun = sum(1 for first in node.branches.values() for _ in first.and_twins())
    _require(begun == len(node.children), "branches are not the children", node)
    _require(list(node.children) == sorted(node.children), "slots do not rise", node)


def _check_content(node: Node, *, prefixes: bool) -> None:
    _require(len(node.tokens) == len(node.blocks) == len(set(node.blocks)), "blocks repeat or lack a length", node)
    _require(node.total == sum(node.tokens), "the total is not that of its lengths", node)
    _require(node.own == len(node.blocks) - node.start, "the number of its own blocks is wrong", node)
    _require(node.own_tokens == sum(node.tokens[node.start :]), "the tokens of its own blocks are wrong", node)
    if node.parent is None:
        return
    _require(node.start == common_prefix(node.parent.blocks, node.blocks), "start is wrong", node)
    _require(bool(node.request_ids) == node.is_leaf, "leaves, and only they, have requests", node)
    _require(len(node.children) != 1, "an internal node has a single child", node)
    if prefixes:
        _require(node.start == len(node.parent.blocks), "does not begin with its parent's blocks", node)
        _require(node.is_leaf or len(node.blocks) > node.start, "holds nothing beyond its parent", node)


def _require(holds: bool, what: str, node: Node) -> None:
    if not holds:
        raise InvariantError(f"context index: node {node.blocks!r}: {what}")
