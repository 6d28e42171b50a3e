"""``AsyncRagSession``: the same as :class:`~prefixpilot.rag.RagSession` for programs that run on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from prefixpilot.constraints import Constraints
from prefixpilot.errors import EngineError
from prefixpilot.prompts.blocks import Given
from prefixpilot.rag.answers import Answer
from prefixpilot.rag.client import AsyncClient, Heard, acomplete, astream
from prefixpilot.rag.desk import Blocks, Desk, Talk, as_given, no_retriever
from prefixpilot.rag.functions import Functions, acall_all
from prefixpilot.retrievers import AsyncRetriever, Retriever


class AsyncRagSession(Desk):
    """See :class:`~prefixpilot.rag.RagSession`. One turn at a time; different sessions may run side by side.

    Planning takes about 0.1 ms a turn and is done on the event loop. A retriever without ``aretrieve`` is asked in a
    thread.

    Args:
        client: any ``openai.AsyncOpenAI``.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        model: str,
        retriever: AsyncRetriever | Retriever | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(client, model=model, **settings)
        self._client = client
        self._retriever = retriever

    async def ask(
        self,
        question: str,
        blocks: Blocks | None = None,
        *,
        k: int | None = None,
        functions: Functions | None = None,
        constraints: Constraints | None = None,
        **options: Any,
    ) -> Answer:
        """See :meth:`RagSession.ask <prefixpilot.rag.RagSession.ask>`; functions may be coroutine functions."""
        with self._turn():
            talk = self._talk(question, await self._found(question, blocks, k), constraints, options)
            while True:
                reply = await acomplete(self._client, talk.call)
                answer = self._take(talk, reply, functions)
                if answer is not None:
                    return answer
                talk.after_tools(reply, await acall_all(functions or {}, reply))

    async def stream(
        self,
        question: str,
        blocks: Blocks | None = None,
        *,
        k: int | None = None,
        constraints: Constraints | None = None,
        **options: Any,
    ) -> AsyncAnswerStream:
        """See :meth:`RagSession.stream <prefixpilot.rag.RagSession.stream>`."""
        found = await self._found(question, blocks, k)
        return AsyncAnswerStream(self, self._talk(question, found, constraints, options))

    async def _found(self, question: str, blocks: Blocks | None, k: int | None) -> Given:
        retriever, k = self._retriever, self._k if k is None else k
        if blocks is not None:
            return as_given(blocks)
        if retriever is None:
            raise no_retriever()
        if isinstance(retriever, AsyncRetriever):
            return Given((await retriever.aretrieve(question, k)).blocks)
        return Given((await asyncio.to_thread(retriever.retrieve, question, k)).blocks)


class AsyncAnswerStream:
    """See :class:`~prefixpilot.rag.session.AnswerStream`."""

    def __init__(self, session: AsyncRagSession, talk: Talk) -> None:
        self._session = session
        self._answer: Answer | None = None
        self._pieces = self._run(talk)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pieces.aclose()

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ``EngineError`` before the stream has been read to its end."""
        if self._answer is None:
            raise EngineError("the answer is not complete; read the stream to its end")
        return self._answer

    async def _run(self, talk: Talk) -> AsyncGenerator[str, None]:
        session, heard = self._session, Heard()
        with session._turn(talk):
            async with aclosing(astream(session._client, talk.call, heard)) as pieces:
                async for piece in pieces:
                    if len(heard.pieces) == 1:
                        session._learn(talk)
                    yield piece
            reply = heard.reply()
            talk.usage = reply.usage
            self._answer = session._record(talk, reply)
