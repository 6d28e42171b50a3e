"""What each API's body says: whose words stand where, what may be changed, and how far the engine has been."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.apis import API_OF_NAME, API_OF_PATH, APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES
from prefixpilot.apis.base import Api, Prompt, Segment, ToolCall
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import JsonText, SetText


def read(api: Api, body: dict[str, Any]) -> Prompt:
    prompt = api.read(body)
    assert prompt is not None
    return prompt


def shown(segment: Segment) -> str:
    """``role[!][*] pointer text [call]``: ``!`` is sealed, ``*`` ends the cached prefix."""
    marks = f"{'!' * segment.sealed}{'*' * segment.ends_prefix}"
    call = "" if segment.call_id is None else f" ({segment.call_id})"
    return f"{segment.role}{marks} {'.'.join(map(str, segment.pointer))} {segment.text}{call}"


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
MARK = {"type": "ephemeral"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}

CHATS: list[tuple[list[Any], list[str]]] = [
    (
        [{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": "Q"}],
        ["system messages.0.content S", "system messages.1.content D", "user messages.2.content Q"],
    ),
    (
        [{"role": "user", "content": [IMAGE, {"type": "text", "text": "Q"}, {"type": "input_audio"}, 1]}],
        ["user messages.0.content.1.text Q"],
    ),
    (
        [
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "R"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "P"}]},
        ],
        ["tool messages.1.content R (c1)", "tool messages.2.content.0.text P (c2)"],
    ),
    (
        [{"role": "assistant", "content": "A", "function_call": {"name": "f", "arguments": "{}"}}],
        ["assistant! messages.0.content A"],
    ),
    ([{"role": "function", "name": "f", "content": "R"}], ["tool messages.0.content R (f)"]),
    (
        [
            {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": [{"type": "text", "text": "Q", "cache_control": MARK}, IMAGE]},
            {"role": "user", "content": [{"type": "text", "text": "R"}, {**IMAGE, "cache_control": MARK}]},
            {"role": "system", "content": "S", "cache_control": MARK},
        ],
        [
            "assistant! messages.0.content.0.text A",
            "user* messages.1.content.0.text Q",
            "user* messages.2.content.0.text R",
            "system* messages.3.content S",
        ],
    ),
    ([1, {"content": "x"}, {"role": "observation", "content": "x"}, {"role": "user", "content": 7}], []),
]


@pytest.mark.parametrize(("messages", "segments"), CHATS)
def test_chat(messages: list[Any], segments: list[str]) -> None:
    prompt = read(CHAT, {"messages": messages})
    assert [shown(segment) for segment in prompt.segments()] == segments
    assert [message.value for message in prompt.messages] == messages
    assert [message.pointer for message in prompt.messages] == [("messages", i) for i in range(len(messages))]


def test_chat_calls() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "text"}}
    legacy = {"role": "assistant", "function_call": {"name": "h", "arguments": "[]"}}
    calling = {"role": "assistant", "tool_calls": [TOOL_CALL, custom, {"id": "odd"}]}
    prompt = read(CHAT, {"messages": [calling, legacy]})
    assert [message.calls for message in prompt.messages] == [
        (ToolCall("c1", "f", '{"x": 1}'), ToolCall("c2", "g", "text")),
        (ToolCall("h", "h", "[]"),),
    ]


@pytest.mark.parametrize("prompt", [[1, 2], ["a", "b"], ["a"], [[1]], None, {}])
def test_completions_that_are_no_one_text_are_left_alone(prompt: Any) -> None:
    assert COMPLETIONS.read({"prompt": prompt}) is None


def test_completions() -> None:
    prompt = read(COMPLETIONS, {"prompt": "Q", "suffix": "S"})
    assert [shown(segment) for segment in prompt.segments()] == ["user prompt Q"]
    assert (prompt.newest_user, prompt.in_tool_loop, prompt.first_new) == (0, False, 0)


ITEMS: list[tuple[Any, list[str]]] = [
    ("Q", ["system instructions I", "user input Q"]),
    (
        [{"role": "user", "content": "Q"}, {"type": "message", "role": "developer", "content": "D"}],
        ["system instructions I", "user input.0.content Q", "system input.1.content D"],
    ),
    (
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Q"}, {"type": "input_image"}]},
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "x"}], "content": []},
            {"type": "file_search_call", "results": [{"text": "hidden"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "R"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "text"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "P"}]},
            {"type": "computer_call_output", "call_id": "c3", "output": {"type": "computer_screenshot"}},
            {"type": "compaction", "encrypted_content": "x"},
        ],
        [
            "system instructions I",
            "user input.0.content.0.text Q",
            "assistant! input.3.content.0.text A",
            "tool input.5.output R (c1)",
            "tool input.7.output.0.text P (c2)",
        ],
    ),
    ([1, {"type": "message"}, {"role": "critic", "content": "x"}], ["system instructions I"]),
]


@pytest.mark.parametrize(("given_input", "segments"), ITEMS)
def test_responses(given_input: Any, segments: list[str]) -> None:
    prompt = read(RESPONSES, {"input": given_input, "instructions": "I"})
    assert [shown(segment) for segment in prompt.segments()] == segments
    assert not prompt.unseen
    calls = [call for message in prompt.messages for call in message.calls]
    assert calls in ([], [ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "text")])


@pytest.mark.parametrize(
    ("more", "unseen"),
    [
        ({"previous_response_id": "r"}, True),
        ({"conversation": {"id": "c"}}, True),
        ({"input": [{"type": "item_reference", "id": "m"}]}, True),
        ({"previous_response_id": None, "conversation": None}, False),
    ],
)
def test_responses_may_refer_to_turns_that_are_not_there(more: dict[str, Any], unseen: bool) -> None:
    assert read(RESPONSES, {"input": "Q", **more}).unseen is unseen


@pytest.mark.parametrize("given_input", [None, 1, {"role": "user"}])
def test_responses_of_unknown_shape_are_left_alone(given_input: Any) -> None:
    assert RESPONSES.read({"instructions": "I", "input": given_input}) is None
    assert RESPONSES.read({"previous_response_id": "r"}) is None


USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}}
THINKING = {"type": "thinking", "thinking": "x", "signature": "s"}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "R"}

ANTHROPIC: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"system": "S", "messages": [{"role": "user", "content": "Q"}]},
        ["system system S", "user messages.0.content Q"],
        ["system", "user"],
    ),
    (
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}],
            "system": [{"type": "text", "text": "S"}, {"type": "text", "text": "T", "cache_control": MARK}],
        },
        ["system system.0.text S", "system* system.1.text T", "user messages.0.content.0.text Q"],
        ["system", "user"],
    ),
    (
        {
            "messages": [
                {"role": "assistant", "content": [THINKING, {"type": "text", "text": "A"}, USE]},
                {"role": "user", "content": [RESULT, {**RESULT, "content": [{"type": "text", "text": "P"}, IMAGE]}]},
                {"role": "assistant", "content": "B"},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "Q"}]},
            ]
        },
        [
            "assistant! messages.0.content.1.text A",
            "tool messages.1.content.0.content R (t1)",
            "tool messages.1.content.1.content.0.text P (t1)",
            "assistant! messages.2.content B",
            "tool messages.3.content.0.content R (t1)",
            "user messages.3.content.1.text Q",
        ],
        ["assistant", "tool", "assistant", "user"],
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]},
                {"role": "user", "content": [{"type": "search_result", "content": [{"type": "text", "text": "x"}]}]},
                {"role": "user", "content": [{**RESULT, "cache_control": MARK}]},
                {"role": "user", "content": [{"type": "text", "text": "Q"}, {**IMAGE, "cache_control": MARK}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]},
                {"role": "user", "content": []},
                {"role": "narrator", "content": "x"},
                None,
            ]
        },
        ["tool* messages.2.content.0.content R (t1)", "user* messages.3.content.0.text Q"],
        ["user", "user", "tool", "user", "tool", "user", "tool", "tool"],
    ),
]


@pytest.mark.parametrize(("body", "segments", "roles"), ANTHROPIC)
def test_messages(body: dict[str, Any], segments: list[str], roles: list[str]) -> None:
    prompt = read(MESSAGES, body)
    assert [shown(segment) for segment in prompt.segments()] == segments
    assert [message.role for message in prompt.messages] == roles


def test_messages_calls_have_canonical_arguments() -> None:
    prompt = read(MESSAGES, {"messages": [{"role": "assistant", "content": [USE]}]})
    assert prompt.messages[0].calls == (ToolCall("t1", "f", '{"a":"\\u00e9","b":1}'),)


@pytest.mark.parametrize(
    ("roles", "newest", "loop", "first_new"),
    [
        ([], -1, False, 0),
        (["system"], -1, False, 0),
        (["system", "user"], 1, False, 0),
        (["user", "assistant"], 0, True, 2),
        (["user", "assistant", "user"], 2, False, 2),
        (["assistant", "user", "user"], 2, False, 1),
    ],
)
@pytest.mark.parametrize("api", [CHAT, MESSAGES])
def test_how_far_the_engine_has_been(api: Api, roles: list[str], newest: int, loop: bool, first_new: int) -> None:
    prompt = read(api, {"messages": [{"role": role, "content": "x"} for role in roles]})
    assert (prompt.newest_user, prompt.in_tool_loop, prompt.first_new) == (newest, loop, first_new)


def test_a_tool_result_behind_the_newest_user_message_is_a_loop() -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": [USE]}]
    prompt = read(MESSAGES, {"messages": [*messages, {"role": "user", "content": [RESULT]}]})
    assert (prompt.newest_user, prompt.in_tool_loop, prompt.first_new) == (0, True, 2)
    mixed = {"role": "user", "content": [RESULT, {"type": "text", "text": "Q"}]}
    assert not read(MESSAGES, {"messages": [*messages, mixed]}).in_tool_loop


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v1/chat/completions", "chat"),
        (b"/chat/completions", "chat"),
        (b"/v1/completions", "completions"),
        (b"/completions", None),
        (b"/v1/responses", "responses"),
        (b"/responses", "responses"),
        (b"/v1/messages", "messages"),
        (b"/messages", "messages"),
        (b"/v1/messages/count_tokens", None),
        (b"/v1/models", None),
    ],
)
def test_which_api_answers_a_path(path: bytes, name: str | None) -> None:
    api = API_OF_PATH.get(path)
    assert (api and api.name) == name
    assert name is None or API_OF_NAME[name] is api


LEAVES = st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["user", "text", "tool_result", "message"])
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "output", "cache_control", "tool_calls", "function", "arguments", "name", "id"]
)
ODD = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)


CONTENTS = st.text(max_size=3) | st.lists(
    st.sampled_from(
        [
            {"type": "text", "text": "Q"},
            {"type": "input_text", "text": "Q"},
            {"type": "image"},
            {"type": "tool_result", "tool_use_id": "t", "content": "R"},
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "R"}]},
        ]
    ),
    max_size=4,
)
SAID = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "odd"]), "content": CONTENTS})
    | st.just({"role": "user", "content": None}),
    max_size=4,
)


@given(st.sampled_from(APIS), SAID, st.none() | st.just("S"))
def test_text_in_front_is_the_first_that_a_message_says_itself(api: Api, said: list[Any], first: str | None) -> None:
    body = dict.fromkeys(api.members, first) | {api.members[0]: said if api is not COMPLETIONS else first or ""}
    prompt = read(api, body)
    for message in prompt.messages:
        if message.role != "user":
            continue
        try:
            edit = api.in_front(message, "T")
        except InvalidRequestError as error:
            assert error.field == f"{api.members[0]}[{message.pointer[1]}].content"
            assert message.value["content"] is None
            continue
        again = read(api, json.loads(JsonText.read(json.dumps(body).encode()).edited([edit])))
        i = prompt.messages.index(message)
        own = [segment.text for segment in message.segments if segment.role == "user"]
        ours = [segment.text for segment in again.messages[i].segments if segment.role == "user"]
        assert "".join(ours) == "".join(["T\n\n", *own])
        roles = [segment.role for segment in again.messages[i].segments]
        behind = roles[roles.index("user") :]
        assert "tool" not in behind or api is not MESSAGES
        assert [m.role for m in again.messages] == [m.role for m in prompt.messages]
        assert again.newest_user == prompt.newest_user


@given(st.sampled_from(APIS), ODD, ODD, ODD)
def test_no_body_is_an_error_and_every_pointer_holds(api: Api, first: Any, second: Any, more: Any) -> None:
    body = dict(zip(api.members, (first, second), strict=False)) | {"tools": more}
    prompt = api.read(body)
    if prompt is None:
        return
    assert prompt.newest_user < len(prompt.messages)
    source = JsonText.read(json.dumps(body).encode())
    for number, segment in enumerate(prompt.segments()):
        value: Any = body
        for step in segment.pointer:
            value = value[step]
        assert value == segment.text
        assert segment in prompt.messages[segment.message].segments
        assert segment.sealed == (segment.role == "assistant")
        again = api.read(json.loads(source.edited([SetText(segment.pointer, "new")])))
        assert again is not None
        assert [s.text for s in again.segments()][number] == "new"
