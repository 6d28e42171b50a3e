"""The official clients over real sockets: Responses and Completions by OpenAI's, Messages by Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import anthropic
import openai
import pytest

from prefixpilot.proxy import RunningProxy
from prefixpilot.testing import ErrorEvent, SimulatedCall, SimulatedEngine, SimulatedReply

from .support import fetch, metric

EXTRA = {"context_blocks": ["A", {"text": "B", "title": "T"}]}
PLACED = "[Doc 1]\nA\n\n[Doc 2] T\nB\n\n"
CALL = SimulatedReply("Let me see.", "I should look.", (SimulatedCall("call_1", "look", '{"x": 1}'),))
PNG = "iVBORw0KGgo="


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def claude(proxy: RunningProxy) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0, timeout=10) as client:
        yield client


def sent(engine: SimulatedEngine, number: int = -1) -> Any:
    return [request for request in engine.requests if request.body][number].json()


def call_a_tool(body: Mapping[str, Any]) -> str | SimulatedReply:
    """A tool call first, and a text once its result is there."""
    return "It is 42." if "42" in json.dumps(body) else CALL


def tokens(proxy: RunningProxy) -> tuple[float, float]:
    text = fetch(proxy.url, "GET", "/metrics").body.decode()
    return tuple(metric(text, f"prefixpilot_{name}_tokens_total", mode="on") for name in ("prompt", "cached"))  # type: ignore[return-value]


# -- Completions


@pytest.mark.parametrize("stream", [False, True])
def test_completions(engine: SimulatedEngine, client: openai.OpenAI, stream: bool) -> None:
    if stream:
        events = client.completions.create(model="m", prompt="Q?", stream=True, extra_body=EXTRA)
        text = "".join(event.choices[0].text for event in events)
    else:
        text = client.completions.create(model="m", prompt="Q?", extra_body=EXTRA).choices[0].text
    assert text == "This is a simulated answer."
    assert sent(engine) == {"model": "m", "prompt": f"{PLACED}Q?", **({"stream": True} if stream else {})}
    with pytest.raises(openai.BadRequestError, match="is a list"):
        client.completions.create(model="m", prompt=["Q?", "R?"], extra_body=EXTRA)


# -- Responses


@pytest.mark.parametrize("stream", [False, True])
def test_responses(engine: SimulatedEngine, client: openai.OpenAI, proxy: RunningProxy, stream: bool) -> None:
    if stream:
        with client.responses.stream(model="m", input="Q?", instructions="S", extra_body=EXTRA) as events:
            pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
            response: Any = events.get_final_response()
        assert "".join(pieces) == response.output_text
        assert len(pieces) > 3
    else:
        response = client.responses.create(model="m", input="Q?", instructions="S", extra_body=EXTRA)
    assert response.output_text == "This is a simulated answer."
    assert sent(engine)["input"] == f"{PLACED}Q?"
    assert sent(engine)["instructions"] == "S"
    assert "context_blocks" not in sent(engine)
    assert tokens(proxy) == (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_responses_conversation_with_tools_and_images_is_cached_whole(
    engine: SimulatedEngine, client: openai.OpenAI, stream: bool
) -> None:
    engine.reply = call_a_tool
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    items: list[Any] = [{"role": "user", "content": [image, {"type": "input_text", "text": "What is it?"}]}]
    headers = {"X-PrefixPilot-Conversation": "c"}
    tools: Any = [{"type": "function", "name": "look", "parameters": {}, "strict": False}]

    def ask(**extra: Any) -> Any:
        more: Any = {"model": "m", "input": items, "tools": tools, "extra_headers": headers, "extra_body": extra}
        if not stream:
            return client.responses.create(**more)
        with client.responses.stream(**more) as events:
            return events.get_final_response()

    first = ask(**EXTRA)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert json.loads(first.output[-1].arguments) == {"x": 1}
    items += [item.to_dict() for item in first.output]
    items.append({"type": "function_call_output", "call_id": "call_1", "output": "42"})
    second = ask()
    assert second.output_text == "It is 42."
    items += [*(item.to_dict() for item in second.output), {"role": "user", "content": "And B?"}]
    third = ask(context_blocks=["A", "C"])
    bodies = [sent(engine, number)["input"] for number in range(3)]
    assert bodies[0][0]["content"] == [{"type": "input_text", "text": PLACED}, *items[0]["content"]]
    assert bodies[1][:1] == bodies[0]
    assert bodies[2][: len(bodies[1])] == bodies[1]
    assert "[Doc 1]" in bodies[2][-1]["content"]
    assert "[Doc 3]\nC" in bodies[2][-1]["content"]
    cached = [answer.usage.input_tokens_details.cached_tokens for answer in (first, second, third)]
    assert 0 == cached[0] < cached[1] < cached[2]


def test_responses_errors(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="Q?", extra_body={"context_blocks": [1]})
    assert caught.value.param == "context_blocks[0]"
    engine.fault = ErrorEvent(after_chunks=1)
    with pytest.raises(openai.APIError), client.responses.stream(model="m", input="Q?", extra_body=EXTRA) as events:
        list(events)


# -- Messages


@pytest.mark.parametrize("stream", [False, True])
def test_messages(engine: SimulatedEngine, claude: anthropic.Anthropic, proxy: RunningProxy, stream: bool) -> None:
    question: Any = {"model": "m", "max_tokens": 99, "system": "S", "messages": [{"role": "user", "content": "Q?"}]}
    if stream:
        with claude.messages.stream(**question, extra_body=EXTRA) as events:
            pieces = list(events.text_stream)
            message: Any = events.get_final_message()
        assert len(pieces) > 3
        assert "".join(pieces) == message.content[0].text
    else:
        message = claude.messages.create(**question, extra_body=EXTRA)
    assert message.content[0].text == "This is a simulated answer."
    placed = {**question, "messages": [{"role": "user", "content": f"{PLACED}Q?"}]}
    assert {key: value for key, value in sent(engine).items() if key != "stream"} == placed
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert tokens(proxy) == (prompt, usage.cache_read_input_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_messages_conversation_with_thinking_tools_and_images_is_cached_whole(
    engine: SimulatedEngine, claude: anthropic.Anthropic, stream: bool
) -> None:
    engine.reply = call_a_tool
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    messages: list[Any] = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    tools: Any = [{"name": "look", "input_schema": {"type": "object"}}]

    def ask(**extra: Any) -> Any:
        more: Any = {"model": "m", "max_tokens": 99, "messages": messages, "tools": tools, "extra_body": extra}
        more["extra_headers"] = {"X-PrefixPilot-Conversation": "c"}
        if not stream:
            return claude.messages.create(**more)
        with claude.messages.stream(**more) as events:
            return events.get_final_message()

    first = ask(**EXTRA)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.content[-1].input == {"x": 1}
    messages.append({"role": "assistant", "content": [block.to_dict() for block in first.content]})
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "42"}
    messages.append({"role": "user", "content": [result]})
    second = ask()
    assert second.content[0].text == "It is 42."
    messages[-1]["content"].append({"type": "text", "text": "And B?"})
    third = ask(context_blocks=["A", "C"])
    bodies = [sent(engine, number)["messages"] for number in range(3)]
    assert bodies[0][0]["content"] == [{"type": "text", "text": PLACED}, *messages[0]["content"]]
    assert bodies[1][:1] == bodies[2][:1] == bodies[0]
    assert bodies[1][1:] == [messages[1], {"role": "user", "content": [result]}]
    tool, blocks, text = bodies[2][-1]["content"]
    assert (tool, text) == (result, {"type": "text", "text": "And B?"})
    assert "[Doc 1]" in blocks["text"]
    assert "[Doc 3]\nC" in blocks["text"]
    cached = [answer.usage.cache_read_input_tokens for answer in (first, second, third)]
    assert 0 == cached[0] < cached[1] < cached[2]


def test_messages_errors_are_in_anthropics_shape(engine: SimulatedEngine, claude: anthropic.Anthropic) -> None:
    question: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Q?"}]}
    with pytest.raises(anthropic.BadRequestError, match=r"context_blocks\[0\]: is a number") as caught:
        claude.messages.create(**question, extra_body={"context_blocks": [1]})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    engine.fault = ErrorEvent(after_chunks=1)
    with pytest.raises(anthropic.APIError), claude.messages.stream(**question, extra_body=EXTRA) as events:
        list(events)
    engine.stop()
    with pytest.raises(anthropic.InternalServerError) as broken:
        claude.messages.create(**question)
    assert isinstance(broken.value.body, dict)
    assert broken.value.body["error"]["type"] == "api_error"


def test_counting_tokens_without_the_blocks_is_refused(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="/v1/messages"):
        claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": "Q?"}], extra_body=EXTRA)


def test_the_plan_header_reaches_both_clients(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    headers = {"X-Request-Id": "r"}
    question: Any = {"max_tokens": 9, "messages": [{"role": "user", "content": "Q?"}]}
    for raw in (
        client.responses.with_raw_response.create(model="m", input="Q?", extra_body=EXTRA, extra_headers=headers),
        claude.messages.with_raw_response.create(model="m", **question, extra_body=EXTRA, extra_headers=headers),
    ):
        plan = json.loads(raw.headers["x-prefixpilot-plan"])
        assert (plan["request_id"], plan["labels"]) == ("r", ["Doc 1", "Doc 2"])
