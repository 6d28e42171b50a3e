"""RAG, memory and agents in a few lines, through the user's own ``openai`` client (the extra ``[openai]``)."""

from prefixpilot.rag.answers import Answer, Usage
from prefixpilot.rag.async_session import AsyncRagSession
from prefixpilot.rag.batch import BatchRequest, BatchResult
from prefixpilot.rag.run import arun_batch, run_batch
from prefixpilot.rag.session import RagSession

__all__ = [
    "Answer",
    "AsyncRagSession",
    "BatchRequest",
    "BatchResult",
    "RagSession",
    "Usage",
    "arun_batch",
    "run_batch",
]
