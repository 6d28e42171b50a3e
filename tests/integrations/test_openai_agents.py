"""The OpenAI Agents SDK as installed: a wrapped client as that of its model provider."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import openai
import pytest
from tests.integrations.small_rag import DOCUMENTS, QUERIES, assert_one_conversation, found, missing, prefilled_tokens

from prefixpilot.adapters.openai import wrap
from prefixpilot.testing import SimulatedCall, SimulatedEngine, SimulatedReply

pytestmark = pytest.mark.integrations
pytest.importorskip("agents", reason="run `make test-integrations`")

from agents import (  # noqa: E402
    Agent,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


@function_tool
def look() -> str:
    """Looks."""
    return "seen"


async def ask(
    engine: SimulatedEngine,
    planned: bool,
    *,
    tools: Any = (),
    conversation: str | None = None,
    responses: bool = False,
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="unused", max_retries=0) as plain:
        client: Any = wrap(plain) if planned else plain
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client, use_responses=responses))
        agent = Agent(name="librarian", instructions="Answer from the documents.", model="simulated", tools=list(tools))
        history: list[Any] = []
        for query in QUERIES:
            extra: dict[str, Any] = {}
            if planned:
                extra = {"context_blocks": found(query), "conversation_id": conversation}
            text = query.question if planned else "\n\n".join([*found(query), query.question])
            asked = agent.clone(model_settings=ModelSettings(extra_args=extra))
            before = history if conversation else []
            result = await Runner.run(asked, [*before, {"role": "user", "content": text}], run_config=config)
            history = result.to_input_list()


def test_an_agent_prefills_less_with_the_same_evidence() -> None:
    with SimulatedEngine() as without, SimulatedEngine() as engine:
        asyncio.run(ask(without, planned=False))
        asyncio.run(ask(engine, planned=True))
    assert missing(engine) == missing(without) == []
    assert prefilled_tokens(engine) < 0.75 * prefilled_tokens(without)


def test_a_conversation_with_tools_is_sent_as_it_was() -> None:
    def reply(body: Any) -> SimulatedReply:
        asked = body["messages"][-1]["role"] == "user"
        return (
            SimulatedReply(calls=(SimulatedCall(f"c{len(body['messages'])}", "look"),))
            if asked
            else SimulatedReply("Yes.")
        )

    with SimulatedEngine(reply=reply) as engine:
        asyncio.run(ask(engine, planned=True, tools=[look], conversation="c"))
    assert_one_conversation(engine, 2 * len(QUERIES))


def test_the_responses_api_is_planned_too() -> None:
    with SimulatedEngine() as engine:
        asyncio.run(ask(engine, planned=True, conversation="c", responses=True))
    bodies = [request.json() for request in engine.requests]
    assert len(bodies) == len(QUERIES)
    for earlier, later in pairwise(bodies):
        assert later["input"][: len(earlier["input"])] == earlier["input"]
    last = json.dumps(bodies[-1]["input"])
    assert all(last.count(document) == 1 for document in DOCUMENTS)
