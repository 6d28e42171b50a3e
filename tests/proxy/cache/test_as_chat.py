"""Messages and Responses requests are counted as the chats that engines make of them, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.proxy.cache.as_chat import as_chat

from ..support import fetch, metric, user
from .support import PAGE, followed, share, texts, until

BLOCKS = texts(4, 40)
SYSTEM = "Answer from the documents, and name the one that you used."
PATHS = {"messages": "/v1/messages", "responses": "/v1/responses"}
CALL = {"id": "t1", "type": "function", "function": {"name": "find", "arguments": '{"q": "tram"}'}}


def body(api: str, question: str, blocks: Any = None, **more: Any) -> dict[str, Any]:
    said: dict[str, dict[str, Any]] = {
        "messages": {"system": SYSTEM, "messages": [user(question)], "max_tokens": 9},
        "responses": {"instructions": SYSTEM, "input": [user(question)]},
    }
    given = {"model": "m", **said[api], **more}
    return given if blocks is None else {**given, "context_blocks": blocks}


@pytest.mark.parametrize("events", ["named", "off"])
@pytest.mark.parametrize("api", PATHS)
def test_they_are_predicted_to_the_page(api: str, events: str) -> None:
    with followed(600, events=events, token_ids="engine", page_size=PAGE, cache_tokens=600 * PAGE) as setup:
        if events == "named":
            setup.in_state("EXACT")
        for number in range(5):
            assert fetch(setup.url, "POST", PATHS[api], body(api, f"{number}?", BLOCKS)).status == 200
            setup.settled(number + 1)
        basis = "events" if events == "named" else "model"
        stats = setup.stats()
        assert stats["predictions"][basis]["compared"] >= 4
        assert stats["predictions"][basis]["reported_tokens"] > 0
        assert share(stats, basis) == 1.0


@pytest.mark.parametrize("api", PATHS)
def test_what_the_engine_renders_in_another_way_is_not_believed(api: str) -> None:
    """The simulated engine writes tools as they came."""
    tool = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}, "parameters": {}}
    with followed(600, events="off", token_ids="engine", page_size=PAGE) as setup:
        for number in range(2):
            fetch(setup.url, "POST", PATHS[api], body(api, f"{number}?", BLOCKS, tools=[tool]))
        stats = setup.settled(2)
        assert stats["predictions"] == {}
        text = fetch(setup.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_token_ids_total", got="mismatched") == 2


def test_earlier_turns_that_only_the_engine_has_make_it_unknown() -> None:
    with followed(600, events="off", token_ids="engine", page_size=PAGE) as setup:
        fetch(setup.url, "POST", "/v1/responses", body("responses", "And?", previous_response_id="resp-1"))
        until(lambda: {"text": fetch(setup.url, "GET", "/metrics").body.decode()}, refused_once)
        assert setup.settled(1)["predictions"] == {}


def refused_once(seen: dict[str, Any]) -> bool:
    return metric(seen["text"], "prefixpilot_engine_token_ids_total", got="refused") == 1


def test_a_conversation_with_tools() -> None:
    result = {"role": "tool", "tool_call_id": "t1", "content": "at noon"}
    calls = {"role": "assistant", "tool_calls": [CALL]}
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "tram"}}
    given = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "at noon"}]}
    parts = [{"type": "text", "text": "And"}, {"type": "text", "text": "then?"}]
    messages = [user("When?"), {"role": "assistant", "content": [use]}, user([given, *parts])]
    said = as_chat("messages", {"system": [parts[0], parts[1]], "messages": messages})
    assert said == {"messages": [{"role": "system", "content": "Andthen?"}, user("When?"), calls, result, user(parts)]}
    items = [
        user([{"type": "input_text", "text": "When?"}]),
        {"type": "function_call", "call_id": "t1", "name": "find", "arguments": '{"q": "tram"}'},
        {"type": "function_call_output", "call_id": "t1", "output": "at noon"},
    ]
    assert as_chat("responses", {"input": items}) == {"messages": [user("When?"), calls, result]}


def test_tools_are_functions() -> None:
    function = {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    schema = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}
    asked = as_chat("messages", {"model": "m", "messages": [user("Hi")], "tools": [schema]})
    assert asked == {"model": "m", "messages": [user("Hi")], "tools": tools}
    flat = {"type": "function", **function}
    assert as_chat("responses", {"input": "Hi", "tools": [flat]}) == {"messages": [user("Hi")], "tools": tools}


@pytest.mark.parametrize(
    ("api", "given"),
    [
        ("messages", {"messages": [user([{"type": "image", "source": {}}])]}),
        ("messages", {"messages": [user([3])]}),
        ("messages", {"messages": [{"role": "user"}, 3]}),
        ("messages", {"messages": [], "system": 3}),
        ("messages", {"messages": [user("Hi")], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("responses", {"input": [{"type": "reasoning", "summary": []}]}),
        ("responses", {"input": [user([{"type": "input_image"}])]}),
        ("responses", {"input": "Hi", "conversation": "c"}),
        ("responses", {"input": 3}),
    ],
)
def test_what_is_not_known_is_not_guessed(api: str, given: dict[str, Any]) -> None:
    assert as_chat(api, given) is None
