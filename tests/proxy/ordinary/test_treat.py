"""What is sent for ordinary requests, one behaviour a test."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from tests.proxy.ordinary.support import (
    Proxy,
    calls,
    chat,
    find_notes,
    note,
    notes,
    reads,
    result,
    row,
    said,
    system,
    user,
    words,
)

from prefixpilot import ContextPilot, PilotConfig, Plan, Request
from prefixpilot.apis.messages import Messages
from prefixpilot.apis.responses import Responses
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.dedup.chunking import text_digest
from prefixpilot.errors import ConfigError
from prefixpilot.formats.base import NoEdges
from prefixpilot.formats.catalogue import RECOGNISERS, regions
from prefixpilot.pieces import Span
from prefixpilot.proxy.memory.forms import NOBODY, Sent, Target
from prefixpilot.proxy.ordinary import chain
from prefixpilot.proxy.ordinary import names as names_of_texts
from prefixpilot.proxy.ordinary.chain import Links
from prefixpilot.proxy.ordinary.settings import OrdinarySettings

A, B, C, D, E = (words(seed) for seed in "ABCDE")


def names(text: str) -> list[str]:
    """Labels in the order in which they stand."""
    return [part.split('"')[0] for part in text.split('<note name="')[1:]]


# -- order


def test_units_that_another_request_had_come_first() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("a", A), ("b", B), ("c", C)) + "\n\nWhat is A?")))
    sent = proxy.send(chat(user(notes(("d", D), ("b", B), ("a", A)) + "\n\nWhat is D?")))
    assert names(sent["messages"][0]["content"]) == ["a", "b", "d"]
    assert sent["messages"][0]["content"].endswith("\n\nWhat is D?")


def test_other_text_before_a_region_is_another_prefix() -> None:
    proxy = Proxy()
    proxy.send(chat(user("Q1\n" + notes(("a", A), ("b", B)))))
    sent = proxy.send(chat(user("Q2\n" + notes(("b", B), ("a", A)))))
    assert names(sent["messages"][0]["content"]) == ["b", "a"]


@pytest.mark.parametrize("field", ["model", "tools", "cache_salt"])
def test_what_the_engine_cannot_share_is_another_prefix(field: str) -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("a", A), ("b", B)))))
    other = chat(user(notes(("b", B), ("a", A))))
    other[field] = "other"
    assert names(proxy.send(other)["messages"][0]["content"]) == ["b", "a"]


def test_an_image_before_a_region_is_another_prefix() -> None:
    def body(url: str, *named: tuple[str, str]) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": url}}
        return chat({"role": "user", "content": [image, {"type": "text", "text": notes(*named)}]})

    proxy = Proxy()
    proxy.send(body("data:1", ("a", A), ("b", B)))
    same = proxy.treat(body("data:1", ("b", B), ("a", A)))
    other = proxy.treat(body("data:2", ("b", B), ("a", A)))
    assert (same.moved, other.moved) == (1, 0)


def test_a_short_region_keeps_its_order() -> None:
    proxy = Proxy(min_region_tokens=10_000)
    assert proxy.treat(chat(user(notes(("a", A), ("b", B))))).plans == ()


def test_behind_equal_examples_and_answers_units_are_ordered_too() -> None:
    proxy = Proxy()
    examples = user("An example"), said("An answer")
    proxy.send(chat(*examples, user(notes(("a", A), ("b", B)))))
    sent = proxy.send(chat(*examples, user(notes(("b", B), ("a", A)))))
    assert names(sent["messages"][2]["content"]) == ["a", "b"]
    other = proxy.send(chat(user("Another example"), said("An answer"), user(notes(("b", B), ("a", A)))))
    assert names(other["messages"][2]["content"]) == ["b", "a"]


def test_what_a_server_remembers_for_the_client_is_unknown_so_nothing_is_ordered() -> None:
    proxy = Proxy(api=Responses())
    body = {"model": "m", "input": notes(("a", A), ("b", B))}
    assert proxy.treat(body).plans
    assert proxy.treat({**body, "previous_response_id": "r"}).plans == ()


def test_top_level_documents_are_permuted_where_the_model_prints_their_ids() -> None:
    def body(model: str, *ids: str) -> dict[str, Any]:
        texts = {"a": A, "b": B, "c": C}
        return {**chat(user("Q"), model=model), "documents": [{"doc_id": i, "text": texts[i]} for i in ids]}

    def ids(sent: dict[str, Any]) -> list[str]:
        return [document["doc_id"] for document in sent["documents"]]

    proxy = Proxy()
    for model, expected in (("granite-3.3-8b-instruct", ["b", "a", "c"]), ("command-r", ["a", "b", "c"])):
        proxy.send(body(model, "b", "a"))
        first = body(model, "a", "b", "c")
        assert ids(proxy.send(first)) == expected
        proxy.send(body(model, "c", "a"))
        first["messages"] += [said("ok"), user("Q2")]
        assert ids(proxy.send(first)) == expected
    assert ids(proxy.forwarded(first, proxy.treat(first, order=False))) == ["a", "b", "c"]


def test_a_bound_on_displacement_holds() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("c", C), ("b", B), ("a", A)))))
    body = chat(user(notes(("a", A), ("b", B), ("c", C))))
    assert proxy.forwarded(body, proxy.treat(body, max_displacement=0)) == body
    sent = proxy.forwarded(body, proxy.treat(body, max_displacement=1))
    assert names(sent["messages"][0]["content"]) == ["b", "a", "c"] or sent == body
    assert names(proxy.send(body)["messages"][0]["content"]) == ["c", "b", "a"]


def test_ranks_that_labels_do_not_say_are_told_behind_the_last_unit() -> None:
    proxy = Proxy(find_notes(ranked=False))
    proxy.send(chat(user(notes(("a", A), ("b", B), ("c", C)) + "\n\nQ")))
    sent = proxy.send(chat(user(notes(("c", C), ("b", B), ("a", A)) + "\n\nQ")))["messages"][0]["content"]
    assert sent == notes(("a", A), ("b", B), ("c", C)) + "\n[In order of relevance: c > b > a]\n\nQ"


def test_a_label_that_a_document_has_forged_tells_no_rank() -> None:
    proxy = Proxy(find_notes(ranked=False))
    forged = f'{C}\n<note name="a">\nNot what you think.'
    proxy.send(chat(user(notes(("a", A), ("b", B), ("c", forged)) + "\n\nQ")))
    body = chat(user(notes(("c", forged), ("b", B), ("a", A)) + "\n\nQ"))
    assert proxy.send(body) == body, "two places are headed a"


def test_an_annotation_that_costs_more_than_it_saves_leaves_the_order() -> None:
    proxy = Proxy(find_notes(ranked=False), min_region_tokens=1)
    proxy.send(chat(user(notes(("a", "x"), ("b", "y")))))
    body = chat(user(notes(("c", "z"), ("d", "w"), ("a", "x"))))
    assert proxy.send(body) == body


class Restless(ContextPilot):
    """Puts the units behind those that are cached in another order, which saves nothing now."""

    def propose(self, request: Request, record: ConversationRecord = NEW_CONVERSATION) -> Plan:
        plan = super().propose(request, record)
        head, tail = plan.blocks[: plan.prefix_len], plan.blocks[plan.prefix_len :]
        return replace(plan, blocks=(*head, *tail[::-1]))


@pytest.mark.parametrize("ranked", [True, False])
def test_a_move_that_saves_nothing_beyond_the_given_order_is_not_worth_a_line(ranked: bool) -> None:
    proxy = Proxy(find_notes(ranked=ranked))
    proxy.ordinary.pilot = proxy.pilot = Restless(PilotConfig(annotate=0))
    proxy.send(chat(user(notes(("b", B), ("a", A)) if ranked else notes(("a", A), ("b", B)))))
    sent = proxy.send(chat(user(notes(("a", A), ("c", C), ("d", D)))))["messages"][0]["content"]
    assert names(sent) == (["a", "d", "c"] if ranked else ["a", "c", "d"])
    assert "relevance" not in sent


def test_a_route_on_which_order_does_not_pay_keeps_the_given_order_and_is_learnt_from() -> None:
    proxy = Proxy(find_notes(ranked=False))
    proxy.pilot = ContextPilot(PilotConfig(annotate=0, gate=True))
    proxy.ordinary.pilot = proxy.pilot
    proxy.send(chat(user(notes(("a", A), ("b", B), ("c", C)))))
    body = chat(user(notes(("c", C), ("b", B), ("a", A))))
    assert proxy.send(body) == body, "no gain is known yet"
    proxy.send(chat(user(notes(("d", words("D")), ("a", A), ("b", B)))))
    sent = proxy.send(chat(user(notes(("b", B), ("c", C), ("a", A)))))["messages"][0]["content"]
    assert "relevance" in sent, "what it would have gained has opened the route"


def test_what_is_not_movable_stays() -> None:
    proxy = Proxy(find_notes(movable=False))
    proxy.send(chat(user(notes(("a", A), ("b", B)))))
    sent = proxy.send(chat(user(notes(("b", B), ("a", A)))))["messages"][0]["content"]
    assert names(sent) == ["b", "a"]


# -- repeats


def test_a_repeat_in_a_later_turn_names_the_first_and_keeps_its_label() -> None:
    proxy = Proxy()
    body = chat(user(notes(("a", A), ("b", B))), said("ok"), user(notes(("c", C), ("b2", B)) + "\nQ"))
    sent = proxy.send(body)["messages"][2]["content"]
    assert sent == notes(("c", C), ("b2", "[Unchanged: same text as b above.]")) + "\nQ"


def test_a_label_that_two_texts_have_is_not_enough() -> None:
    proxy = Proxy()
    body = chat(user(notes(("s1", A))), said("ok"), user(notes(("s1", B))), said("ok"), user(notes(("s1", A))))
    sent = proxy.send(body)["messages"][4]["content"]
    first = " ".join(A.split()[:8])
    assert sent == note("s1", f'[Unchanged: same text as s1 that begins "{first}" above.]')


def test_names_that_no_words_can_tell_apart_make_no_annotation() -> None:
    proxy = Proxy()
    twin = A + " but not the same"
    body = chat(user(notes(("s1", A))), said("ok"), user(notes(("s1", twin))), said("ok"), user(notes(("s1", A))))
    assert proxy.send(body) == body


def test_a_repeat_inside_one_region_goes_behind_what_it_names() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("b", B), ("a", A), ("c", C)))))
    sent = proxy.send(chat(user(notes(("a", A), ("a2", A), ("c", C), ("b", B)))))["messages"][0]["content"]
    assert names(sent) == ["b", "a", "c", "a2"]
    assert sent.endswith(note("a2", "[Unchanged: same text as a above.]"))


def test_a_name_means_one_text_also_where_units_have_moved_in_front() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("s", B), ("x", C)))))
    sent = proxy.send(chat(user(notes(("s", A), ("s", A), ("s", B)))))["messages"][0]["content"]
    first = " ".join(A.split()[:8])
    again = f'[Unchanged: same text as s that begins "{first}" above.]'
    assert sent == notes(("s", B), ("s", A), ("s", again))


@pytest.mark.parametrize("repeats", ["no", "repeat-only"])
def test_what_the_format_forbids_stays(repeats: Any) -> None:
    body = chat(user(notes(("a", A), ("b", A))))
    assert Proxy(find_notes(repeats=repeats), order=False).send(body) == body


def test_short_repeats_stay() -> None:
    body = chat(user(notes(("a", "short"), ("b", "short"))))
    assert Proxy().send(body) == body


def test_a_region_in_a_code_fence_is_quoted_and_stays() -> None:
    quoted = "```\n" + notes(("a", A), ("b", A)) + "\n```"
    body = chat(user(notes(("a", A))), said("ok"), user(quoted))
    assert Proxy().send(body) == body


def test_a_body_inside_a_fence_stays() -> None:
    def find(segment: Any) -> Any:
        from prefixpilot.formats.base import Region, Unit
        from prefixpilot.pieces import Span

        start = segment.text.find("```py\n") + 6
        if start < 6:
            return ()
        end = segment.text.rfind("\n```")
        text = segment.text[start:end]
        unit = Unit(Span(0, len(segment.text)), Span(start, end), text, segment.text[: start - 7])
        return (Region("fenced", (unit,), False, True, "keep-label"),)

    body = chat(user(f"a.py\n```py\n{A}\n```"), said("ok"), user(f"b.py\n```py\n{A}\n```"))
    assert Proxy(find).send(body) == body


# -- tool results


def test_a_file_that_is_read_again_is_named_by_its_call() -> None:
    body = chat(user("go"), *reads("1", "a.py", A), *reads("2", "a.py", A))
    sent = Proxy().send(body)["messages"]
    assert sent[4]["content"] == '[Unchanged: same text as the latest result of read_file({"path": "a.py"}) above.]'
    assert sent[:4] == body["messages"][:4]


def test_results_of_calls_made_side_by_side() -> None:
    made = calls(("1", "read", "{}"), ("2", "read", "{}"), ("3", "read", "{}"))
    sent = Proxy().send(chat(user("go"), made, result("1", A), result("2", B), result("3", B)))["messages"]
    assert [m["content"] for m in sent[2:]] == [A, B, "[Unchanged: same text as the latest result of read({}) above.]"]


def test_the_loop_guard_gives_the_third_reading_in_full() -> None:
    proxy = Proxy()
    messages = [user("go"), *reads("1", "a.py", A)]
    for i in "2345":
        messages += reads(i, "a.py", A)
        sent = proxy.send(chat(*messages))["messages"]
    assert [m["content"] == A for m in sent if m["role"] == "tool"] == [True, False, True, True, True]


def test_an_edited_file_is_new_text_and_so_is_the_old_one_after_it() -> None:
    body = chat(user("go"), *reads("1", "a.py", A), *reads("2", "a.py", B), *reads("3", "a.py", A))
    assert Proxy().send(body) == body


def test_another_call_with_the_same_result_names_the_first() -> None:
    body = chat(user("go"), *reads("1", "a.py", A), *reads("2", "copy.py", A))
    sent = Proxy().send(body)["messages"][4]["content"]
    assert 'read_file({"path": "a.py"})' in sent


def test_an_annotation_in_a_json_string_is_escaped() -> None:
    quote = 'The page says "yes"\n' + A
    call = calls(("1", "search", "{}")), result("1", f"[{row(1, quote)}, {row(2, B)}]")
    again = calls(("2", "search", '{"q": 2}')), result("2", f"[{row(1, C)}, {row(7, quote)}]")
    sent = Proxy().send(chat(user("go"), *call, *again))["messages"][4]["content"]
    assert [entry["n"] for entry in json.loads(sent)] == [1, 7]
    assert json.loads(sent)[1]["text"] == '[Unchanged: same text as the text that begins "The page says" above.]'


def test_the_same_search_made_a_third_time_is_left_in_full() -> None:
    messages = [user("go")]
    for i in "123":
        messages += [calls((i, "search", "{}")), result(i, f"[{row(1, A)}, {row(int(i) + 1, words(i))}]")]
    sent = Proxy().send(chat(*messages))["messages"]
    assert "row 1" not in sent[6]["content"] and A.split()[0] in sent[6]["content"]


def test_results_in_one_anthropic_message_and_text_beside_them() -> None:
    def used(call: str) -> dict[str, Any]:
        use = {"type": "tool_use", "id": call, "name": "read", "input": {"p": 1}}
        return {"role": "assistant", "content": [use]}

    def gave(call: str) -> dict[str, Any]:
        part = {"type": "tool_result", "tool_use_id": call, "content": A}
        return {"role": "user", "content": [part, {"type": "text", "text": "go on"}]}

    body = {"model": "m", "messages": [user("go"), used("1"), gave("1"), used("2"), gave("2")]}
    sent = Proxy(api=Messages()).send(body)["messages"]
    assert sent[4]["content"][0]["content"].startswith("[Unchanged: same text as the latest result of read(")
    assert sent[4]["content"][1]["text"] == "go on"


# -- parts


def test_a_long_part_of_another_document_becomes_an_annotation() -> None:
    long = words("L", 400)
    body = chat(user(notes(("book", words("P", 100) + "\n" + long))), said("ok"), user(notes(("part", long))))
    sent = Proxy().send(body)["messages"][2]["content"]
    assert len(sent) < len(long) / 2
    kept, annotation = sent.split("[Unchanged: as in book above, from ")
    assert kept.startswith('<note name="part">\n' + long[:20])
    assert annotation.endswith(f'to "{" ".join(long.split()[-5:])}".]\n</note>')


def test_what_does_not_stand_in_full_is_pointed_to_by_nothing() -> None:
    long = words("L", 400)
    turns = [user(notes(("book", words("P", 100) + "\n" + long))), said("ok"), user(notes(("part", long))), said("ok")]
    proxy = Proxy()
    proxy.send(chat(*turns[:3]))
    sent = proxy.send(chat(*turns, user(notes(("part", long)))))["messages"]
    assert sent[4] == sent[2]
    assert "same text" not in sent[4]["content"] and "as in book above" in sent[4]["content"]


def test_a_result_that_holds_an_annotation_is_no_target() -> None:
    hits = [calls((i, "search", f'{{"q": {i}}}')) for i in "123"]
    mixed = notes(("a", A), ("b", B))
    body = chat(user(notes(("a", A))), hits[0], result("1", mixed), hits[1], result("2", mixed))
    proxy = Proxy()
    proxy.send(chat(*body["messages"][:3]))
    sent = proxy.send(body)["messages"]
    assert "latest result" not in sent[4]["content"]
    assert names(sent[4]["content"]) == ["a", "b"]
    assert sent[4]["content"].count("[Unchanged: same text as") == 2


def test_a_document_with_the_label_of_its_older_edition_is_new_text() -> None:
    long = words("L", 400)
    body = chat(user(notes(("book", words("P", 100) + "\n" + long))), said("ok"), user(notes(("book", long))))
    assert Proxy().send(body) == body


@pytest.mark.parametrize(("mark", "found"), [('<document index="1">', True), ('<document id="7">', False)])
def test_a_number_that_counts_documents_is_no_label(mark: str, found: bool) -> None:
    """The first document of the next turn is no later edition of the first one of this; that of an id is."""
    long = words("L", 400)
    turn = f"<documents>\n{mark}\n<document_content>\n{{}}\n</document_content>\n</document>\n</documents>\n\nQ"
    body = chat(user(turn.format(words("P", 100) + "\n" + long)), said("ok"), user(turn.format(long)))
    sent = Proxy(lambda segment: regions(segment, RECOGNISERS, NoEdges())).send(body)["messages"][2]["content"]
    assert ("[Unchanged: as in the text that begins" in sent) == found
    assert mark in sent


def test_parts_of_tool_results_only_if_asked() -> None:
    long = words("L", 400)
    first, second = reads("1", "a.md", words("P", 100) + "\n" + long), reads("2", "b.md", long)
    body = chat(user("go"), *first, *second)
    assert Proxy().send(body) == body
    sent = Proxy(partial="all").send(body)["messages"][4]["content"]
    assert "[Unchanged: as in the latest result of read_file" in sent and len(sent) < len(long) / 2


# -- history


def turns(proxy: Proxy) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Two turns of one chat, client's and sent, of which the first is reordered and the second has a repeat."""
    proxy.send(chat(user(notes(("b", B), ("a", A)))), who=b"other")
    one = chat(user(notes(("a", A), ("b", B)) + "\nQ1"))
    two = chat(*one["messages"], said("ok"), user(notes(("c", A)) + "\nQ2"))
    return one, proxy.send(one), two, proxy.send(two)


def test_turns_are_sent_again_as_they_were_sent() -> None:
    proxy = Proxy()
    one, sent_one, two, sent_two = turns(proxy)
    assert sent_one != one
    assert sent_two["messages"][0] == sent_one["messages"][0]
    three = proxy.send(chat(*two["messages"], said("ok"), user("Q3")))
    assert three["messages"][:3] == sent_two["messages"]
    assert "[Unchanged" in three["messages"][2]["content"]


def test_a_clock_in_the_system_text_and_another_model_break_nothing() -> None:
    proxy = Proxy()
    one = chat(system("It is 10:00."), user(notes(("a", A), ("b", B))))
    proxy.send(chat(system("It is 10:00."), user(notes(("b", B), ("a", A)))))
    sent = proxy.send(one)
    assert names(sent["messages"][1]["content"]) == ["b", "a"]
    later = chat(system("It is 10:07."), one["messages"][1], said("ok"), user("Q"), model="other")
    assert proxy.send(later)["messages"][1] == sent["messages"][1]


def test_a_call_that_is_the_latest_in_the_same_message_names_it_in_later_turns_too() -> None:
    """The guard lets the third reading stand, beside a result that points to it."""

    def used(*ids: str) -> dict[str, Any]:
        uses: list[dict[str, Any]] = [
            {"type": "tool_use", "id": i, "name": "search" if i == "4" else "read", "input": {}} for i in ids
        ]
        return {"role": "assistant", "content": uses}

    def gave(*named: tuple[str, str]) -> dict[str, Any]:
        parts = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in named]
        return {"role": "user", "content": parts}

    found = gave(("3", A), ("4", notes(("x", A), ("y", B))))
    messages = [user("go"), used("1"), gave(("1", A)), used("2"), gave(("2", A)), used("3", "4"), found]
    proxy = Proxy(api=Messages())
    sent = [proxy.send({"model": "m", "messages": messages[:upto]}) for upto in (3, 5, 7)][-1]["messages"]
    third, beside = (part["content"] for part in sent[6]["content"])
    assert third == A and "latest result of read({}) above" in beside
    again = proxy.send({"model": "m", "messages": [*messages, said("So."), user("Why?")]})["messages"]
    assert again[:7] == sent


def test_an_edited_history_is_rendered_in_full() -> None:
    proxy = Proxy()
    _, _, two, _ = turns(proxy)
    edited = chat(user("shorter"), *two["messages"][1:], said("ok"), user("Q3"))
    assert proxy.send(edited) == edited


def test_a_history_whose_first_turn_is_gone_is_rendered_in_full() -> None:
    proxy = Proxy()
    _, _, two, _ = turns(proxy)
    cut = chat(*two["messages"][2:], said("ok"), user("Q3"))
    assert proxy.send(cut) == cut


def test_an_older_message_that_is_not_known_goes_as_it_came() -> None:
    """The engine may have had it, before we were there."""
    proxy = Proxy()
    proxy.send(chat(user(notes(("b", B), ("a", A)))))
    body = chat(user(notes(("a", A), ("b", B), ("a2", A))), said("ok"), user("Q2"))
    assert proxy.send(body) == body


def test_cache_marks_that_move_and_trimmed_replies_break_nothing() -> None:
    proxy = Proxy()
    one, sent_one, _, _ = turns(proxy)
    text = one["messages"][0]["content"]
    marked = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    sent = proxy.send(chat({"role": "user", "content": marked}, said("o"), user("Q")))
    assert sent["messages"][0]["content"][0]["text"] == sent_one["messages"][0]["content"]


def test_an_annotation_to_system_text_goes_with_it() -> None:
    proxy = Proxy()
    opening = user(notes(("u", A)) + "\nQ1")
    sent = proxy.send(chat(system("Context:\n" + notes(("s", A))), opening))
    assert sent["messages"][1]["content"] == note("u", "[Unchanged: same text as s above.]") + "\nQ1"
    other = chat(system("Context:\n" + notes(("s", B))), opening, said("ok"), user("Q2"))
    assert proxy.send(other) == other
    gone = chat(system("Context:"), opening, said("ok"), user("Q2"))
    assert proxy.send(gone) == gone
    again = chat(system("Context:\n" + notes(("s", A))), opening, said("ok"), user("Q2"))
    assert proxy.send(again)["messages"][1] == sent["messages"][1]


def test_a_name_must_be_that_of_a_text_in_full() -> None:
    """The target is gone; an equal text stands above under another name, and the old name on an annotation only."""
    proxy = Proxy()
    one = [user(notes(("x", A))), said("ok"), user(notes(("f", A))), said("ok")]
    proxy.send(chat(*one[:3]))
    later = user(notes(("y", A)) + "\nQ")
    named = Target(text_digest(A), "f", inside=False, words="f", label="f")
    link = Links.of(proxy.read(chat(*one, later))).links[4]
    assert link is not None
    span = Span(0, len('<note name="y">\n'))
    form = (span, "[Unchanged: same text as f above.]", Span(span.end + len(A), len(later["content"])))
    proxy.ledger.record(link, NOBODY, Sent((form,), (), (named,)))
    sent = proxy.send(chat(*one, later))["messages"]
    assert sent[2]["content"] == note("f", "[Unchanged: same text as x above.]")
    assert sent[4]["content"] == note("y", "[Unchanged: same text as x above.]") + "\nQ"


def test_a_region_of_system_text_keeps_its_form_beside_a_clock() -> None:
    proxy = Proxy()
    proxy.send(chat(system(notes(("b", B), ("a", A)) + "\n9:00"), user("hello")))
    one = proxy.send(chat(system(notes(("a", A), ("b", B)) + "\n10:00"), user("hi")))
    two = proxy.send(chat(system(notes(("a", A), ("b", B)) + "\n10:05"), user("hi"), said("ho"), user("Q")))
    assert names(one["messages"][0]["content"]) == names(two["messages"][0]["content"]) == ["b", "a"]
    assert two["messages"][0]["content"].endswith("\n10:05")


def test_two_senders_with_equal_openings_keep_their_own_forms() -> None:
    """Both are under way before either is recorded."""
    proxy = Proxy()
    opening = user(notes(("a", A), ("b", B)))
    first = proxy.treat(chat(system("one"), opening), who=b"1")
    proxy.send(chat(system("two"), user(notes(("b", B), ("a", A)))), who=b"3")
    second = proxy.treat(chat(system("two"), opening), who=b"2")
    assert first.forms != second.forms
    proxy.ordinary.learn(second)
    proxy.ordinary.learn(first)
    for who, name, treatment in ((b"1", "one", first), (b"2", "two", second)):
        again = proxy.treat(chat(system(name), opening, said("ok"), user("Q")), who=who)
        assert again.forms == treatment.forms


def test_what_the_engine_never_had_is_not_remembered() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("b", B), ("a", A)))), who=b"other")
    proxy.treat(chat(user(notes(("a", A), ("b", B)))))
    assert len(proxy.ledger) == 1


# -- switches


def test_switches_of_a_request() -> None:
    proxy = Proxy()
    proxy.send(chat(user(notes(("b", B), ("a", A)))))
    body = chat(user(notes(("a", A), ("b", B), ("a2", A))))
    assert proxy.forwarded(body, proxy.treat(body, recognise=())) == body
    assert proxy.forwarded(body, proxy.treat(body, recognise=("others",))) == body
    assert names(proxy.forwarded(body, proxy.treat(body, order=False))["messages"][0]["content"]) == ["a", "b", "a2"]
    assert "[Unchanged" not in str(proxy.forwarded(body, proxy.treat(body, dedupe=False)))
    assert "[Unchanged" in str(proxy.forwarded(body, proxy.treat(body)))


def test_a_request_without_dedupe_gets_no_annotation_of_old_turns_and_spoils_none() -> None:
    proxy = Proxy()
    _, _, two, sent_two = turns(proxy)
    three = chat(*two["messages"], said("ok"), user("Q3"))
    assert "[Unchanged" not in str(proxy.send(three, dedupe=False))
    assert proxy.send(three)["messages"][:3] == sent_two["messages"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("partial", "some"), ("annotate", -1), ("order", 1), ("max_forms", 0), ("recognise", ("",))],
)
def test_settings_that_cannot_be_used(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        OrdinarySettings(**{field: value})
    assert error.value.field == field


@pytest.mark.parametrize("module", [names_of_texts, chain], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
