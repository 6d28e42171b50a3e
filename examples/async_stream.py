"""Several conversations at once, streamed, over one retriever and one pilot."""

import asyncio
import os

from openai import AsyncOpenAI

from prefixpilot.rag import AsyncRagSession
from prefixpilot.testing.memory_store import WordMemory

TEXTS = [
    "The tram to the harbour leaves every ten minutes from the market square.",
    "The museum of the harbour is free on the first Sunday of the month.",
    "The market square has a market on Tuesdays, Thursdays and Saturdays.",
]
QUESTIONS = ["How do I get to the harbour?", "When is the market?", "Is the museum of the harbour free?"]


async def talk(session: AsyncRagSession, question: str) -> str:
    async with await session.stream(question) as pieces:
        text = "".join([piece async for piece in pieces])  # or show each piece as it comes
    return f"{question} {text} ({len(pieces.answer.sources)} blocks)"


async def main() -> None:
    retriever = WordMemory(TEXTS)  # any retriever: BM25, FAISS, Elasticsearch, Mem0
    async with AsyncOpenAI() as client:
        session = AsyncRagSession(client, model=os.environ.get("MODEL", "smollm2"), retriever=retriever, k=3)
        for line in await asyncio.gather(*(talk(session.fresh(), question) for question in QUESTIONS)):
            print(line)


asyncio.run(main())
