"""The context index under any sequence of insertions, evictions and look-ups."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.properties.strategies import contexts

from prefixpilot.core import BatchContext, BlockId, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.index import ContextIndex, build, check_tree
from prefixpilot.index.node import common_prefix
from prefixpilot.ordering import order_blocks


def tokens_of(blocks: list[BlockId]) -> tuple[int, ...]:
    return tuple(3 + int(block) % 4 for block in blocks)


class IndexMachine(RuleBasedStateMachine):
    """Grown by prefixes: every node is a prefix that was sent. The model is the plain list of what is live."""

    prefixes = True

    def __init__(self) -> None:
        super().__init__()
        self.index = ContextIndex()
        self.live: dict[RequestId, tuple[BlockId, ...]] = {}
        self.count = 0

    @initialize(many=st.lists(contexts, max_size=6))
    def start_from_a_batch(self, many: list[list[BlockId]]) -> None:
        named = [BatchContext(self.fresh(), tuple(c), tokens_of(c)) for c in many]
        build(self.index, named, sort_key=lambda block: block)
        self.live = {c.request_id: self.index.leaf(c.request_id).blocks for c in named}

    def fresh(self) -> RequestId:
        self.count += 1
        return RequestId(f"r{self.count}")

    @rule(context=contexts)
    def optimize(self, context: list[BlockId]) -> None:
        match = self.index.match_prefix(context)
        ordered = [context[i] for i in order_blocks(context, match.prefix)]
        request_id = self.fresh()
        leaf = self.index.insert(tuple(ordered), tokens_of(ordered), request_id)
        assert leaf.blocks == tuple(ordered)
        self.live[request_id] = leaf.blocks

    @rule(context=contexts)
    def send_as_given(self, context: list[BlockId]) -> None:
        request_id = self.fresh()
        self.index.insert(tuple(context), tokens_of(context), request_id)
        self.live[request_id] = tuple(context)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.sampled_from(sorted(self.live)))) if self.live else set()
        assert self.index.evict([*sorted(gone), RequestId("unknown")]) == len(gone)
        for request_id in gone:
            del self.live[request_id]

    @rule(data=st.data())
    def a_live_id_cannot_be_inserted_again(self, data: st.DataObject) -> None:
        if self.live:
            with pytest.raises(InvalidRequestError, match="live already"):
                self.index.insert((1,), (1,), data.draw(st.sampled_from(sorted(self.live))))

    @rule(context=contexts)
    def the_heaviest_prefix_is_exact(self, context: list[BlockId]) -> None:
        match = self.index.match_prefix(context)
        wanted = set(context)
        heaviest = 0
        for sent in self.live.values():
            usable = next((i for i, b in enumerate(sent) if b not in wanted), len(sent))
            heaviest = max(heaviest, sum(tokens_of(list(sent[:usable]))))
        assert sum(tokens_of(list(match.prefix))) == heaviest

    @rule(context=contexts)
    def search_finds_an_overlapping_node(self, context: list[BlockId]) -> None:
        match = self.index.search(context)
        assert self.index.traverse(self.index.path(match.node)) is match.node
        assert set(match.prefix) == set(match.node.blocks) & set(context)

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        if self.live:
            leaf = self.index.leaf(data.draw(st.sampled_from(sorted(self.live))))
            before = leaf.length, leaf.frequency
            assert self.index.grow(self.index.path(leaf), 3) is leaf
            assert (leaf.length, leaf.frequency) == (before[0] + 3, before[1] + 1)

    @invariant()
    def the_tree_is_sound(self) -> None:
        check_tree(self.index, prefixes=self.prefixes)

    @invariant()
    def every_live_context_has_a_leaf_of_its_own(self) -> None:
        paths = self.index.paths()
        assert set(paths) == set(self.live)
        for request_id, blocks in self.live.items():
            leaf = self.index.leaf(request_id)
            assert leaf.is_leaf and leaf.blocks == blocks
            assert self.index.traverse(paths[request_id]) is leaf
        assert len(self.index.leaves) == len(set(self.live.values()))

    @invariant()
    def every_node_was_sent(self) -> None:
        if self.prefixes:
            stack = [self.index.root]
            while stack:
                node = stack.pop()
                longest = max((common_prefix(node.blocks, sent) for sent in self.live.values()), default=0)
                assert longest == len(node.blocks)
                stack.extend(node.children.values())


class PaperIndexMachine(IndexMachine):
    """Grown by Algorithm 1 to the letter: nodes may hold intersections that were never sent as a prefix."""

    prefixes = False

    @rule(context=contexts)
    def optimize(self, context: list[BlockId]) -> None:
        match = self.index.search(context)
        ordered = [context[i] for i in order_blocks(context, match.prefix)]
        request_id = self.fresh()
        self.index.insert_at(match, tuple(ordered), tokens_of(ordered), request_id)
        self.live[request_id] = tuple(ordered)

    @rule(context=contexts)
    def send_as_given(self, context: list[BlockId]) -> None:
        self.optimize(context)

    @rule(context=contexts)
    def the_heaviest_prefix_is_exact(self, context: list[BlockId]) -> None:
        """Not promised here."""


TestIndexMachine = IndexMachine.TestCase
TestPaperIndexMachine = PaperIndexMachine.TestCase


def test_ties_among_equally_heavy_prefixes_go_to_the_more_relevant_block() -> None:
    for first, second in permutations([1, 2]):
        index = ContextIndex()
        index.insert((first, 8), (1, 1), RequestId("a"))
        index.insert((second, 9), (1, 1), RequestId("b"))
        assert index.match_prefix([2, 1]).prefix == (2,)
