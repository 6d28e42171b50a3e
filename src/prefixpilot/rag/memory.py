"""Memory without losing the prefix: what is stable of a user stands first, what a turn recalls stands at its end.

::

    [instructions] [profile]                      the same for all of the user's conversations
    [memories of turn 1] [question 1] [answer 1]
    [memories of turn 2, those of turn 1 only named] [question 2] ...

Nothing that was sent is taken back within a conversation: a memory that is recalled again is named where it stands, and
one that has changed in the store is a new block behind the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from prefixpilot.errors import InvalidRequestError
from prefixpilot.rag.answers import Answer
from prefixpilot.rag.async_session import AsyncRagSession
from prefixpilot.rag.client import AsyncClient, Client, Reply
from prefixpilot.rag.desk import Talk
from prefixpilot.rag.session import RagSession
from prefixpilot.retrievers import MemoryStore

Remember: TypeAlias = Callable[[str, Answer], Sequence[str]]
"""What to keep of a turn, from the question and the answer."""


@runtime_checkable
class AsyncMemoryStore(Protocol):
    """A store that can be told without a thread."""

    async def aadd(self, texts: Sequence[str]) -> None:
        """As :meth:`prefixpilot.retrievers.MemoryStore.add`, without holding the event loop."""
        ...


PROFILE_HEAD = "What is known of the user:"


def what_the_user_said(question: str, answer: Answer) -> list[str]:
    """The user's own words: the answer is made of what is in the store already."""
    return [question]


def system_text(instructions: str, profile: Sequence[str]) -> str | None:
    """Instructions, then the profile, a line each, in the order given: keep both steady. ``None`` without either.

    Raises:
        InvalidRequestError: ``profile`` is one string.

    >>> print(system_text("Be brief.", ["Lives in Rome.", "Is a vegetarian."]))
    Be brief.
    <BLANKLINE>
    What is known of the user:
    - Lives in Rome.
    - Is a vegetarian.
    """
    if isinstance(profile, str):
        raise InvalidRequestError("profile", "is one string", "give a list of strings")
    lines = "\n".join([PROFILE_HEAD, *(f"- {line}" for line in profile)]) if profile else ""
    return "\n\n".join(text for text in (instructions, lines) if text) or None


def _with_system(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with a system text in the place of instructions and profile."""
    text = system_text(settings.pop("instructions", ""), settings.pop("profile", ()))
    return {**settings, "system": text}


class MemorySession(RagSession):
    """A conversation with a user whose memories are in a store. After each turn the store is told of it.

    Everything else is as with :class:`~prefixpilot.rag.RagSession`; ``k`` is how many memories a turn recalls.

    Args:
        store: that user's memories.
        profile: what is always true of the user; stands in front of all, and stays as it is for the conversation.
        instructions: what stands in front of that.
        remember: what to add to the store after a turn. A store that fails then raises, and the turn is in
            ``messages`` all the same.
    """

    def __init__(
        self, client: Client, *, store: MemoryStore, remember: Remember = what_the_user_said, **settings: Any
    ) -> None:
        super().__init__(client, retriever=store, **_with_system(settings))
        self._store = store
        self._remember = remember

    def _record(self, talk: Talk, reply: Reply) -> Answer:
        answer = super()._record(talk, reply)
        texts = list(self._remember(talk.question, answer))
        if texts:
            self._store.add(texts)
        return answer


class AsyncMemorySession(AsyncRagSession):
    """As :class:`MemorySession`, on asyncio. After ``stream`` call :meth:`remember`.

    A store without ``aadd`` is told in a thread.
    """

    def __init__(
        self, client: AsyncClient, *, store: MemoryStore, remember: Remember = what_the_user_said, **settings: Any
    ) -> None:
        super().__init__(client, retriever=store, **_with_system(settings))
        self._store = store
        self._remember = remember

    async def ask(self, question: str, *args: Any, **settings: Any) -> Answer:
        """See :meth:`RagSession.ask <prefixpilot.rag.RagSession.ask>`."""
        answer = await super().ask(question, *args, **settings)
        await self.remember(question, answer)
        return answer

    async def remember(self, question: str, answer: Answer) -> None:
        """Tell the store of a turn."""
        texts = list(self._remember(question, answer))
        if not texts:
            return
        if isinstance(self._store, AsyncMemoryStore):
            await self._store.aadd(texts)
        else:
            await asyncio.to_thread(self._store.add, texts)
