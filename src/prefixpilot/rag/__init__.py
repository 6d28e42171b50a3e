"""RAG, memory and agents in a few lines, through the user's own ``openai`` client (the extra ``[openai]``)."""

from prefixpilot.rag.agents import lay_chains
from prefixpilot.rag.answers import Answer, Usage
from prefixpilot.rag.async_session import AsyncRagSession
from prefixpilot.rag.batch import BatchRequest, BatchResult
from prefixpilot.rag.memory import AsyncMemorySession, MemorySession
from prefixpilot.rag.run import arun_batch, run_batch
from prefixpilot.rag.session import RagSession
from prefixpilot.rag.team import ChainOfAgents, TeamAnswer, fan_out

__all__ = [
    "Answer",
    "AsyncMemorySession",
    "AsyncRagSession",
    "BatchRequest",
    "BatchResult",
    "ChainOfAgents",
    "MemorySession",
    "RagSession",
    "TeamAnswer",
    "Usage",
    "arun_batch",
    "fan_out",
    "lay_chains",
    "run_batch",
]
