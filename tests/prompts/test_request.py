from __future__ import annotations

import doctest
import json
import subprocess
import sys
from typing import Any

import pytest

from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts import blocks as blocks_module
from prefixpilot.prompts.blocks import plain_text
from prefixpilot.prompts.request import BlocksRequest, parse_request


def body(messages: Any, blocks: Any = ("A",), **more: Any) -> dict[str, Any]:
    given = list(blocks) if isinstance(blocks, tuple) else blocks
    return {"model": "m", "messages": messages, "context_blocks": given, **more}


def parsed(*args: Any, **more: Any) -> BlocksRequest:
    request = parse_request(body(*args, **more))
    assert request is not None
    return request


USER = [{"role": "user", "content": "Q?"}]


def test_the_module_examples() -> None:
    assert doctest.testmod(blocks_module).failed == 0


def test_strings_and_objects() -> None:
    request = parsed(USER, ("A", {"text": "B", "id": 7, "title": "T"}, {"text": "C", "id": None, "title": ""}))
    assert request.blocks == (ContextBlock("A"), ContextBlock("B", id=7, title="T"), ContextBlock("C"))


def test_text_goes_in_front_of_the_newest_user_message() -> None:
    messages = [*USER, {"role": "assistant", "content": "x"}, {"role": "user", "content": "More?", "name": "bo"}]
    sent = parsed(messages, temperature=0.5, unknown={"k": 1}).render("[Doc 1]\nA")
    assert list(sent) == ["model", "messages", "temperature", "unknown"]
    assert sent["messages"][:2] == messages[:2]
    assert sent["messages"][2] == {"role": "user", "content": "[Doc 1]\nA\n\nMore?", "name": "bo"}


def test_content_parts_get_one_text_part_in_front() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    sent = parsed([{"role": "user", "content": [image]}]).render("A")
    assert sent["messages"][0]["content"] == [{"type": "text", "text": "A\n\n"}, image]


def test_empty_text_adds_nothing_and_the_clients_body_is_not_changed() -> None:
    given = body(USER)
    before = json.dumps(given)
    request = parse_request(given)
    assert request is not None
    assert request.render("") == {"model": "m", "messages": USER}
    assert request.render("A")["messages"][0]["content"] == "A\n\nQ?"
    assert json.dumps(given) == before


@pytest.mark.parametrize("blocks", [None, []])
def test_no_blocks_only_removes_the_key(blocks: Any) -> None:
    request = parsed(USER, blocks)
    assert request.blocks == ()
    assert request.render("") == {"model": "m", "messages": USER}
    assert parsed("not a list", blocks).render("") == {"model": "m", "messages": "not a list"}


def test_without_the_key_there_is_nothing_to_place_unless_history_is_asked_for() -> None:
    assert parse_request({"messages": USER}) is None
    request = parse_request({"messages": USER}, history=True)
    assert request is not None
    assert (request.blocks, request.newest_user) == ((), 0)
    assert parse_request({"messages": []}, history=True) is None
    assert parse_request({}, history=True) is None


@pytest.mark.parametrize(
    ("blocks", "field"),
    [
        ("A", "context_blocks"),
        ({"text": "A"}, "context_blocks"),
        (["A", 3], "context_blocks[1]"),
        (["A", None], "context_blocks[1]"),
        ([["A"]], "context_blocks[0]"),
        (["A", ""], "context_blocks[1]"),
        ([{"text": ""}], "context_blocks[0].text"),
        ([{"id": 1}], "context_blocks[0].text"),
        ([{"text": 1}], "context_blocks[0].text"),
        ([{"text": None}], "context_blocks[0].text"),
        (["A", "B", {"text": "C", "score": 0.5}], "context_blocks[2].score"),
        ([{"text": "A", "id": 1.5}], "context_blocks[0].id"),
        ([{"text": "A", "id": True}], "context_blocks[0].id"),
        ([{"text": "A", "title": 3}], "context_blocks[0].title"),
    ],
)
def test_malformed_blocks_are_named(blocks: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(body(USER, blocks))
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"context_blocks": ["A"]}, "messages"),
        (body("Q?"), "messages"),
        (body([]), "messages"),
        (body([{"role": "system", "content": "s"}]), "messages"),
        (body(["Q?"]), "messages"),
        (body([{"role": "user"}]), "messages[0].content"),
        (body([*USER, {"role": "user", "content": 3}]), "messages[1].content"),
    ],
)
def test_blocks_need_a_user_message_to_go_in_front_of(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(given)
    assert caught.value.field == field


def test_a_tool_loop_is_a_user_message_before_the_last_assistant_message() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    tool = {"role": "tool", "content": "42", "tool_call_id": "c"}
    assert parsed([*USER, call, tool]).in_tool_loop
    assert parsed([*USER, call, tool]).newest_user == 0
    assert not parsed([*USER, call, tool, *USER]).in_tool_loop
    assert not parsed([{"role": "assistant", "content": "Hello"}, *USER]).in_tool_loop


def test_the_scope_is_what_must_be_equal_before_the_first_block() -> None:
    system = [{"role": "system", "content": "s"}]
    scope = parsed([*system, *USER]).scope()
    same = [
        parsed([*system, {"role": "user", "content": "Another?"}], ("B",)),
        parsed([*system, *USER, {"role": "assistant", "content": "x"}]),
        parsed([*system, *USER], temperature=1, stream=True, max_tokens=3),
    ]
    other = [
        parsed(USER),
        parsed([*system, *USER], tools=[{"type": "function"}]),
        parsed([*system, *USER], cache_salt="a"),
        parsed([*system, *USER], chat_template_kwargs={"enable_thinking": False}),
        parsed([*system, {"role": "user", "content": "Q?", "name": "bo"}]),
        parsed([*system, *USER, *USER]),
    ]
    assert {request.scope() for request in same} == {scope}
    assert len({scope, *(request.scope() for request in other)}) == len(other) + 1


def test_the_scope_is_equal_in_every_process() -> None:
    code = (
        "from prefixpilot.prompts.request import parse_request;"
        "print(parse_request({'model': 'm', 'messages': [{'role': 'user', 'content': 'Q?'}]}, history=True).scope())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
        ).stdout.strip()
        for _ in range(2)
    }
    assert runs == {parsed(USER).scope()}


def test_plain_text_is_the_same_template_in_the_given_order() -> None:
    blocks = [ContextBlock("A"), ContextBlock("B", title="T"), ContextBlock("A")]
    assert plain_text(blocks, 4) == "[Doc 4]\nA\n\n[Doc 5] T\nB\n\n[Doc 6]\nA"
    assert plain_text([]) == ""


def test_every_json_string_can_be_hashed() -> None:
    lone = json.loads('"\\ud800"')
    assert parsed([{"role": "system", "content": lone}, *USER]).scope()
