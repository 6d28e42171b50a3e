"""A small RAG that the tests of all frameworks run: documents, questions, what is found, and what the engine got."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.testing import SimulatedEngine, chat_wire

DOCUMENTS = tuple(
    f"{place} has opened at {6 + n} since the year {1950 + 3 * n}. "
    + " ".join(f"Its room {room} in wing {n} is kept for the {use}." for room, use in enumerate(uses, 1))
    for n, (place, uses) in enumerate(
        (place, ("readers of maps", "school of music", "keepers of seeds", "printers of stamps", "makers of clocks"))
        for place in ("The library", "The archive", "The museum", "The gallery", "The observatory", "The garden house")
    )
)


class Query(NamedTuple):
    """A question, and the documents that a retriever finds for it, the most relevant first."""

    question: str
    found: tuple[int, ...]


QUERIES = (
    Query("When does the library open?", (0, 1, 2, 3)),
    Query("Where are the seeds kept?", (2, 0, 3, 1)),
    Query("Which house has clocks?", (3, 2, 1, 4)),
    Query("Is there music in the archive?", (1, 3, 0, 2)),
    Query("Who prints stamps?", (4, 3, 2, 1)),
    Query("When was the museum opened?", (2, 1, 0, 5)),
)
"""The same documents in other orders, as retrievers find them."""


def found(query: Query) -> list[str]:
    """Their texts."""
    return [DOCUMENTS[n] for n in query.found]


def prompts(engine: SimulatedEngine) -> list[str]:
    """The prompt of each chat, as the engine's template writes it."""
    return [chat_wire.read_chat(request.json()).prompt for request in engine.chats]


def prefilled_tokens(engine: SimulatedEngine) -> int:
    """Tokens that the engine had to compute for all its chats, by its own model of its cache, cold at the start."""
    cache = RadixPrefixCache(None)
    chats = [chat_wire.read_chat(request.json()) for request in engine.chats]
    return sum(cache.access(chat_wire.segments(chat)).prefilled_tokens for chat in chats)


def missing(engine: SimulatedEngine, queries: Sequence[Query] = QUERIES) -> list[tuple[int, int]]:
    """Evidence that was lost: the number of a chat, and that of a document which does not stand in it in full."""
    return [
        (chat, document)
        for chat, (prompt, query) in enumerate(zip(prompts(engine), queries, strict=True))
        for document in query.found
        if DOCUMENTS[document] not in prompt
    ]


def assert_one_conversation(engine: SimulatedEngine, chats: int = len(QUERIES)) -> None:
    """The chats are turns of one: what was sent is sent again, unchanged, and each document stands there once."""
    sent = [request.json()["messages"] for request in engine.chats]
    assert len(sent) == chats
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier
    assert all(prompts(engine)[-1].count(document) == 1 for document in DOCUMENTS)
