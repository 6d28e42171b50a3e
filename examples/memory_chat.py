"""A chat with memory: profile first, memories at the tail, nothing taken back within a conversation."""

import os

from openai import OpenAI

from prefixpilot.rag import MemorySession
from prefixpilot.testing.memory_store import WordMemory

store = WordMemory(["She is allergic to hazelnuts.", "She takes the tram to work at half past seven."])

chat = MemorySession(
    OpenAI(),
    model=os.environ.get("MODEL", "smollm2"),
    store=store,  # any store of prefixpilot.retrievers.MemoryStore: Mem0, for one
    profile=["The user's name is Ann.", "She speaks German and English."],
    instructions="You are a kind assistant.",
    k=3,
    max_tokens=40,
)

for question in ("May I have the hazelnuts?", "When does my tram leave for work?", "Hazelnuts again: may I?"):
    answer = chat.ask(question)  # and the store remembers what she said
    recalled = [block.text for block in answer.sources.values()]
    print(f"{answer.usage.prompt_tokens} tokens, {answer.usage.cached_tokens} from the cache, {len(recalled)} memories")

print(chat.messages[0]["content"])
