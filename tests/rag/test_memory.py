"""The memory pattern: profile first, memories at the tail, nothing taken back within a conversation."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import openai
import pytest
from tests.rag.support import prompts, sent

from prefixpilot.errors import InvalidRequestError, RetrieverError
from prefixpilot.rag import AsyncMemorySession, MemorySession
from prefixpilot.rag.memory import system_text
from prefixpilot.retrievers import MemoryStore
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.memory_store import WordMemory

MEMORIES = [
    "Ann is allergic to hazelnuts and carries a pen for it wherever she goes.",
    "Ann takes the tram to work, line nine, at half past seven in the morning.",
    "Ann wants to learn to bake bread this winter, with her neighbour's oven.",
]
PROFILE = ["Her name is Ann.", "She speaks German and English."]


def test_profile_first_memories_at_the_tail_and_nothing_taken_back(
    engine: SimulatedEngine, client: openai.OpenAI
) -> None:
    store = WordMemory(MEMORIES)
    assert isinstance(store, MemoryStore)
    chat = MemorySession(client, model="m", store=store, profile=PROFILE, instructions="Be kind.", k=2)
    chat.ask("Can I eat a cake with hazelnuts at work?")
    chat.ask("And which bread may I bake without hazelnuts?")
    chat.ask("Which tram is it to work?")
    system = {"role": "system", "content": f"Be kind.\n\n{system_text('', PROFILE)}"}
    assert all(messages[0] == system for messages in sent(engine))
    read = prompts(engine)
    for before, after in pairwise(read):
        assert after.startswith(before)
    assert all(read[2].count(memory) == 1 for memory in MEMORIES)
    assert read[1].count("Please refer to [Doc 1] in the previous conversation.") == 1


def test_what_the_user_said_is_found_in_the_next_conversation(engine: SimulatedEngine, client: openai.OpenAI) -> None:
    store = WordMemory()
    chat = MemorySession(client, model="m", store=store)
    chat.ask("I moved to Rome last week.", [])
    with chat.stream("I have a dog named Nero.", []) as pieces:
        "".join(pieces)
    answer = chat.fresh().ask("How is Nero, and is Rome warm?")
    assert [block.text for block in answer.sources.values()] == [
        "I have a dog named Nero.",
        "I moved to Rome last week.",
    ]
    assert sent(engine)[0] == [{"role": "user", "content": "I moved to Rome last week."}]


def test_what_to_remember_is_the_callers(client: openai.OpenAI) -> None:
    store = WordMemory()
    MemorySession(client, model="m", store=store, remember=lambda question, answer: [answer.text]).ask("Hm?", [])
    MemorySession(client, model="m", store=store, remember=lambda question, answer: []).ask("Nothing kept?", [])
    found = store.retrieve("simulated nothing kept", 5).blocks
    assert [block.text for block in found] == ["This is a simulated answer."]


def test_a_store_that_fails_after_the_turn_leaves_it_recorded(client: openai.OpenAI) -> None:
    class Full(WordMemory):
        def add(self, texts: object) -> None:
            if texts:
                raise RetrieverError("the store is full")

    chat = MemorySession(client, model="m", store=Full())
    with pytest.raises(RetrieverError):
        chat.ask("Q?", [])
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


def test_the_async_twin(engine: SimulatedEngine) -> None:
    async def talk() -> list[str | None]:
        store = WordMemory(MEMORIES)
        async with openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="k") as client:
            chat = AsyncMemorySession(client, model="m", store=store, profile=PROFILE)
            await chat.ask("Can I eat a cake with hazelnuts?")
            stream = await chat.stream("Where was it that I wanted to bake bread?")
            async with stream:
                assert "".join([piece async for piece in stream]) == "This is a simulated answer."
            await chat.remember("Where was it that I wanted to bake bread?", stream.answer)
            return [block.text for block in store.retrieve("where was it, this cake", 2).blocks]

    assert asyncio.run(talk()) == ["Where was it that I wanted to bake bread?", "Can I eat a cake with hazelnuts?"]
    first, second = prompts(engine)
    assert second.startswith(first)


def test_a_store_that_can_be_told_without_a_thread_is(engine: SimulatedEngine) -> None:
    class Native(WordMemory):
        async def aadd(self, texts: list[str]) -> None:
            super().add([f"{text} (told)" for text in texts])

    async def talk(store: WordMemory) -> None:
        async with openai.AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="k") as client:
            await AsyncMemorySession(client, model="m", store=store).ask("I like plums.", [])

    store = Native()
    asyncio.run(talk(store))
    assert [block.text for block in store.retrieve("plums", 1).blocks] == ["I like plums. (told)"]


def test_a_profile_that_is_one_string() -> None:
    with pytest.raises(InvalidRequestError, match="profile"):
        system_text("", "Ann")
    assert system_text("", []) is None
