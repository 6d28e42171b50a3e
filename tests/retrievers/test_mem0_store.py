"""Mem0 as a memory store, on stand-ins of its documented interface; ``tests/integrations`` has the real library."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tests.retrievers.listening import Quiet, listening

from prefixpilot import ContextBlock
from prefixpilot.errors import ConfigError, InvalidRequestError, MissingExtraError, RetrieverError
from prefixpilot.retrievers import MemoryStore, Retrieved
from prefixpilot.retrievers.mem0 import Mem0Server, Mem0Store


class Memory:
    """``add`` and ``search`` as ``mem0.Memory`` has them; a score is the number of words in common."""

    def __init__(self) -> None:
        self.held: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []

    def add(self, messages: Sequence[dict[str, str]], *, infer: bool = True, **owner: str) -> dict[str, Any]:
        for message in messages:
            name = f"id-{len(self.held)}"
            self.held.append({"id": name, "memory": message["content"], "owner": owner, "created_at": f"day {name}"})
        return {"results": [{"event": "ADD"} for _ in messages]}

    def search(self, query: str, *, filters: dict[str, str], top_k: int, **more: Any) -> dict[str, Any]:
        self.asked.append({"query": query, "filters": filters, "top_k": top_k, **more})
        mine = [one for one in self.held if filters.items() <= one["owner"].items()]
        scored = [{**one, "score": len(set(one["memory"].split()) & set(query.split())) / 10} for one in mine]
        return {"results": sorted(scored, key=lambda one: -one["score"])[:top_k]}


class AsyncMemory:
    def __init__(self) -> None:
        self.real = Memory()

    async def add(self, messages: Sequence[dict[str, str]], **owner: Any) -> dict[str, Any]:
        return self.real.add(messages, **owner)

    async def search(self, query: str, **how: Any) -> dict[str, Any]:
        return self.real.search(query, **how)


def texts(found: Retrieved) -> list[str]:
    return [block.text or "" for block in found.blocks]


def test_what_is_added_is_found_by_its_owner() -> None:
    memory = Memory()
    ann, bob = Mem0Store(memory, user_id="ann"), Mem0Store(memory, user_id="bob", agent_id="cook")
    ann.add(["likes green tea", "lives in Oslo"])
    bob.add(["likes rice"])
    assert texts(ann.retrieve("green tea likes", 1)) == ["likes green tea"]
    assert ann.retrieve("green", 1).blocks == (ContextBlock("likes green tea", id="id-0"),)
    assert texts(bob.retrieve("likes", 9)) == ["likes rice"]
    assert memory.asked[-1] == {"query": "likes", "filters": {"user_id": "bob", "agent_id": "cook"}, "top_k": 9}
    assert isinstance(ann, MemoryStore)


def test_a_memory_has_the_same_bytes_whatever_the_query() -> None:
    store = Mem0Store(Memory(), user_id="ann")
    store.add(["likes green tea", "likes rice"])
    first, second = store.retrieve("green tea", 2), store.retrieve("rice", 2)
    assert set(first.blocks) == set(second.blocks) and first.blocks != second.blocks
    assert first.scores == (0.2, 0.0)


def test_equal_scores_go_by_text_and_equal_texts_are_one() -> None:
    store = Mem0Store(Memory(), user_id="ann")
    store.add(["tea c", "tea a"])
    store.add(["tea b", "tea a"])
    assert texts(store.retrieve("tea", 9)) == ["tea a", "tea b", "tea c"]


def test_nothing_is_added_or_asked_where_there_is_nothing() -> None:
    memory = Memory()
    store = Mem0Store(memory, user_id="ann", threshold=0.5)
    store.add([])
    assert store.retrieve_batch([" ", "tea"], 2) == [Retrieved((), ()), Retrieved((), ())]
    assert not memory.held
    assert [one["threshold"] for one in memory.asked] == [0.5]


def test_asynchronous_natively_and_in_a_thread() -> None:
    async def use(store: Mem0Store) -> list[Retrieved]:
        await store.aadd(["likes green tea", "lives in Oslo"])
        await store.aadd([])
        return await store.aretrieve_batch(["tea", "", "Oslo"], 1)

    native = Mem0Store(AsyncMemory(), run_id="7")
    assert asyncio.run(use(native)) == asyncio.run(use(Mem0Store(Memory(), run_id="7")))
    with pytest.raises(ConfigError, match="memory: is asynchronous; use the asynchronous methods"):
        native.retrieve("tea", 1)
    with pytest.raises(ConfigError, match="memory: is asynchronous"):
        native.add(["tea"])


class Failing(Memory):
    def search(self, query: str, **how: Any) -> Any:
        raise ValueError("Error code: 404 - no model\nlong tail")

    def add(self, messages: object, **owner: Any) -> Any:
        raise ConnectionError("refused")


def test_what_it_raises_is_a_retriever_error() -> None:
    store = Mem0Store(Failing(), user_id="ann")
    with pytest.raises(
        RetrieverError, match=r"Mem0 failed \(ValueError: Error code: 404 - no model\); look at its conf"
    ):
        store.retrieve("tea", 1)
    with pytest.raises(RetrieverError, match=r"Mem0 failed \(ConnectionError: refused\)"):
        store.add(["tea"])


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"results": [{"id": 1}]}, {"results": 3}, {"results": [{"memory": "x", "id": 1, "score": "?"}]}],
)
def test_answers_that_cannot_be_read(answer: Any) -> None:
    class Odd(Memory):
        def search(self, query: str, **how: Any) -> Any:
            return answer or []

    with pytest.raises(RetrieverError, match="Mem0's answer cannot be read"):
        Mem0Store(Odd(), user_id="ann").retrieve("tea", 1)


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="user_id: is not given; give user_id, agent_id or run_id"):
        Mem0Store(Memory())
    with pytest.raises(ConfigError, match=r"memory: is dict; give mem0\.Memory\(\), a client, or Mem0Server"):
        Mem0Store({}, user_id="ann")
    store = Mem0Store(Memory(), user_id="ann")
    with pytest.raises(InvalidRequestError, match="documents: is one string"):
        store.add("tea")
    with pytest.raises(InvalidRequestError, match=r"documents\[0\]: has no text"):
        store.add([" "])
    with pytest.raises(InvalidRequestError, match="k: is 0"):
        store.retrieve("tea", 0)


@pytest.mark.skipif("mem0" in sys.modules, reason="mem0ai is installed here")
def test_without_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r'mem0ai is not installed; run: pip install "prefixpilot\[mem0\]"'):
        Mem0Store.from_config({}, user_id="ann")


# -- a server of one's own


@contextmanager
def mem0_server(memory: Memory, key: str | None = None) -> Iterator[str]:
    """The two paths of Mem0's open-source REST server that we use, before ``memory``."""

    class Handler(Quiet):
        def do_POST(self) -> None:  # noqa: N802
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = 200, None
            if key is not None and self.headers["X-API-Key"] != key:
                status, answer = 401, {"detail": "Invalid API key"}
            elif self.path == "/memories":
                answer = memory.add(**body)
            elif self.path == "/search":
                answer = memory.search(**body)
            else:
                status, answer = 404, {"detail": "Not Found"}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(
                json.dumps(answer).encode() if self.path != "/search" or status != 200 else _search(answer)
            )

    with listening(Handler) as url:
        yield url


def _search(answer: object) -> bytes:
    return b"<html>" if answer == {"results": []} else json.dumps(answer).encode()


def test_on_a_server_of_ones_own() -> None:
    with mem0_server(Memory(), "secret") as url:
        store = Mem0Store(Mem0Server(f"{url}/", "secret"), user_id="ann")
        store.add(["likes green tea", "lives in Oslo"])
        assert texts(store.retrieve("green tea", 1)) == ["likes green tea"]
        assert asyncio.run(store.aretrieve("Oslo", 1)).blocks[0].text == "lives in Oslo"
        with pytest.raises(RetrieverError, match="Mem0's answer is no JSON"):
            Mem0Store(Mem0Server(url, "secret"), user_id="nobody").retrieve("tea", 1)
        with pytest.raises(RetrieverError, match=r'Mem0 refused with status 401 \({"detail": "Invalid API key"}\)'):
            Mem0Store(Mem0Server(url), user_id="ann").retrieve("tea", 1)
        with pytest.raises(RetrieverError, match="Mem0 refused with status 404"):
            Mem0Store(Mem0Server(f"{url}/v1", "secret"), user_id="ann").add(["tea"])


def test_a_server_that_is_down_or_slow() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(RetrieverError, match=r"Mem0 did not answer \(.*refused\); start it, or mend the url"):
            Mem0Store(Mem0Server(url), user_id="ann").retrieve("tea", 1)
        held.listen()
        with pytest.raises(RetrieverError, match=r"Mem0 did not answer \(timed out\)"):
            Mem0Store(Mem0Server(url, timeout=0.1), user_id="ann").retrieve("tea", 1)


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="url: is 'localhost:8888'; give an address that begins with http"):
        Mem0Server("localhost:8888")
    with pytest.raises(ConfigError, match="timeout: is 0; give seconds above 0"):
        Mem0Server("http://localhost", timeout=0)
