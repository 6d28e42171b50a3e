"""Algorithm 4 on arbitrary batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.properties.strategies import contexts

from prefixpilot.core import BatchContext, BlockId, RequestId
from prefixpilot.distance import distance
from prefixpilot.index import ContextIndex, Node, build, check_tree, restore_tree, tree_snapshot
from prefixpilot.index.linkage import average_linkage_specification

batches = st.lists(contexts, min_size=1, max_size=12)


def built(many: list[list[BlockId]]) -> ContextIndex:
    index = ContextIndex()
    named = [BatchContext(RequestId(str(i)), tuple(c), tuple(len(str(b)) for b in c)) for i, c in enumerate(many)]
    build(index, named, sort_key=lambda block: block)
    return index


@given(batches)
def test_every_context_is_reordered_not_changed(many: list[list[BlockId]]) -> None:
    index = built(many)
    check_tree(index)
    for i, context in enumerate(many):
        assert sorted(index.leaf(RequestId(str(i))).blocks, key=int) == sorted(context, key=int)
    assert set(index.paths()) == {str(i) for i in range(len(many))}


@given(batches)
def test_an_internal_node_holds_what_all_its_leaves_share(many: list[list[BlockId]]) -> None:
    index = built(many)
    for node in _internal(index.root):
        shared = frozenset.intersection(*(frozenset(leaf.blocks) for leaf in _leaves(node)))
        assert frozenset(node.blocks) == shared
        own = node.blocks[node.start :]
        assert list(own) == sorted(own, key=int)


@given(batches)
def test_the_rest_of_a_leaf_keeps_the_retrievers_order(many: list[list[BlockId]]) -> None:
    index = built(many)
    first_of: dict[frozenset[BlockId], list[BlockId]] = {}
    for context in many:
        first_of.setdefault(frozenset(context), context)
    for leaf in index.leaves:
        own = set(leaf.blocks[leaf.start :])
        assert list(leaf.blocks[leaf.start :]) == [b for b in first_of[frozenset(leaf.blocks)] if b in own]


@given(batches)
def test_the_tree_is_that_of_the_specification(many: list[list[BlockId]]) -> None:
    """Clusters with a common block, from plain Python linkage, are exactly the contents of the tree's nodes."""
    sizes: dict[frozenset[BlockId], int] = {}
    unique: dict[frozenset[BlockId], list[BlockId]] = {}
    for context in many:
        key = frozenset(context)
        sizes[key] = sizes.get(key, 0) + 1
        unique.setdefault(key, context)
    members = [frozenset([i]) for i in range(len(unique))]
    content = [frozenset(c) for c in unique.values()]
    expected = set()
    matrix = [[0.0 if a is b else distance(a, b) for b in unique.values()] for a in unique.values()]
    for merge in average_linkage_specification(matrix, list(sizes.values())):
        members[merge.first] |= members[merge.second]
        content[merge.first] &= content[merge.second]
        if content[merge.first]:
            expected.add((members[merge.first], content[merge.first]))
    index = built(many)
    place = {key: i for i, key in enumerate(unique)}
    for node in _internal(index.root):
        below = frozenset(place[frozenset(leaf.blocks)] for leaf in _leaves(node))
        assert (below, frozenset(node.blocks)) in expected
    outermost = {m for m, c in expected if not any(m < other and c == d for other, d in expected)}
    assert len(outermost) == len(_internal(index.root))


@given(batches)
def test_a_snapshot_restores_the_same_tree(many: list[list[BlockId]]) -> None:
    index = built(many)
    restored = restore_tree(tree_snapshot(index))
    assert restored.paths() == index.paths()
    assert tree_snapshot(restored) == tree_snapshot(index)


def _internal(root: Node) -> list[Node]:
    return [n for n in _below(root) if n is not root and not n.is_leaf]


def _leaves(node: Node) -> list[Node]:
    return [n for n in _below(node) if n.is_leaf]


def _below(top: Node) -> list[Node]:
    nodes = [top]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes
