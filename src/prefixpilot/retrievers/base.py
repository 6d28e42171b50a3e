"""What a retriever is: a query in, ranked context blocks out. A memory store is a retriever that can also add."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError


class Retrieved(NamedTuple):
    """What a retriever found for one query.

    Attributes:
        blocks: distinct, most relevant first; ready for ``Request(blocks, ...)``. Fewer than ``k`` at the end.
        scores: in parallel; higher is more relevant. Their scale is the retriever's own.
    """

    blocks: tuple[ContextBlock, ...]
    scores: tuple[float, ...]


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds blocks. Pure as seen from outside: the same query on the same index gives the same blocks."""

    def retrieve(self, query: str, k: int) -> Retrieved:
        """The ``k`` most relevant blocks.

        Raises:
            InvalidRequestError: ``query`` is no string, or ``k`` is not 1 or more.
            RetrieverError: the index or the server behind it failed.
        """
        ...


@runtime_checkable
class AsyncRetriever(Protocol):
    """The same for programs that run on asyncio."""

    async def aretrieve(self, query: str, k: int) -> Retrieved:
        """As :meth:`Retriever.retrieve`, without holding the event loop."""
        ...


@runtime_checkable
class MemoryStore(Retriever, Protocol):
    """A retriever to which texts can be added while it is in use.

    One object is one owner's memories (a user, an agent): what it finds, and what is added, is that owner's alone.
    """

    def add(self, texts: Sequence[str]) -> None:
        """Remember ``texts``; they are found from the next query on. Raises as :meth:`Retriever.retrieve`."""
        ...


class BatchRetriever(ABC):
    """Base of our own retrievers: give :meth:`retrieve_batch`, get the other three.

    Satisfies :class:`Retriever` and :class:`AsyncRetriever`. Subclasses may be shared between threads once built.
    """

    @abstractmethod
    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """One result a query, in the order of the queries. Raises as :meth:`Retriever.retrieve`."""

    def retrieve(self, query: str, k: int) -> Retrieved:
        """See :meth:`Retriever.retrieve`."""
        return self.retrieve_batch([query], k)[0]

    async def aretrieve(self, query: str, k: int) -> Retrieved:
        """See :meth:`AsyncRetriever.aretrieve`; in a thread, unless a subclass has a client of its own."""
        return (await self.aretrieve_batch([query], k))[0]

    async def aretrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """:meth:`retrieve_batch` without holding the event loop."""
        return await asyncio.to_thread(self.retrieve_batch, queries, k)


def check_query(queries: Sequence[str], k: int) -> None:
    """Refuse what no retriever can answer.

    Raises:
        InvalidRequestError: one string for a list of queries, a query that is no string, or ``k`` not an int from 1 on.
    """
    if isinstance(queries, str):
        raise InvalidRequestError("queries", "is one string", "give a list of strings, or call retrieve()")
    for position, query in enumerate(queries):
        if not isinstance(query, str):
            raise InvalidRequestError(f"queries[{position}]", f"is {type(query).__name__}", "give a str")
    if type(k) is not int or k < 1:
        raise InvalidRequestError("k", f"is {k!r}", "give an int of 1 or more")
