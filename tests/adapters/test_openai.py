"""The wrapped client of the OpenAI SDK, on an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionChunk
from tests.integrations.small_rag import DOCUMENTS, QUERIES, assert_one_conversation, found, missing, prefilled_tokens

from prefixpilot import ContextBlock
from prefixpilot.adapters import Conversations, Prepared
from prefixpilot.adapters.openai import PlannedAsyncOpenAI, PlannedOpenAI, wrap
from prefixpilot.errors import InvalidRequestError
from prefixpilot.testing import Respond, SimulatedCall, SimulatedEngine, SimulatedReply


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


@pytest.fixture
def plain(engine: SimulatedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
def client(plain: openai.OpenAI) -> PlannedOpenAI:
    return wrap(plain)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_program_prefills_less_with_the_same_evidence(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    for query in QUERIES:
        client.chat.completions.create(model="m", messages=[user(query.question)], context_blocks=found(query))
    with SimulatedEngine() as without, openai.OpenAI(base_url=f"{without.base_url}/v1", api_key="k") as plain:
        for query in QUERIES:
            content = "\n\n".join([*found(query), query.question])
            plain.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
        assert missing(engine) == missing(without) == []
        assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_sent_as_it_was(engine: SimulatedEngine, client: PlannedOpenAI, stream: bool) -> None:
    history: list[Any] = []
    for query in QUERIES:
        history.append(user(query.question))
        if stream:
            pieces = client.chat.completions.create(
                model="m", messages=history, context_blocks=found(query), conversation_id="c", stream=True
            )
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            history.append({"role": "assistant", "content": text})
        else:
            answer = client.chat.completions.create(
                model="m", messages=history, context_blocks=found(query), conversation_id="c"
            )
            history.append(answer.choices[0].message)
    assert_one_conversation(engine)
    assert [message["content"] for message in history[::2]] == [query.question for query in QUERIES]


def test_responses(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    history: list[Any] = []
    for query in QUERIES[:2]:
        history.append(user(query.question))
        answer = client.responses.create(
            model="m", instructions="Be brief.", input=history, context_blocks=found(query), conversation_id="c"
        )
        history += answer.output
    first, second = (request.json() for request in engine.requests)
    assert second["input"][0] == first["input"][0]
    assert second["input"][2]["content"].count("Please refer to [Doc ") == 4
    client.responses.create(model="m", input="Q?", context_blocks=["A document."])
    assert engine.requests[-1].json()["input"] == "[Doc 1]\nA document.\n\nQ?"
    events = client.responses.create(model="m", input="Q?", stream=True, context_blocks=["A document."])
    assert [event.type for event in events][-1] == "response.completed"


def test_the_async_client(engine: SimulatedEngine) -> None:
    async def ask() -> tuple[str | None, list[ChatCompletionChunk], str]:
        async with wrap(openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="k")) as client:
            assert isinstance(client, PlannedAsyncOpenAI)
            blocks: list[str | ContextBlock] = ["A document.", ContextBlock("Another.", id=b"7", title="Title")]
            answer = await client.chat.completions.create(model="m", messages=[user("Q?")], context_blocks=blocks)
            stream = await client.chat.completions.create(
                model="m", messages=[user("Q?")], context_blocks=blocks, stream=True
            )
            pieces = [piece async for piece in stream]
            response = await client.responses.create(model="m", input="Q?", context_blocks=blocks)
            quick = client.with_options(timeout=5)
            await quick.chat.completions.create(model="m", messages=[user("Q?")], context_blocks=blocks)
            return answer.choices[0].message.content, pieces, response.output_text

    content, pieces, text = asyncio.run(ask())
    assert content == text == "".join(piece.choices[0].delta.content or "" for piece in pieces)
    expected = "[Doc 1]\nA document.\n\n[Doc 2] Title\nAnother.\n\nQ?"
    assert [request.json()["messages"][0]["content"] for request in engine.chats] == [expected] * 3
    assert engine.requests[2].json()["input"] == expected


def test_a_tool_loop_sends_its_documents_again_unchanged(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    def reply(body: Any) -> SimulatedReply:
        asked = body["messages"][-1]["role"] == "user"
        return SimulatedReply(calls=(SimulatedCall("call_1", "look"),)) if asked else SimulatedReply("Done.")

    engine.reply = reply
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    history: list[Any] = [user("Q?")]
    arguments: dict[str, Any] = {"model": "m", "tools": tools, "conversation_id": "c"}
    called = client.chat.completions.create(messages=history, context_blocks=list(DOCUMENTS[:2]), **arguments)
    history += [called.choices[0].message, {"role": "tool", "tool_call_id": "call_1", "content": "seen"}]
    client.chat.completions.create(messages=history, **arguments)
    client.chat.completions.create(messages=history, context_blocks=list(DOCUMENTS[:2]), **arguments)
    first, *others = [request.json()["messages"][0] for request in engine.chats]
    assert others == [first, first] and DOCUMENTS[0] in first["content"]
    with pytest.raises(InvalidRequestError, match="has been sent already"):
        client.chat.completions.create(messages=history, context_blocks=["New."], **arguments)


def test_blocks_in_extra_body_are_planned_too(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    """As a program has them that went through the proxy before: they never reach the engine as they are."""
    client.chat.completions.create(
        model="m", messages=[user("Q?")], extra_body={"context_blocks": ["A document."], "top_k": 5}
    )
    body = engine.chats[0].json()
    assert body["messages"] == [user("[Doc 1]\nA document.\n\nQ?")] and body["top_k"] == 5
    assert "context_blocks" not in body


def test_parsed_answers(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    class Answer(pydantic.BaseModel):
        hour: int

    engine.reply = lambda body: '{"hour": 6}'
    for _ in range(2):
        answer = client.chat.completions.parse(
            model="m", messages=[user("Q?")], response_format=Answer, context_blocks=["A document."]
        )
    assert answer.choices[0].message.parsed == Answer(hour=6)
    assert engine.chats[1].json()["messages"] == [user("[Doc 1]\nA document.\n\nQ?")]


def test_calls_without_blocks_are_the_clients_own(
    engine: SimulatedEngine, client: PlannedOpenAI, plain: openai.OpenAI
) -> None:
    arguments: dict[str, Any] = {"model": "m", "messages": [user("Q?")], "temperature": 0.5, "seed": 3}
    client.chat.completions.create(**arguments)
    plain.chat.completions.create(**arguments)
    first, second = engine.chats
    assert first.body == second.body
    assert [model.id for model in client.models.list()] == ["simulated"]
    assert client.base_url == plain.base_url


def test_what_is_told_when_a_request_is_sent(engine: SimulatedEngine, plain: openai.OpenAI) -> None:
    told: list[Prepared] = []
    client = wrap(plain, on_sent=told.append)
    client.chat.completions.create(model="m", messages=[user("Q?")], context_blocks=["A", "B"])
    client.chat.completions.create(model="m", messages=[user("Q?")], context_blocks=["B", "A"])
    assert [prepared.labels for prepared in told] == [("Doc 1", "Doc 2"), ("Doc 2", "Doc 1")]


def test_a_refused_request_is_not_remembered(engine: SimulatedEngine, plain: openai.OpenAI) -> None:
    told: list[Prepared] = []
    conversations = Conversations()
    client = wrap(plain, conversations, on_sent=told.append)
    engine.fault = Respond(500)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(
            model="m", messages=[user("Q?")], context_blocks=["A document."], conversation_id="c"
        )
    assert told == [] and len(conversations) == 0 and conversations.pilot.live_requests == 0


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"context_blocks": "one text"}, "context_blocks"),
        ({"context_blocks": [""]}, r"context_blocks\[0\]"),
        ({"context_blocks": [ContextBlock(id=1)]}, r"context_blocks\[0\].text"),
        ({"context_blocks": ["A"], "messages": []}, "messages"),
        ({"context_blocks": ["A"], "extra_body": {"context_blocks": ["B"]}}, "given twice"),
        ({"conversation_id": ""}, "conversation_id"),
    ],
)
def test_bad_input_is_named_and_nothing_is_sent(
    engine: SimulatedEngine, client: PlannedOpenAI, wrong: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidRequestError, match=names):
        client.chat.completions.create(**{"model": "m", "messages": [user("Q?")], **wrong})
    assert not engine.requests


def test_only_clients_of_the_sdk_are_wrapped() -> None:
    wrong: Any = object()
    with pytest.raises(InvalidRequestError, match="client"):
        wrap(wrong)


def test_messages_go_on_as_they_came(engine: SimulatedEngine, client: PlannedOpenAI) -> None:
    """Iterables, objects of the SDK, parts; only the message that gets blocks is another."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Q?"}, image]},
    ]
    client.chat.completions.create(model="m", messages=iter(messages), context_blocks=iter(["A document."]))
    sent = engine.chats[0].json()["messages"]
    assert sent[0] == messages[0] and sent[1]["content"][-2:] == messages[1]["content"]
    assert json.dumps(sent[1]["content"][0]).count("[Doc 1]") == 1
