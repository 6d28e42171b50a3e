"""Every worked example of the paper, with its exact values."""

from __future__ import annotations

import pytest

from prefixpilot import ContextPilot, PilotConfig, Plan, Request
from prefixpilot.annotations import location_annotation, order_annotation
from prefixpilot.config import Matcher, Schedule
from prefixpilot.core import BatchContext, RequestId
from prefixpilot.distance import distance
from prefixpilot.index import ContextIndex, build

ALPHA = 0.005

C1, C2, C3 = (2, 1, 3), (2, 6, 1), (4, 1, 0)
C6, C7, C8 = (2, 1, 4), (5, 7, 8), (1, 2, 9)


def context(name: str, blocks: tuple[int, ...]) -> BatchContext:
    return BatchContext(RequestId(name), blocks, (1,) * len(blocks))


@pytest.fixture
def index() -> ContextIndex:
    """The index of Figure 5."""
    tree = ContextIndex()
    build(tree, [context("C1", C1), context("C2", C2), context("C3", C3)], sort_key=lambda block: block)
    return tree


class TestDistance:
    """Section 4.1, Eq. 1."""

    A, B, C, D = [3, 5, 1, 7], [2, 6, 3, 5], [3, 5, 8, 9], [2, 6, 4, 0]

    def test_a_b_share_two_blocks_two_positions_apart(self) -> None:
        assert distance(self.A, self.B, ALPHA) == 0.5 + 2 * ALPHA

    def test_b_c_share_two_blocks_two_positions_apart(self) -> None:
        assert distance(self.B, self.C, ALPHA) == 0.5 + 2 * ALPHA

    def test_b_d_share_two_blocks_at_the_same_positions(self) -> None:
        assert distance(self.B, self.D, ALPHA) == 0.5

    def test_a_c_share_two_blocks_at_the_same_positions(self) -> None:
        assert distance(self.A, self.C, ALPHA) == 0.5

    def test_no_shared_block_is_distance_one(self) -> None:
        assert distance(self.A, self.D, ALPHA) == 1.0


class TestIndex:
    """Section 4, Figure 5."""

    def test_build_makes_the_tree_of_figure_5(self, index: ContextIndex) -> None:
        c5, c4, c3 = index.traverse([0]), index.traverse([0, 0]), index.traverse([0, 1])
        assert (c5.blocks, c4.blocks, c3.blocks) == ((1,), (1, 2), (1, 4, 0))
        assert index.paths() == {"C1": (0, 0, 0), "C2": (0, 0, 1), "C3": (0, 1)}
        assert len(index.root.children) == 1

    def test_build_reorders_the_contexts(self, index: ContextIndex) -> None:
        assert [index.leaf(RequestId(name)).blocks for name in ("C1", "C2", "C3")] == [(1, 2, 3), (1, 2, 6), (1, 4, 0)]

    def test_c4_is_made_at_the_distance_of_c1_and_c2(self, index: ContextIndex) -> None:
        assert index.traverse([0, 0]).distance == distance(C1, C2, index.alpha)

    def test_search_of_c6_stops_at_c4(self, index: ContextIndex) -> None:
        match = index.search(C6)
        assert index.path(match.node) == (0, 0)
        assert match.prefix == (1, 2)

    def test_the_heaviest_sent_prefix_of_c6_is_c4_too(self, index: ContextIndex) -> None:
        assert index.match_prefix(C6) == index.search(C6)

    @pytest.mark.parametrize("matcher", ["search", "match_prefix"])
    def test_insertion_makes_c6_the_third_child_of_c4(self, index: ContextIndex, matcher: str) -> None:
        match = getattr(index, matcher)(C6)
        leaf = index.insert_at(match, (1, 2, 4), (1, 1, 1), RequestId("C6"))
        assert index.path(leaf) == (0, 0, 2)
        assert index.paths()[RequestId("C1")] == (0, 0, 0)

    def test_insertion_under_a_leaf_makes_a_node_of_the_intersection(self, index: ContextIndex) -> None:
        match = index.search((1, 2, 3, 9))
        assert index.path(match.node) == (0, 0, 0)
        leaf = index.insert_at(match, (1, 2, 3, 9), (1, 1, 1, 1), RequestId("new"))
        assert index.traverse([0, 0, 0]).blocks == (1, 2, 3)
        assert (index.path(index.leaf(RequestId("C1"))), index.path(leaf)) == ((0, 0, 0, 0), (0, 0, 0, 1))

    def test_eviction_removes_the_leaf_and_prunes(self, index: ContextIndex) -> None:
        assert index.evict([RequestId("C3"), RequestId("unknown")]) == 1
        assert index.paths() == {"C1": (0, 0), "C2": (0, 1)}
        index.evict([RequestId("C1"), RequestId("C2")])
        assert not index.root.children

    def test_equal_contexts_share_a_leaf_whose_frequency_rises(self) -> None:
        tree = ContextIndex()
        build(tree, [context("a", (2, 1)), context("b", (3, 4)), context("c", (1, 2))], sort_key=lambda b: b)
        assert tree.leaf(RequestId("a")) is tree.leaf(RequestId("c"))
        assert tree.leaf(RequestId("a")).frequency == 2

    def test_traversal_updates_a_conversation_that_grows(self, index: ContextIndex) -> None:
        before = index.traverse([0, 0, 0]).length
        assert index.grow([0, 0, 0], 2).length == before + 2


def _after_figure_5(schedule: Schedule = "paper", matcher: Matcher = "prefix") -> ContextPilot:
    config = PilotConfig(
        planner="paper", tail="relevance", labels="ids", annotate="all", schedule=schedule, matcher=matcher
    )
    pilot = ContextPilot(config)
    pilot.optimize_batch([Request.from_ids("C1", C1), Request.from_ids("C2", C2), Request.from_ids("C3", C3)])
    return pilot


class TestOrdering:
    """Section 5.1, Figure 6."""

    def test_offline_contexts_inherit_the_prefix_of_their_parent(self) -> None:
        pilot = ContextPilot(PilotConfig(planner="paper", tail="relevance", labels="ids", annotate="all"))
        batch = [Request.from_ids("C1", C1), Request.from_ids("C2", C2), Request.from_ids("C3", C3)]
        sent = {entry.request.request_id: entry.plan.sent for entry in pilot.optimize_batch(batch)}
        assert sent == {"C1": (1, 2, 3), "C2": (1, 2, 6), "C3": (1, 4, 0)}

    @pytest.mark.parametrize("matcher", ["prefix", "paper"])
    def test_online_contexts_inherit_the_matched_prefix(self, matcher: Matcher) -> None:
        pilot = _after_figure_5(matcher=matcher)
        plans = [pilot.optimize(Request.from_ids(name, c)) for name, c in (("C6", C6), ("C7", C7), ("C8", C8))]
        assert [plan.sent for plan in plans] == [(1, 2, 4), (5, 7, 8), (1, 2, 9)]
        assert [plan.prefix_len for plan in plans] == [2, 0, 2]

    def test_an_unmatched_context_is_untouched(self) -> None:
        plan = _after_figure_5().optimize(Request.from_ids("C7", C7))
        assert (plan.order, plan.order_annotation) == ((0, 1, 2), None)


class TestScheduling:
    """Section 5.2, Figure 7."""

    @pytest.mark.parametrize("schedule", ["paper", "depth-first"])
    @pytest.mark.parametrize("matcher", ["prefix", "paper"])
    def test_sharers_run_together(self, schedule: Schedule, matcher: Matcher) -> None:
        pilot = _after_figure_5(schedule, matcher)
        arrival = [Request.from_ids("C6", C6), Request.from_ids("C3", C3), Request.from_ids("C7", C7)]
        arrival.append(Request.from_ids("C8", C8))
        planned = pilot.optimize_batch(arrival)
        assert [entry.request.request_id for entry in planned] == ["C6", "C8", "C3", "C7"]
        assert [entry.position for entry in planned] == [0, 3, 1, 2]


class TestAnnotations:
    """Section 5.3."""

    def test_order_annotation_of_c6(self) -> None:
        plan = _after_figure_5().optimize(Request.from_ids("C6", C6))
        assert [block.label for block in plan.blocks] == ["Doc 1", "Doc 2", "Doc 4"]
        assert plan.order_annotation == (
            "Please read the context in the following priority order: "
            "[Doc 2] > [Doc 1] > [Doc 4] and answer the question."
        )
        assert plan.order_annotation == order_annotation(["Doc 2", "Doc 1", "Doc 4"])


class TestDeduplication:
    """Section 6, Algorithm 3."""

    @staticmethod
    def _second_turn() -> Plan:
        pilot = _after_figure_5()
        pilot.optimize(Request.from_ids("C6", C6, conversation_id="c"))
        return pilot.optimize(Request.from_ids("C6-2", (1, 5, 2), conversation_id="c"))

    def test_seen_blocks_become_annotations_in_their_place(self) -> None:
        plan = self._second_turn()
        assert [block.block_id for block in plan.blocks] == [1, 5, 2]
        assert [block.location_annotation for block in plan.blocks] == [
            "Please refer to [Doc 1] in the previous conversation.",
            None,
            "Please refer to [Doc 2] in the previous conversation.",
        ]
        assert location_annotation("Doc 1", earlier_turn=True) == plan.blocks[0].location_annotation

    def test_a_later_turn_keeps_the_order_and_needs_no_order_annotation(self) -> None:
        plan = self._second_turn()
        assert (plan.order, plan.order_annotation, plan.sent) == ((0, 1, 2), None, (5,))

    def test_new_blocks_are_registered_for_later_turns(self) -> None:
        pilot = _after_figure_5()
        for turn, blocks in enumerate([C6, (1, 5, 2)]):
            pilot.optimize(Request.from_ids(f"t{turn}", blocks, conversation_id="c"))
        assert pilot.optimize(Request.from_ids("t2", (5, 4, 9), conversation_id="c")).sent == (9,)
