"""Conversation records, ordering, scheduling, de-duplication and rendering, one behaviour a test."""

from __future__ import annotations

import pytest

from prefixpilot import ContextBlock, ContextPilot, PilotConfig, Request, Templates, render_blocks
from prefixpilot.conversation import NEW_CONVERSATION, ConversationStore
from prefixpilot.core import Place, RequestId
from prefixpilot.dedup import deduplicate
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.ordering import order_blocks
from prefixpilot.scheduling import schedule_by_group, schedule_depth_first


def test_duplicates_keep_their_place_after_the_first_copy() -> None:
    assert order_blocks([3, 1, 3, 2, 1], [2, 1]) == (3, 1, 0, 2, 4)


def test_a_duplicate_within_a_context_says_above() -> None:
    plan = ContextPilot().optimize(Request.from_texts("r", ["a", "b", "a"]))
    assert [b.location_annotation for b in plan.blocks] == [None, None, "Please refer to [Doc 1] above."]
    assert plan.labels == ("Doc 1", "Doc 2", "Doc 1")
    assert deduplicate([1, 1]) == (Place.HERE, Place.ABOVE)


def test_algorithm_5_sorts_groups_by_size_and_paths_by_length() -> None:
    paths = [(0,), (1, 0), (1, 0, 0), (1, 1), (2, 0)]
    assert schedule_by_group(paths) == (2, 1, 3, 0, 4)


def test_depth_first_follows_the_tree() -> None:
    assert schedule_depth_first([(1, 1), (0, 2), (1, 0, 5), (0,), (1, 0)]) == (3, 1, 4, 2, 0)


def test_labels_count_along_the_conversation() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_texts("1", ["a", "b"], "c"))
    plan = pilot.optimize(Request.from_texts("2", ["n", "b", "m"], "c"))
    assert plan.labels == ("Doc 3", "Doc 2", "Doc 4")
    assert (plan.turn, plan.opener) == (1, "1")


def test_rendering() -> None:
    pilot = ContextPilot()
    pilot.optimize(Request.from_texts("0", ["b", "a"]))
    request = Request((ContextBlock("a"), ContextBlock("b"), ContextBlock("x", title="T"), ContextBlock("a")), "1")  # type: ignore[arg-type]
    assert render_blocks(pilot.optimize(request)) == (
        "[Doc 1]\nb\n\n[Doc 2]\na\n\n[Doc 3] T\nx\n\nPlease refer to [Doc 2] above.\n\n"
        "Please read the context in the following priority order: [Doc 2] > [Doc 1] > [Doc 3] and answer the question."
    )


def test_equal_leading_blocks_give_equal_leading_bytes() -> None:
    pilot = ContextPilot()
    first = render_blocks(pilot.optimize(Request.from_texts("1", ["a", "b", "c"])))
    second = render_blocks(pilot.optimize(Request.from_texts("2", ["d", "b", "a"])))
    assert first.startswith("[Doc 1]\na\n\n[Doc 2]\nb\n\n")
    assert second.startswith("[Doc 1]\na\n\n[Doc 2]\nb\n\n")


def test_ids_cannot_be_rendered() -> None:
    with pytest.raises(InvalidRequestError, match=r"blocks\[0\]\.text"):
        render_blocks(ContextPilot().optimize(Request.from_ids("r", [1])))


def test_a_record_is_a_value_and_branches_share_it() -> None:
    pilot = ContextPilot()
    trunk = NEW_CONVERSATION.after(pilot.propose(Request.from_texts("1", ["a"])))
    left = trunk.after(pilot.propose(Request.from_texts("2", ["b"]), trunk))
    right = trunk.after(pilot.propose(Request.from_texts("3", ["c", "a"]), trunk))
    assert (trunk.turns, left.turns, right.turns) == (1, 2, 2)
    assert sorted(left.labels.values()) == sorted(right.labels.values()) == ["Doc 1", "Doc 2"]
    assert set(trunk.labels) == set(left.labels) & set(right.labels)


def test_a_conversation_store_forgets_the_least_recently_used() -> None:
    store: ConversationStore[str] = ConversationStore(2)
    record = NEW_CONVERSATION.after(ContextPilot().propose(Request.from_ids("r", [1])))
    for key in ("a", "b"):
        store.put(key, record)
    assert store.get("a").turns == 1
    store.put("c", record)
    assert (store.get("b").turns, store.get("a").turns, len(store)) == (0, 1, 2)
    store.forget("a")
    store.forget("unknown")
    assert len(store) == 1
    with pytest.raises(ConfigError):
        ConversationStore(0)


def test_replaced_templates_reach_labels_and_annotations() -> None:
    pilot = ContextPilot(PilotConfig(templates=Templates(label="<{name}>", name="Source {number}")))
    pilot.optimize(Request.from_texts("0", ["b", "a"]))
    text = render_blocks(pilot.optimize(Request.from_texts("1", ["a", "b"])))
    assert text.startswith("<Source 1>\nb\n\n<Source 2>\na\n\n")
    assert "<Source 2> > <Source 1>" in text


def test_blocks_of_one_id_get_names_of_their_own() -> None:
    pilot = ContextPilot(PilotConfig(labels="ids"))
    blocks = (ContextBlock("a", id=2), ContextBlock("b", id=2), ContextBlock("c", id=2))
    assert pilot.optimize(Request(blocks, RequestId("r"))).labels == ("Doc 2", "Doc 2 (2)", "Doc 3")


def test_a_title_is_not_the_first_line_of_a_text() -> None:
    plan = ContextPilot().optimize(Request((ContextBlock("b", title="a"), ContextBlock("a\nb")), RequestId("r")))
    assert len(set(plan.sent)) == 2


def test_ids_as_labels_fall_back_to_numbers() -> None:
    pilot = ContextPilot(PilotConfig(labels="ids"))
    request = Request((ContextBlock("a", id="x"), ContextBlock("b")), "r")  # type: ignore[arg-type]
    assert pilot.optimize(request).labels == ("Doc x", "Doc 2")
