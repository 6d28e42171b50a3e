"""The contract of retrievers: one method to write, the others follow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from prefixpilot import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.retrievers import AsyncRetriever, BatchRetriever, MemoryStore, Retrieved, Retriever
from prefixpilot.retrievers.base import check_query


class Echo(BatchRetriever):
    """Finds the query itself, ``k`` times numbered."""

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        check_query(queries, k)
        found = [tuple(ContextBlock(f"{query} {n}") for n in range(k)) for query in queries]
        return [Retrieved(blocks, tuple(1.0 / (n + 1) for n in range(k))) for blocks in found]


def texts(found: Retrieved) -> list[str | None]:
    return [block.text for block in found.blocks]


def test_one_and_many_async_and_not_are_the_same() -> None:
    echo = Echo()
    assert texts(echo.retrieve("tea", 2)) == ["tea 0", "tea 1"]
    assert asyncio.run(echo.aretrieve("tea", 2)) == echo.retrieve("tea", 2)
    assert asyncio.run(echo.aretrieve_batch(["tea", "rice"], 1)) == echo.retrieve_batch(["tea", "rice"], 1)


def test_it_keeps_the_protocols() -> None:
    assert isinstance(Echo(), Retriever)
    assert isinstance(Echo(), AsyncRetriever)
    assert not isinstance(Echo(), MemoryStore)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        ("tea", 1, "queries: is one string; give a list of strings, or call retrieve()"),
        (["tea", 3], 1, "queries[1]: is int; give a str"),
        (["tea"], 0, "k: is 0; give an int of 1 or more"),
        (["tea"], True, "k: is True; give an int of 1 or more"),
        (["tea"], 2.0, "k: is 2.0; give an int of 1 or more"),
    ],
)
def test_what_no_retriever_can_answer(queries: Sequence[str], k: int, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Echo().retrieve_batch(queries, k)
    assert str(refused.value) == message
