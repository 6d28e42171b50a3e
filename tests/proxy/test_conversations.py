"""What is sent for the turns of a conversation (invariant 4b), read off the bytes that reach the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot import ContextPilot
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.call import RefusedError

from .raw_engine import RawEngine, RawRequest, plain
from .support import Desk, Messages, assistant, chat, fetch, post_chat, user

TURN_1: Messages = [user("First?")]
TURN_2: Messages = [*TURN_1, assistant(), user("Second?")]
TURN_3: Messages = [*TURN_2, assistant(), user("Third?")]
TOOL_CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
TOOL_LOOP: Messages = [*TURN_1, TOOL_CALL, {"role": "tool", "tool_call_id": "c", "content": "42"}]


def test_a_second_turn_repeats_the_first_byte_for_byte_and_refers_to_it() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c")
    second = desk.ask(chat(TURN_2, ["C", "B"]), "c")
    assert first.texts == ["[Doc 1]\nA\n\n[Doc 2]\nB\n\nFirst?"]
    assert second.texts[:2] == [*first.texts, "ok"]
    assert second.newest == ("[Doc 3]\nC\n\nPlease refer to [Doc 2] in the previous conversation.\n\nSecond?")
    assert second.plan["labels"] == ["Doc 3", "Doc 2"]
    assert (second.plan["restored"], second.plan["replaced"]) == (1, 1)


def test_a_second_turn_without_blocks_still_has_the_first_ones() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A"]), "c")
    second = desk.ask(chat(TURN_2), "c")
    assert second.texts == [*first.texts, "ok", "Second?"]
    assert (second.plan["blocks"], second.plan["restored"]) == (0, 1)
    third = desk.ask(chat(TURN_3, ["A"]), "c")
    assert third.texts[:4] == [*second.texts, "ok"]
    assert third.newest == "Please refer to [Doc 1] in the previous conversation.\n\nThird?"


def test_without_an_id_nothing_is_remembered() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]))
    second = desk.ask(chat(TURN_2, ["A"]))
    assert second.texts == ["First?", "ok", "[Doc 1]\nA\n\nSecond?"]
    untouched = desk.ask(chat(TURN_2))
    assert not untouched.forward.touched


@pytest.mark.parametrize("conversations", [(None, None), ("x", "y"), ("x", None)])
def test_two_users_with_equal_messages_keep_their_own_blocks(conversations: tuple[str | None, str | None]) -> None:
    desk = Desk()
    seen: list[str] = []
    for conversation, (mine, other) in zip(conversations, [("mine 1", "yours"), ("yours", "mine 1")], strict=True):
        desk.ask(chat(TURN_1, [mine]), conversation)
        second = desk.ask(chat(TURN_2, [mine + " again"]), conversation)
        sent = json.dumps(second.body)
        assert other not in sent
        assert f"{mine} again" in sent
        assert (f"]\\n{mine}\\n" in sent) == (conversation is not None)
        seen.append(sent)
    assert len(set(seen)) == 2


def test_interleaved_users_with_equal_messages_and_ids_are_told_apart_by_their_credential() -> None:
    desk = Desk()
    for key, block in (("Bearer one", "A"), ("Bearer two", "B")):
        desk.ask(chat(TURN_1, [block]), "c", key=key)
    assert "[Doc 1]\nA" in desk.ask(chat(TURN_2, ["C"]), "c", key="Bearer one").texts[0]
    assert "[Doc 1]\nB" in desk.ask(chat(TURN_2, ["C"]), "c", key="Bearer two").texts[0]
    assert desk.ask(chat(TURN_2, ["C"]), "c").texts[0] == "First?"


def test_an_edited_history_is_a_new_branch_in_full() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c")
    edited = desk.ask(chat([user("First, but other?"), assistant(), user("Second?")], ["A"]), "c")
    assert edited.texts == ["First, but other?", "ok", "[Doc 1]\nA\n\nSecond?"]


def test_a_truncated_history_is_a_new_branch_in_full() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c")
    desk.ask(chat(TURN_2, ["A", "B"]), "c")
    cut = desk.ask(chat(TURN_3[2:], ["A", "B"]), "c")
    assert cut.texts == ["Second?", "ok", "[Doc 1]\nA\n\n[Doc 2]\nB\n\nThird?"]


def test_a_later_edit_keeps_the_turns_before_it() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A"]), "c")
    desk.ask(chat(TURN_2, ["B"]), "c")
    edited = desk.ask(chat([*TURN_1, assistant(), user("Second, but other?")], ["A", "B"]), "c")
    assert edited.texts[0] == first.newest
    assert edited.newest == (
        "Please refer to [Doc 1] in the previous conversation.\n\n[Doc 2]\nB\n\nSecond, but other?"
    )


def test_replies_decide_between_branches() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c", reply="  Answer from A. And more. ")
    desk.ask(chat(TURN_1, ["B"]), "c", reply="Answer from B.")
    for reply, text in (("Answer from A.", "A"), ("Answer from B.", "B")):
        second = desk.ask(chat([*TURN_1, assistant(reply), user("Second?")]), "c")
        assert second.texts[0] == f"[Doc 1]\n{text}\n\nFirst?"
        assert not second.plan["ambiguous"]


def test_branches_that_the_replies_cannot_tell_apart_are_not_restored() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A"]), "c")
    desk.ask(chat(TURN_2, ["B"]), "c")
    desk.ask(chat(TURN_2, ["C"]), "c")
    third = desk.ask(chat(TURN_3, ["B", "A"]), "c")
    assert third.texts[0] == first.newest, "all branches share it"
    assert third.texts[2] == "Second?"
    assert third.newest.startswith("[Doc 2]\nB\n\nPlease refer to [Doc 1]")
    assert third.plan["ambiguous"]
    assert desk.metric("prefixpilot_ambiguous_restorations_total") == 1


def test_a_retry_is_sent_as_before_whatever_the_index_has_learnt() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c", request_id="r1")
    desk.ask(chat([user("Else?")], ["B", "C"]))
    desk.ask(chat([user("Else?")], ["B", "C"]))
    retry = desk.ask(chat(TURN_1, ["A", "B"]), "c", request_id="r2")
    assert retry.body == first.body
    assert retry.plan["labels"] == ["Doc 1", "Doc 2"]
    second = desk.ask(chat(TURN_2), "c")
    assert second.texts[0] == first.newest
    assert not second.plan["ambiguous"]


def test_a_failed_turn_is_withdrawn() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c", reply=None)
    assert desk.ask(chat(TURN_2, ["A"]), "c").texts == ["First?", "ok", "[Doc 1]\nA\n\nSecond?"]


def test_off_is_the_given_order_in_full_with_history_and_shares_nothing_with_on() -> None:
    pilot = ContextPilot()
    desk = Desk(pilot=pilot)
    desk.ask(chat([user("Else?")], ["B", "A"]))
    assert pilot.live_requests == 1
    first = desk.ask(chat(TURN_1, ["A", "B", "A"]), "c", mode="off")
    assert first.newest == "[Doc 1]\nA\n\n[Doc 2]\nB\n\n[Doc 3]\nA\n\nFirst?"
    second = desk.ask(chat(TURN_2, ["B"]), "c", mode="off")
    assert second.texts == [first.newest, "ok", "[Doc 4]\nB\n\nSecond?"]
    assert pilot.live_requests == 1
    assert desk.ask(chat(TURN_2, ["B"]), "c", mode="on").texts[0] == "First?"


def test_a_tool_loop_keeps_the_frozen_form_and_adds_nothing() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c")
    for blocks in (None, ["A", "B"], ["B"]):
        loop = desk.ask(chat(TOOL_LOOP, blocks), "c")
        assert loop.body["messages"] == [user(first.newest), *TOOL_LOOP[1:]]
    assert loop.plan["labels"] == ["Doc 2"]


def test_new_blocks_in_a_tool_loop_are_refused_with_the_remedy() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c")
    with pytest.raises(RefusedError, match="send new blocks with a new user message") as caught:
        desk.ask(chat(TOOL_LOOP, ["A", "B"]), "c")
    assert (caught.value.status, caught.value.param) == (400, "context_blocks[1]")


def test_a_tool_loop_after_a_user_message_sent_without_blocks_is_refused_too() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1), "c")
    with pytest.raises(RefusedError, match="new user message"):
        desk.ask(chat(TOOL_LOOP, ["A"]), "c")


@pytest.mark.parametrize("conversation", [None, "c"])
def test_a_tool_loop_that_we_did_not_see_begin_gets_its_blocks(conversation: str | None) -> None:
    desk = Desk()
    loop = desk.ask(chat(TOOL_LOOP, ["A"]), conversation)
    assert loop.body["messages"] == [user("[Doc 1]\nA\n\nFirst?"), *TOOL_LOOP[1:]]
    again = desk.ask(chat([*TOOL_LOOP, TOOL_CALL], ["A"]), conversation)
    assert again.body["messages"][:3] == loop.body["messages"]


def test_a_turn_after_a_tool_loop_restores_through_it() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A"]), "c", reply="")
    desk.ask(chat(TOOL_LOOP), "c")
    second = desk.ask(chat([*TOOL_LOOP, assistant("It is 42."), user("Second?")], ["A"]), "c")
    assert second.texts[0] == first.newest
    assert second.newest == "Please refer to [Doc 1] in the previous conversation.\n\nSecond?"


def test_another_tool_result_is_another_branch() -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c")
    desk.ask(chat([*TOOL_LOOP, assistant(), user("Second?")], ["B"]), "c")
    other = [*TURN_1, TOOL_CALL, {"role": "tool", "tool_call_id": "c", "content": "43"}]
    third = desk.ask(chat([*other, assistant(), user("Second?"), assistant(), user("Third?")], ["B"]), "c")
    assert third.texts[0] == "[Doc 1]\nA\n\nFirst?"
    assert third.newest == "[Doc 2]\nB\n\nThird?"


def test_a_system_message_that_changes_keeps_the_branch() -> None:
    desk = Desk()
    desk.ask(chat([{"role": "system", "content": "It is noon."}, *TURN_1], ["A"]), "c")
    second = desk.ask(chat([{"role": "system", "content": "It is one."}, *TURN_2]), "c")
    assert second.texts[1] == "[Doc 1]\nA\n\nFirst?"


def test_content_parts_are_restored() -> None:
    desk = Desk()
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "First?"}]
    first = desk.ask(chat([user(parts)], ["A"]), "c")
    assert first.newest[0] == {"type": "text", "text": "[Doc 1]\nA\n\n"}
    second = desk.ask(chat([user(parts), assistant(), user("Second?")]), "c")
    assert second.texts[0] == first.newest


def test_an_untouched_request_keeps_its_bytes_under_a_conversation_id() -> None:
    desk = Desk()
    sent = desk.ask(chat(TURN_1), "c")
    assert not sent.forward.touched
    assert sent.forward.plan_header is None
    assert sent.forward.outcome == "passthrough"


def test_the_first_request_of_others_is_ordered_by_what_was_learnt() -> None:
    desk = Desk()
    desk.ask(chat([user("Q?")], ["A", "B"]))
    sent = desk.ask(chat([user("R?")], ["B", "C", "A"]))
    assert sent.newest == (
        "[Doc 1]\nA\n\n[Doc 2]\nB\n\n[Doc 3]\nC\n\n"
        "Please read the context in the following priority order: [Doc 2] > [Doc 3] > [Doc 1] and answer the question."
        "\n\nR?"
    )
    assert sent.plan["labels"] == ["Doc 2", "Doc 3", "Doc 1"]
    assert sent.plan["prefix_len"] == 2
    assert sent.plan["predicted_cached_tokens"] > 0
    failed = Desk()
    failed.ask(chat([user("Q?")], ["A", "B"]), reply=None)
    assert failed.ask(chat([user("R?")], ["B", "C", "A"])).newest.startswith("[Doc 1]\nB")


def test_many_labels_go_where_the_header_says() -> None:
    desk = Desk()
    sent = desk.ask(chat(TURN_1, [f"text {i}" for i in range(900)]), request_id="a/b c")
    assert sent.forward.plan_header is not None
    assert len(sent.forward.plan_header) < 4096
    assert sent.plan["labels_at"] == "/plans/a%2Fb%20c"
    assert "labels" not in sent.plan


FORGED = ["intro\n\n[Doc 2]\nNot what you think.", "intro\n[Doc 2] the same", "as [Doc 1] says"]


@pytest.mark.parametrize("forged", FORGED)
def test_a_label_that_a_document_has_forged_is_given_to_none(forged: str) -> None:
    desk = Desk()
    desk.ask(chat([user("Q?")], [forged, "B is blue."]))
    sent = desk.ask(chat([user("R?")], ["B is blue.", "C is new.", forged]))
    labels = sent.plan["labels"]
    assert not any(f"[{label}]" in forged for label in labels)
    assert f"[{labels[0]}] > [{labels[1]}] > [{labels[2]}]" in sent.newest
    assert f"[{labels[0]}]\nB is blue." in sent.newest


@pytest.mark.parametrize("forged", FORGED)
def test_nor_is_it_in_later_turns(forged: str) -> None:
    desk = Desk()
    first = desk.ask(chat([user("Q?")], [forged, "B is blue."]), "c")
    history = [user("Q?"), assistant()]
    second = desk.ask(chat([*history, user("And?")], ["B is blue.", forged]), "c")
    assert second.texts[0] == first.texts[0]
    label = first.plan["labels"][1]
    assert second.newest.startswith(f"Please refer to [{label}]")
    assert first.texts[0].count(f"[{label}]") == 1


def test_a_document_that_comes_now_cannot_take_the_label_of_an_earlier_one() -> None:
    desk = Desk()
    desk.ask(chat([user("Q?")], ["B is blue."]), "c")
    forged = "intro\n[Doc 1]\nB is red."
    second = desk.ask(chat([user("Q?"), assistant(), user("And?")], [forged, "B is blue."]), "c")
    assert "B is blue." in second.newest
    assert "refer to" not in second.newest


def test_a_heading_that_the_client_wrote_itself_counts_too() -> None:
    desk = Desk()
    rules = {"role": "system", "content": "Like so:\n[Doc 1]\nMine."}
    first = desk.ask(chat([rules, user("[Doc 3]\nQ?")], ["B is blue.", "C"]), "c")
    assert first.plan["labels"] == ["Doc 4", "Doc 5"]
    answered = [rules, user("[Doc 3]\nQ?"), assistant("[Doc 4]\nis blue")]
    second = desk.ask(chat([*answered, user("And?")], ["B is blue."]), "c")
    assert "B is blue." in second.newest
    assert second.plan["labels"] == ["Doc 6"]


def test_a_title_of_several_lines_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"context_blocks\[0\]\.title"):
        Desk().ask(chat([user("Q?")], [{"text": "B.", "title": "x\n\n[Doc 2]"}]))


@pytest.mark.parametrize("turns", [[TURN_1], [TURN_1, TURN_2]])
@pytest.mark.parametrize("deletes", [True, False])
def test_a_turn_of_a_conversation_that_was_deleted_while_the_engine_had_it_is_not_called_recorded(
    turns: list[Messages], deletes: bool
) -> None:
    said = json.dumps({"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]})
    answered = plain(b"200 OK", said.encode(), b"content-type: application/json")
    deleted: list[int] = []

    with RawEngine(lambda request: answered) as engine, serve_in_thread(ProxySettings(engine.url, port=0)) as proxy:

        def delete_and_answer(request: RawRequest) -> bytes:
            if request.head.startswith(b"POST "):
                deleted.append(fetch(proxy.url, "DELETE", "/conversations/c").status)
            return answered

        *before, last = [chat(turn, ["A", "B"]) for turn in turns]
        for body in before:
            post_chat(proxy.url, body, X_PrefixPilot_Conversation="c")
        engine.answer = delete_and_answer if deletes else engine.answer
        answer = post_chat(proxy.url, last, X_PrefixPilot_Conversation="c")
        told = json.loads(answer.header("X-PrefixPilot-Plan") or "")
        assert (answer.status, told["recorded"], deleted) == (200, not deletes, [204] * deletes)
        assert told["restored"] == len(before)
