"""The official client, as users have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from prefixpilot.proxy import RunningProxy
from prefixpilot.testing import SimulatedCall, SimulatedEngine, SimulatedReply

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Q?"}]


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_context_blocks_by_extra_body(engine: SimulatedEngine, client: openai.OpenAI, stream: bool) -> None:
    extra = {"context_blocks": ["A", {"text": "B", "title": "T"}]}
    if stream:
        events = client.chat.completions.create(model="m", messages=QUESTION, stream=True, extra_body=extra)
        text = "".join(event.choices[0].delta.content or "" for event in events)
    else:
        text = (
            client.chat.completions.create(model="m", messages=QUESTION, extra_body=extra).choices[0].message.content
            or ""
        )
    assert text == "This is a simulated answer."
    assert engine.chats[-1].json()["messages"] == [{"role": "user", "content": "[Doc 1]\nA\n\n[Doc 2] T\nB\n\nQ?"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_cached_whole(engine: SimulatedEngine, client: openai.OpenAI, stream: bool) -> None:
    messages = list(QUESTION)
    headers = {"X-PrefixPilot-Conversation": "c"}
    cached, sent = [], []
    for turn in range(3):
        blocks = {"context_blocks": [f"The text number {n} of some length." for n in (turn, turn + 1, 0)]}
        if stream:
            events = list(
                client.chat.completions.create(
                    model="m",
                    messages=messages,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body=blocks,
                    extra_headers=headers,
                )
            )
            reply = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
            usage = events[-1].usage
        else:
            answer = client.chat.completions.create(
                model="m", messages=messages, extra_body=blocks, extra_headers=headers
            )
            reply, usage = answer.choices[0].message.content or "", answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
        sent.append(engine.chats[-1].json()["messages"])
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "More?"}]
    assert sent[1][:1] == sent[0]
    assert sent[2][:3] == sent[1]
    assert 0 == cached[0] < cached[1] < cached[2]


def test_the_plan_header_and_the_errors_reach_the_client(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=QUESTION, extra_body={"context_blocks": ["A"]}, extra_headers={"X-Request-Id": "r"}
    )
    assert json.loads(raw.headers["x-prefixpilot-plan"])["request_id"] == "r"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=QUESTION, extra_body={"context_blocks": [1]})
    assert caught.value.param == "context_blocks[0]"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_images_of_a_conversation(engine: SimulatedEngine, client: openai.OpenAI, stream: bool) -> None:
    call = SimulatedCall("call_1", "look", '{"x": 1}')
    engine.reply = lambda body: "It is 42." if "42" in json.dumps(body) else SimulatedReply("", "", (call,))
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages: list[Any] = [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    def ask(**extra: Any) -> Any:
        more: Any = {"model": "m", "messages": messages, "tools": tools, "extra_body": extra}
        more["extra_headers"] = {"X-PrefixPilot-Conversation": "c"}
        if not stream:
            return client.chat.completions.create(**more).choices[0].message
        with client.chat.completions.stream(**more) as events:
            return events.get_final_completion().choices[0].message

    first = ask(context_blocks=["A", "B"])
    assert [(c.id, c.function.name, c.function.arguments) for c in first.tool_calls] == [("call_1", "look", '{"x": 1}')]
    messages.append(first.to_dict())
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": "42"})
    second = ask()
    assert second.content == "It is 42."
    sent = [chat.json()["messages"] for chat in engine.chats]
    blocks = {"type": "text", "text": "[Doc 1]\nA\n\n[Doc 2]\nB\n\n"}
    assert sent[0] == [{"role": "user", "content": [blocks, *messages[0]["content"]]}]
    assert sent[1] == [*sent[0], *messages[1:]]
