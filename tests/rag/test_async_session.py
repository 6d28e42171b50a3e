"""``AsyncRagSession`` sends what ``RagSession`` sends, and what goes through the proxy loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import openai
import pytest
from tests.rag.support import Shelf, document, prompts, sent

from prefixpilot.core import ContextBlock
from prefixpilot.errors import EngineError, InvalidRequestError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.rag import AsyncRagSession, RagSession
from prefixpilot.retrievers import Retrieved
from prefixpilot.testing import BreakOff, SimulatedCall, SimulatedEngine, SimulatedReply

TEXTS = [document(i) for i in range(6)]
TURNS = [[1, 2, 3], [2, 4], [4, 1, 5, 5], []]


class AsyncShelf:
    """Finds the first texts, and only so that the event loop goes on."""

    async def aretrieve(self, query: str, k: int) -> Retrieved:
        await asyncio.sleep(0)
        return Retrieved(tuple(map(ContextBlock, TEXTS[:k])), tuple(1.0 for _ in TEXTS[:k]))


def run(engine: SimulatedEngine, program: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with openai.AsyncOpenAI(
            base_url=f"{engine.base_url}/v1", api_key="k", max_retries=0, timeout=10
        ) as client:
            return await program(client)

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_it_sends_what_the_other_sends(engine: SimulatedEngine, client: openai.OpenAI, streamed: bool) -> None:
    plain = RagSession(client, model="m", system="S")
    expected = [plain.ask("Q?", [TEXTS[i] for i in named]).plan.labels for named in TURNS]

    async def program(own: openai.AsyncOpenAI) -> list[tuple[str, ...]]:
        session, labels = AsyncRagSession(own, model="m", system="S"), []
        for named in TURNS:
            blocks = [TEXTS[i] for i in named]
            if streamed:
                async with await session.stream("Q?", blocks) as pieces:
                    text = "".join([piece async for piece in pieces])
                assert text == pieces.answer.text
                labels.append(pieces.answer.plan.labels)
            else:
                labels.append((await session.ask("Q?", blocks)).plan.labels)
        assert session.messages == plain.messages
        return labels

    assert run(engine, program) == expected
    assert sent(engine)[4:] == sent(engine)[:4]


def test_retrievers_of_both_kinds(engine: SimulatedEngine) -> None:
    async def program(own: openai.AsyncOpenAI) -> tuple[int, int]:
        native = AsyncRagSession(own, model="m", retriever=AsyncShelf(), k=2)
        threaded = AsyncRagSession(own, model="m", retriever=Shelf(TEXTS), k=2)
        first, second = await asyncio.gather(native.ask("Q?", k=3), threaded.ask("Which of 4, 5, 1?"))
        with pytest.raises(InvalidRequestError, match="no retriever"):
            await AsyncRagSession(own, model="m").ask("Q?")
        return len(first.plan.blocks), len(second.plan.blocks)

    assert run(engine, program) == (3, 2)


def test_functions_may_be_coroutine_functions(engine: SimulatedEngine) -> None:
    async def look(x: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"x": x + 1}

    call = SimulatedCall("c", "look", '{"x": 41}')
    engine.reply = lambda body: "It is 42." if "42" in str(body) else SimulatedReply(calls=(call,))

    async def program(own: openai.AsyncOpenAI) -> str:
        session = AsyncRagSession(own, model="m")
        return (await session.ask("Q?", [], functions={"look": look})).text

    assert run(engine, program) == "It is 42."


def test_a_failed_call_records_nothing(engine: SimulatedEngine) -> None:
    async def program(own: openai.AsyncOpenAI) -> int:
        session = AsyncRagSession(own, model="m")
        engine.fault = BreakOff(after_chunks=2)
        stream = await session.stream("Q?", ["A"])
        with pytest.raises((openai.OpenAIError, EngineError)):
            _ = [piece async for piece in stream]
        with pytest.raises(EngineError, match="not complete"):
            _ = stream.answer
        with pytest.raises(openai.OpenAIError):
            await session.ask("Q?", ["A"])
        return len(session.messages)

    assert run(engine, program) == 0


def test_of_two_tasks_only_one_pays(engine: SimulatedEngine) -> None:
    async def program(own: openai.AsyncOpenAI) -> tuple[Any, Any]:
        session = AsyncRagSession(own, model="m")
        return await asyncio.gather(session.ask("Q1?", ["A"]), session.ask("Q2?", ["A"]), return_exceptions=True)

    first, second = run(engine, program)
    assert first.text and isinstance(second, InvalidRequestError) and "another turn" in str(second)
    assert len(engine.chats) == 1


# -- behind the proxy


@pytest.mark.parametrize("mode", [None, "off"])
def test_through_the_proxy_nothing_is_lost(engine: SimulatedEngine, client: openai.OpenAI, mode: str | None) -> None:
    """With mode off it is byte for byte what the session sends; without, two layers plan and the prefix still holds."""
    headers = {} if mode is None else {"X-PrefixPilot-Mode": mode}
    with (
        serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=10) as through,
    ):
        for number in range(3):
            session = RagSession(through, model="m", extra_headers=headers)
            for named in TURNS:
                session.ask(f"Q{number}?", [TEXTS[(i + number) % 6] for i in named])
            read = prompts(engine)[-4:]
            for before, after in pairwise(read):
                assert after.startswith(before)
            for i in (1, 2, 3, 4, 5):
                assert read[3].count(TEXTS[(i + number) % 6]) == 1
            if mode == "off":
                assert sent(engine)[-1] == list(session.messages[:-1])
