"""Mem0 itself, offline: its local vector store, embeddings by a service on the loopback, no language model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from tests.retrievers.listening import Quiet, listening

os.environ["MEM0_TELEMETRY"] = "False"  # read when mem0 is imported
os.environ["MEM0_DIR"] = os.environ.get("MEM0_DIR", str(Path(__file__).parents[2] / ".cache" / "mem0"))
mem0 = pytest.importorskip("mem0")

from prefixpilot.errors import RetrieverError  # noqa: E402
from prefixpilot.retrievers import MemoryStore, Retrieved  # noqa: E402
from prefixpilot.retrievers.mem0 import Mem0Server, Mem0Store  # noqa: E402

DIMENSIONS = 64


def embedding(text: str) -> list[float]:
    """Each word adds one to a place of its own."""
    row = [0.0] * DIMENSIONS
    for word in text.lower().replace("?", "").replace(".", "").split():
        row[blake2b(word.encode(), digest_size=1).digest()[0] % DIMENSIONS] += 1
    return row


@contextmanager
def answering(answer: Any) -> Iterator[str]:
    """A server on the loopback that gives ``answer(path, body)`` as JSON; its address."""

    class Handler(Quiet):
        def do_POST(self) -> None:  # noqa: N802
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = json.dumps(answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with listening(Handler) as url:
        yield url


@pytest.fixture(scope="module")
def embeddings() -> Iterator[str]:
    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        given = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = [{"object": "embedding", "index": i, "embedding": embedding(text)} for i, text in enumerate(given)]
        return {"object": "list", "data": rows, "model": "words", "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    with answering(answer) as url:
        yield url


def config(embeddings: str, folder: Path) -> dict[str, Any]:
    """Qdrant in a folder; a language model at an address where nothing listens."""
    store = {"path": str(folder / "qdrant"), "embedding_model_dims": DIMENSIONS, "on_disk": True}
    served = {"openai_base_url": f"{embeddings}/v1", "api_key": "none", "embedding_dims": DIMENSIONS}
    return {
        "vector_store": {"provider": "qdrant", "config": store},
        "embedder": {"provider": "openai", "config": served},
        "llm": {"provider": "openai", "config": {"openai_base_url": "http://127.0.0.1:9/v1", "api_key": "none"}},
        "history_db_path": str(folder / "history.db"),
    }


def texts(found: Retrieved) -> list[str]:
    return [block.text or "" for block in found.blocks]


def test_memories_of_one_user(embeddings: str, tmp_path: Path) -> None:
    memory = mem0.Memory.from_config(config(embeddings, tmp_path))
    ann, bob = Mem0Store(memory, user_id="ann"), Mem0Store(memory, user_id="bob")
    assert isinstance(ann, MemoryStore)
    ann.add(["Ann likes green tea.", "Ann lives in Oslo.", "Ann has two cats."])
    bob.add(["Bob likes coffee."])
    assert texts(ann.retrieve("Where lives Ann?", 1)) == ["Ann lives in Oslo."]
    assert texts(bob.retrieve("likes", 5)) == ["Bob likes coffee."]
    assert len(ann.retrieve("Ann likes cats", 2).blocks) == 2
    first, second = ann.retrieve("Ann lives in Oslo", 3), ann.retrieve("Ann has cats", 3)
    assert {block.text: block for block in first.blocks} == {block.text: block for block in second.blocks}
    assert list(first.scores) == sorted(first.scores, reverse=True)


def test_asynchronously(embeddings: str, tmp_path: Path) -> None:
    async def use() -> Retrieved:
        memory = mem0.AsyncMemory.from_config(config(embeddings, tmp_path))
        if asyncio.iscoroutine(memory):
            memory = await memory
        store = Mem0Store(memory, user_id="ann")
        await store.aadd(["Ann likes green tea.", "Ann lives in Oslo."])
        return await store.aretrieve("Where lives Ann?", 1)

    assert texts(asyncio.run(use())) == ["Ann lives in Oslo."]


def test_behind_the_paths_of_its_server(embeddings: str, tmp_path: Path) -> None:
    """The two paths as Mem0's server has them, before the real library."""
    memory = mem0.Memory.from_config(config(embeddings, tmp_path))

    def answer(path: str, body: dict[str, Any]) -> Any:
        return memory.add(**body) if path == "/memories" else memory.search(**body)

    with answering(answer) as url:
        store = Mem0Store(Mem0Server(url), user_id="ann")
        store.add(["Ann likes green tea.", "Ann lives in Oslo."])
        assert texts(store.retrieve("Where lives Ann?", 1)) == ["Ann lives in Oslo."]


def test_embeddings_that_are_down(tmp_path: Path) -> None:
    settings = config("http://127.0.0.1:9", tmp_path)
    store = Mem0Store.from_config(settings, user_id="ann")
    with pytest.raises(RetrieverError, match=r"Mem0 failed \(APIConnectionError"):
        store.retrieve("tea", 1)
