"""RAG, memory and agents in a few lines, through the user's own ``openai`` client (the extra ``[openai]``)."""

from prefixpilot.rag.answers import Answer, Usage
from prefixpilot.rag.async_session import AsyncRagSession
from prefixpilot.rag.session import RagSession

__all__ = ["Answer", "AsyncRagSession", "RagSession", "Usage"]
