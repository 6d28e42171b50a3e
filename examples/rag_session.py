"""RAG in one session: blocks are ordered, later turns name what stands above, citations lead back to the blocks."""

import os

from openai import OpenAI

from prefixpilot import ContextBlock, ContextPilot
from prefixpilot.rag import RagSession

OPENING = ContextBlock("The town library opens at 10 on Saturdays and is closed on Sundays.", title="Opening hours")
POOL = ContextBlock("The swimming pool opens at 7 every day but Monday.", title="Pool")
FEES = ContextBlock("A library card costs 12 euros a year; children and students pay nothing.", title="Fees")

client = OpenAI()  # OPENAI_BASE_URL names the engine, or a provider
session = RagSession(
    client,
    model=os.environ.get("MODEL", "smollm2"),
    pilot=ContextPilot(),  # one for all sessions on this engine
    system="Answer from the documents, and cite them as [Doc n].",
    max_tokens=60,
)

first = session.ask("When does the library open on Saturday?", [OPENING, POOL])
second = session.ask("And what does it cost?", [FEES, OPENING])  # OPENING is not sent twice
another = session.fresh().ask("Is the pool open before the library?", [POOL, OPENING])  # begins as the first did

for answer in (first, second, another):
    usage, told = answer.usage, ", ".join(f"{name}: {block.title}" for name, block in answer.sources.items())
    print(f"{usage.prompt_tokens} tokens, {usage.cached_tokens} from the cache; {told}")
