"""Which recorded branch a conversation goes on with (decision 0011), read off the bytes that reach the engine."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.memory.reply import CALL_CHARS, Likeness, Reply, Said

from .support import Desk, Messages, assistant, chat, said_in, user

TURN_1: Messages = [user("First?")]
TURN_2: Messages = [*TURN_1, assistant(), user("Second?")]


def call(call_id: str, arguments: str = "{}", name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "42"}


def loop(*calls: dict[str, Any]) -> Messages:
    return [*TURN_1, calling(*calls), *(result(c["id"]) for c in calls)]


# -- tool calls


@pytest.mark.parametrize("blocks", [None, ["A", "B"], ["B", "A"], ["B"]])
@pytest.mark.parametrize("kept", [0, 1])
def test_the_id_of_a_tool_call_says_which_retry_goes_on(kept: int, blocks: Any) -> None:
    desk = Desk()
    calls = [call("call_1"), call("call_2")]
    sent = [
        desk.ask(chat(TURN_1, given), "c", reply=calling(made))
        for given, made in zip((["A", "B"], ["B", "A"]), calls, strict=True)
    ]
    assert sent[0].newest != sent[1].newest
    again = desk.ask(chat(loop(calls[kept]), blocks), "c")
    assert again.texts[0] == sent[kept].newest
    assert not again.plan["ambiguous"]
    after = desk.ask(chat([*loop(calls[kept]), assistant("It is 42."), user("Second?")]), "c")
    assert after.texts[0] == sent[kept].newest


def test_equal_calls_under_other_ids_decide_where_the_arguments_differ() -> None:
    desk = Desk()
    for block, arguments in (("A", '{"x": 1, "y": 2}'), ("B", '{"x": 2}')):
        desk.ask(chat(TURN_1, [block]), "c", reply=calling(call("engine", arguments)))
    later = desk.ask(chat(loop(call("renamed", '{"y":2,"x":1}'))), "c")
    assert later.texts[0] == "[Doc 1]\nA\n\nFirst?"


def test_a_tool_loop_on_several_retries_repeats_the_one_that_was_given_its_blocks() -> None:
    desk = Desk()
    reply = calling(call("same"))
    sent = [desk.ask(chat(TURN_1, given), "c", reply=reply) for given in (["A", "B"], ["A", "C"], ["C"])]
    for given, expected in ((["A", "B"], 0), (["A", "C"], 1), (["B"], 0), (["C"], 2)):
        assert desk.ask(chat(loop(call("same")), given), "c").texts[0] == sent[expected].newest
    held_by_two = desk.ask(chat(loop(call("same")), ["A"]), "c")
    assert held_by_two.texts[0] == sent[0].newest, "the latest of those that hold it"
    with pytest.raises(RefusedError, match="send new blocks with a new user message"):
        desk.ask(chat(loop(call("same")), ["B", "C"]), "c")
    undecided = desk.ask(chat(loop(call("same"))), "c")
    assert undecided.texts[0] == "First?"
    assert undecided.plan["ambiguous"]


def test_a_branch_that_blocks_decided_for_is_found_without_them_the_next_time() -> None:
    desk = Desk()
    sent = [desk.ask(chat(TURN_1, given), "c", reply="Let me see.") for given in (["A", "B"], ["A", "C"])]
    first = desk.ask(chat(loop(call("1")), ["A", "B"]), "c")
    assert first.texts[0] == sent[0].newest
    for blocks in (None, ["B"]):
        again = desk.ask(chat([*loop(call("1")), *loop(call("2"))[1:]], blocks), "c")
        assert again.body["messages"][:3] == first.body["messages"]
    later = desk.ask(chat([*loop(call("1")), assistant(), user("Second?")]), "c")
    assert later.body["messages"][:3] == first.body["messages"]


@pytest.mark.parametrize(
    ("client", "likeness"),
    [
        (calling(call("1", '{"x":1}'), call("2")), Likeness.EQUAL),
        (calling(call("1", "other")), Likeness.HEAD),
        (calling(call("3", '{ "x": 1 }'), call("4")), Likeness.HEAD),
        (calling(call("3", '{"x":2}'), call("4")), Likeness.OTHER),
        (calling(call("3", '{"x":1}')), Likeness.OTHER),
        (assistant("Let me see."), Likeness.UNKNOWN),
    ],
)
def test_likeness_of_tool_calls(client: dict[str, Any], likeness: Likeness) -> None:
    reply = Reply()
    reply.add_calls([{"index": 0, **call("1", '{"x":')}])
    reply.add_calls([{"index": 1, **call("2")}, {"index": 0, "function": {"arguments": " 1}"}}, "odd"])
    assert reply.compare(said_in(client)) is likeness


def test_likeness_without_ids_cut_calls_and_several_choices() -> None:
    old = Reply()
    old.add_function_call({"name": "f", "arguments": '{"a": 1}'})
    same = {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":1}'}}
    assert old.compare(said_in(same)) is Likeness.EQUAL
    assert old.compare(said_in({**same, "function_call": {"name": "g"}})) is Likeness.OTHER
    long = Reply()
    long.add_calls([call("1"), call("2", "x" * CALL_CHARS)])
    assert long.compare(said_in(calling(call("1"), call("2")))) is Likeness.EQUAL
    assert long.compare(said_in(calling(call("3"), call("4")))) is Likeness.OTHER
    assert long.compare(Said("text")) is Likeness.UNKNOWN
    many = Reply("first choice")
    many.there_are_others()
    assert many.compare(Said("second choice")) is Likeness.UNKNOWN
    assert many.compare(Said("first choice")) is Likeness.EQUAL


# -- retries


def test_of_the_same_documents_in_another_order_the_latest_goes_on() -> None:
    desk = Desk()
    sent = [desk.ask(chat(TURN_1, given), "c") for given in (["A", "B"], ["B", "A"])]
    second = desk.ask(chat(TURN_2, ["A", "B", "C"]), "c")
    assert second.texts[0] == sent[1].newest
    assert not second.plan["ambiguous"]
    for block in ("A", "B"):
        label = second.plan["labels"]["AB".index(block)]
        assert f"[{label}]\n{block}\n" in second.texts[0], "what is referred to stands before"
        assert f"Please refer to [{label}] in the previous conversation." in second.newest
    desk.ask(chat(TURN_1, ["A", "B"]), "c")
    assert desk.ask(chat(TURN_2), "c").texts[0] == sent[0].newest, "a retry makes it the latest again"


def test_a_turn_that_goes_on_makes_its_branch_the_latest() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c", reply="one")
    desk.ask(chat(TURN_1, ["B", "A"]), "c", reply="two")
    desk.ask(chat([*TURN_1, assistant("one"), user("Second?")]), "c")
    assert desk.ask(chat([*TURN_1, assistant(""), user("Else?")]), "c").texts[0] == first.newest


def test_a_reply_that_matches_goes_before_the_latest() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c", reply="one")
    desk.ask(chat(TURN_1, ["B", "A"]), "c", reply="two")
    assert desk.ask(chat([*TURN_1, assistant("one"), user("Second?")]), "c").texts[0] == first.newest


def test_branches_of_equal_bytes_are_one() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A", "B"]), "c")
    assert desk.ask(chat(TURN_1, ["A\n\n[Doc 2]\nB"]), "c").newest == first.newest
    second = desk.ask(chat(TURN_2), "c")
    assert (second.texts[0], second.plan["ambiguous"]) == (first.newest, False)


# -- a window that has moved

CONTINUE = user("continue")


def test_a_window_that_moved_over_equal_messages_does_not_bring_the_wrong_turn_back() -> None:
    desk = Desk()
    desk.ask(chat([CONTINUE], ["ONE"]), "c", reply="first reply")
    desk.ask(chat([CONTINUE, assistant("first reply"), CONTINUE], ["TWO"]), "c", reply="second reply")
    moved = desk.ask(chat([CONTINUE, assistant("second reply"), user("third")], ["ONE"]), "c")
    assert moved.texts == ["continue", "second reply", "[Doc 1]\nONE\n\nthird"]
    assert moved.plan["unmatched"] == 1
    stays = desk.ask(chat([CONTINUE, assistant("first reply"), user("third")]), "c")
    assert stays.texts[0] == "[Doc 1]\nONE\n\ncontinue"


def test_the_turns_before_the_contradiction_stay() -> None:
    desk = Desk()
    head = [user("Hello"), assistant("hi"), CONTINUE, assistant("r1"), CONTINUE]
    desk.ask(chat(head[:1], ["ZERO"]), "c", reply="hi")
    desk.ask(chat(head[:3], ["ONE"]), "c", reply="r1")
    desk.ask(chat(head, ["TWO"]), "c", reply="r2")
    cut_out = desk.ask(chat([*head[:2], CONTINUE, assistant("r2"), user("Next")], ["TWO"]), "c")
    assert cut_out.texts == ["[Doc 1]\nZERO\n\nHello", "hi", "continue", "r2", "[Doc 2]\nTWO\n\nNext"]


@pytest.mark.parametrize("reply", ["a translation", "", "first rep", "first reply, edited"])
def test_a_reply_that_is_nobodys_changes_nothing(reply: str) -> None:
    desk = Desk()
    desk.ask(chat([CONTINUE], ["ONE"]), "c", reply="first reply")
    desk.ask(chat([CONTINUE, assistant("first reply"), CONTINUE], ["TWO"]), "c", reply="second reply")
    later = desk.ask(chat([CONTINUE, assistant(reply), user("third")]), "c")
    assert later.texts[0] == "[Doc 1]\nONE\n\ncontinue"


def test_a_reply_that_the_client_wrote_itself_is_that_turns_from_then_on() -> None:
    desk = Desk()
    asked, edited = user("Again?"), assistant("Yes, it is.")
    desk.ask(chat([asked], ["A"]), "c", reply="No, it is not.")
    second = desk.ask(chat([asked, edited, asked], ["B"]), "c", reply="Yes, it is.")
    third = desk.ask(chat([asked, edited, asked, edited, user("And?")], ["C"]), "c")
    assert third.texts[:3] == second.texts
    assert (third.plan["restored"], third.plan["unmatched"]) == (2, 0)


def test_after_more_retries_than_are_kept_no_reply_contradicts() -> None:
    desk = Desk()
    for n in range(6):
        desk.ask(chat([CONTINUE], ["ONE"]), "c", reply=f"answer {n}")
    desk.ask(chat([CONTINUE, assistant("answer 5"), CONTINUE]), "c", reply="answer 0")
    assert desk.ask(chat([CONTINUE, assistant("answer 0"), user("third")]), "c").texts[0].startswith("[Doc 1]\nONE")


# -- what the client is told


@pytest.mark.parametrize("changed", [user("First? "), {**user("First?"), "id": "x"}])
def test_an_edited_message_is_told_and_counted(changed: dict[str, Any]) -> None:
    desk = Desk()
    desk.ask(chat(TURN_1, ["A"]), "c")
    sent = desk.ask(chat([changed, assistant(), user("Second?")]), "c")
    assert not sent.forward.touched
    assert (sent.plan["unmatched"], sent.plan["restored"]) == (1, 0)
    assert desk.metric("prefixpilot_unmatched_histories_total") == 1
    assert desk.ask(chat([user("First?"), assistant(), user("Third?")]), "c").plan["unmatched"] == 0


def test_a_history_from_before_the_first_request_is_not_missed() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_2, ["A"]), "c")
    assert first.plan["unmatched"] == 0
    assert desk.ask(chat([*TURN_2, assistant(), user("Third?")], ["A"]), "c").plan["unmatched"] == 0


def test_unknown_is_not_zero() -> None:
    desk = Desk()
    assert desk.ask(chat(TURN_1, ["A"]), "c").plan["prefix_len"] == 0
    assert desk.ask(chat(TURN_2, ["B"]), "c").plan["prefix_len"] is None
    off = desk.ask(chat(TURN_1, ["A"]), mode="off").plan
    assert (off["prefix_len"], off["predicted_cached_tokens"], off["recorded"]) == (None, None, None)


# -- the beginning of an answer


def test_the_beginning_of_an_answer_is_no_tool_loop() -> None:
    desk = Desk()
    prefill: Messages = [*TURN_1, assistant("It is")]
    desk.ask(chat(TURN_1, ["A"]), "c")
    sent = desk.ask(chat(prefill, ["B"]), "c")
    assert sent.texts == ["[Doc 1]\nB\n\nFirst?", "It is"]
    assert desk.ask(chat(prefill, ["B"]), "c").body == sent.body
    with pytest.raises(RefusedError, match="new user message"):
        desk.ask(chat([*TURN_1, calling(call("1"))], ["C"]), "c")


def test_going_on_with_an_answer_keeps_its_documents() -> None:
    desk = Desk()
    first = desk.ask(chat(TURN_1, ["A"]), "c", reply="It is so")
    for blocks in (None, ["A"]):
        assert desk.ask(chat([*TURN_1, assistant("It is")], blocks), "c").texts[0] == first.newest
