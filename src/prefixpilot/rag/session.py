"""``RagSession``: retrieve, plan, call, record, through the user's own ``openai`` client."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from prefixpilot.constraints import Constraints
from prefixpilot.errors import EngineError
from prefixpilot.prompts.blocks import Given
from prefixpilot.rag.answers import Answer
from prefixpilot.rag.client import Client, Heard, complete, stream
from prefixpilot.rag.desk import Blocks, Desk, Talk, as_given, no_retriever
from prefixpilot.rag.functions import Functions, call_all
from prefixpilot.retrievers import Retriever


class RagSession(Desk):
    """One conversation over context blocks, whose prompts begin with what the engine has in its prefix cache.

    The first turn's blocks are ordered; later turns leave out what stands in the prompt already and say where
    (paper 6). All earlier turns are sent again byte for byte. A call that fails leaves the conversation as it was. For
    independent questions take :meth:`fresh` sessions: they share the pilot, and so the index. One turn at a time: a
    second one, of another thread or of a function that the model calls, is refused before anything is sent. The pilot
    may be shared between threads.

    Not for a client that talks to our proxy: that one takes ``extra_body={"context_blocks": [...]}`` and plans itself.

    Args:
        client: any ``openai.OpenAI``, for any engine that is compatible.
        model: as the engine names it.
        retriever: finds blocks for questions that come without.
        pilot: shared by all sessions on one engine; a new one if ``None``.
        system: stands in front of all; keep it free of dates and ids, which would part the prompts of one session from
            those of the next.
        k: how many blocks to retrieve.
        options: more arguments for ``chat.completions.create``: ``temperature``, ``max_tokens``, ``tools``, ...
    """

    def __init__(self, client: Client, *, model: str, retriever: Retriever | None = None, **settings: Any) -> None:
        super().__init__(client, model=model, **settings)
        self._client = client
        self._retriever = retriever

    def ask(
        self,
        question: str,
        blocks: Blocks | None = None,
        *,
        k: int | None = None,
        functions: Functions | None = None,
        constraints: Constraints | None = None,
        **options: Any,
    ) -> Answer:
        """One turn.

        Args:
            blocks: given blocks, most relevant first: texts, ``{"text": ..., "title": ...}`` or ``ContextBlock``;
                ``[]`` for none; without them the retriever is asked.
            k: how many to retrieve, this time.
            functions: what the model may call, by name; their schema goes into ``tools``. Called until it answers.
            constraints: demands on the order of the blocks.
            options: as those of the session, for this turn only.

        Raises:
            InvalidRequestError: a question or blocks that cannot be used.
            RetrieverError: from the retriever.
            openai.OpenAIError: from the client.
            EngineError: an answer that cannot be used, or a tool call that cannot be answered.
        """
        with self._turn():
            talk = self._talk(question, self._found(question, blocks, k), constraints, options)
            while True:
                reply = complete(self._client, talk.call)
                answer = self._take(talk, reply, functions)
                if answer is not None:
                    return answer
                talk.after_tools(reply, call_all(functions or {}, reply))

    def stream(
        self,
        question: str,
        blocks: Blocks | None = None,
        *,
        k: int | None = None,
        constraints: Constraints | None = None,
        **options: Any,
    ) -> AnswerStream:
        """As :meth:`ask`, piece by piece; without functions. The turn counts once the stream is read to its end."""
        return AnswerStream(self, self._talk(question, self._found(question, blocks, k), constraints, options))

    def _found(self, question: str, blocks: Blocks | None, k: int | None) -> Given:
        if blocks is not None:
            return as_given(blocks)
        if self._retriever is None:
            raise no_retriever()
        return Given(self._retriever.retrieve(question, self._k if k is None else k).blocks)


class AnswerStream:
    """The pieces of an answer, to be iterated once. As a context manager it closes the connection at the end.

    The request is sent with the first piece that is asked for. Raises while iterating as :meth:`RagSession.ask` does.
    """

    def __init__(self, session: RagSession, talk: Talk) -> None:
        self._session = session
        self._answer: Answer | None = None
        self._pieces = self._run(talk)

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.close()

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises ``EngineError`` before the stream has been read to its end."""
        if self._answer is None:
            raise EngineError("the answer is not complete; read the stream to its end")
        return self._answer

    def _run(self, talk: Talk) -> Generator[str, None, None]:
        session, heard = self._session, Heard()
        with session._turn(talk):
            with closing(stream(session._client, talk.call, heard)) as pieces:
                for piece in pieces:
                    if len(heard.pieces) == 1:
                        session._learn(talk)
                    yield piece
            reply = heard.reply()
            talk.usage = reply.usage
            self._answer = session._record(talk, reply)
