"""The mirror of an index finds what the look-ups in Python find, however the tree has come about.

Left out on a pure build, where there is none.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixpilot.core import BlockId, RequestId
from prefixpilot.index import ContextIndex, check_tree, restore_tree, tree_snapshot
from prefixpilot.index.match import Match, locate, match_prefix
from prefixpilot.index.mirror import kernels
from prefixpilot.index.node import Node

pytestmark = pytest.mark.skipif(kernels is None, reason="a pure build has no kernels")

blocks: st.SearchStrategy[BlockId] = st.one_of(
    st.integers(0, 25), st.sampled_from(["1", "a", b"1", b"", -1, 1 << 70, 3 << 61])
)
contexts = st.lists(blocks, min_size=1, max_size=9, unique=True).map(tuple)
lengths = st.sampled_from([0, 1, 1, 3, 700])


def is_same(mine: Match, other: Match) -> None:
    assert mine.node is other.node
    assert mine == other


def compare(index: ContextIndex, wanted: tuple[BlockId, ...]) -> None:
    assert mirrored(index)
    is_same(index.match_prefix(wanted), match_prefix(index.root, wanted))
    is_same(index.locate(wanted), locate(index.root, wanted))


def mirrored(index: ContextIndex) -> bool:
    return index._mirror.kernel is not None


class MirrorMachine(RuleBasedStateMachine):
    """The same block may be of another length each time; contexts begin alike, and end within each other."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ContextIndex()
        self.live: list[RequestId] = []
        self.count = 0

    @rule(context=contexts, data=st.data())
    def insert(self, context: tuple[BlockId, ...], data: st.DataObject) -> None:
        grafted = data.draw(st.booleans())
        if self.live and grafted:
            other = self.index.leaf(data.draw(st.sampled_from(self.live))).blocks
            head = other[: data.draw(st.integers(0, len(other)))]
            context = (*head, *[block for block in context if block not in head])
        tokens = data.draw(st.lists(lengths, min_size=len(context), max_size=len(context)))
        self.count += 1
        self.live.append(RequestId(f"r{self.count}"))
        self.index.insert(context, tuple(tokens), self.live[-1])

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.live:
            gone = data.draw(st.sampled_from(self.live))
            self.live.remove(gone)
            assert self.index.evict([gone]) == 1

    @rule(data=st.data())
    def shorten(self, data: st.DataObject) -> None:
        if self.live:
            self.index.shorten(data.draw(st.sampled_from(self.live)), data.draw(st.integers(1, 5)))

    @rule()
    def keep_and_restore(self) -> None:
        self.index = restore_tree(tree_snapshot(self.index), grown=True)

    @rule(wanted=st.lists(blocks, max_size=20, unique=True).map(tuple))
    def look_up(self, wanted: tuple[BlockId, ...]) -> None:
        compare(self.index, wanted)

    @invariant()
    def every_live_context_is_found(self) -> None:
        check_tree(self.index, distinct=True)
        for request_id in self.live:
            compare(self.index, self.index.leaf(request_id).blocks)


TestMirrorMachine = MirrorMachine.TestCase
TestMirrorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("universe", "k"), [(40, 12), (400, 15), (3000, 90)])
def test_large_trees_that_come_and_go(universe: int, k: int) -> None:
    """Roots with thousands of children, deep paths, look-ups of more blocks than fit the stack at hand."""
    chance = random.Random(universe)
    weights = [1 / (place + 1) for place in range(universe)]
    index, live = ContextIndex(), list[RequestId]()

    def drawn() -> tuple[BlockId, ...]:
        return tuple(dict.fromkeys(chance.choices(range(universe), weights, k=k)))

    for turn in range(2500):
        wanted = drawn()
        compare(index, wanted)
        prefix = index.match_prefix(wanted).prefix if turn % 3 else ()
        sent = (*prefix, *[block for block in wanted if block not in prefix])
        live.append(RequestId(f"r{turn}"))
        index.insert(sent, tuple(chance.randrange(5) for _ in sent), live[-1])
        while len(live) > (900 if turn < 2000 else 30):
            index.evict([live.pop(chance.randrange(len(live)))])
    index.evict(live)
    assert mirrored(index)
    assert not index.root.children


def test_what_is_not_grown_by_prefixes_is_not_mirrored() -> None:
    index = ContextIndex()
    index.insert((1, 2), (1, 1), RequestId("a"))
    index.insert_at(index.search((3, 2)), (2, 3), (1, 1), RequestId("b"))  # an intersection that was never sent first
    assert not mirrored(index)
    assert index.match_prefix((2, 3)) == match_prefix(index.root, (2, 3))
    twins = ContextIndex()
    twins.adopt([Node((1, 2), (1, 1)), Node((1, 3), (1, 1))], [])
    assert not mirrored(twins)
    huge = ContextIndex()
    huge.insert((1, 2), (1, 1 << 80), RequestId("a"))
    assert not mirrored(huge)
    assert huge.match_prefix((2, 1)).prefix == (1, 2)


def test_an_unhashable_block_is_an_error_and_changes_nothing() -> None:
    index = ContextIndex()
    index.insert((1, 2), (1, 1), RequestId("a"))
    wrong: Any = ([],)
    for look_up in (index._mirror.kernel.match, index._mirror.kernel.locate):
        with pytest.raises(TypeError, match="unhashable"):
            look_up(wrong)
    compare(index, (2, 1))


def test_numbers_that_are_none_are_refused() -> None:
    root, node = Node((), ()), Node((1, 2), (1, 1))
    kernel = kernels.Prefixes(root)
    number = kernel.attach(0, node, (1, 2), (1, 1))
    for wrong in (-1, 2, 1 << 40):
        with pytest.raises(ValueError, match="no such node"):
            kernel.detach(wrong)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("detach", (0,)),
        ("attach", (number, node, (1,), (1,))),
        ("attach", (0, node, (1, 2), (1,))),
        ("split", (number, node, 0)),
        ("split", (number, node, 3)),
        ("join", (0, number, (1, 1))),
        ("join", (number, number, (1, 1))),
    ]
    for name, args in calls:
        with pytest.raises(ValueError, match=r"expected|root"):
            getattr(kernel, name)(*args)
    with pytest.raises(TypeError, match="arguments"):
        kernel.attach(0, node)
    with pytest.raises(TypeError, match="tuple"):
        kernel.locate([1])
    assert kernel.match([2, 1]) == (node, 2)
    kernel.detach(number)
    assert kernel.match([2, 1]) == (root, 0)
