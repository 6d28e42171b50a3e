"""The memory pattern with Mem0 as installed: its own vector store on disk, embeddings from a loopback server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

os.environ["MEM0_TELEMETRY"] = "False"  # read when it is imported

pytestmark = pytest.mark.integrations
mem0 = pytest.importorskip("mem0", reason="run `make test-integrations`")
stores = pytest.importorskip("prefixpilot.retrievers.mem0")

import openai  # noqa: E402

from prefixpilot.rag import MemorySession  # noqa: E402
from prefixpilot.testing import SimulatedEngine, chat_wire  # noqa: E402

DIMENSIONS = 256
TOLD = [
    "I am allergic to hazelnuts, so keep them out of every recipe that you give me.",
    "My tram to work is line nine at half past seven, from the market square.",
    "This winter I want to bake bread in the oven of my neighbour, once a week.",
]


def embedded(text: str) -> list[float]:
    """Words of four letters and more, each in a place of its own by its digest."""
    vector = [0.0] * DIMENSIONS
    for word in text.lower().replace("?", " ").replace(",", " ").replace(".", " ").split():
        if len(word) > 3:
            vector[int.from_bytes(blake2b(word.encode(), digest_size=4).digest(), "big") % DIMENSIONS] += 1.0
    return vector if any(vector) else [1.0] * DIMENSIONS


class Embedder(BaseHTTPRequestHandler):
    """``POST /v1/embeddings``."""

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        texts = [given] if isinstance(given, str) else given
        data = [{"object": "embedding", "index": i, "embedding": embedded(text)} for i, text in enumerate(texts)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        body = json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MEM0_DIR", str(tmp_path / "mem0"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embedder)
    thread = Thread(target=server.serve_forever)
    thread.start()
    base_url = f"http://127.0.0.1:{server.server_port}/v1"
    model = {"api_key": "none", "openai_base_url": base_url}
    try:
        yield mem0.Memory.from_config(
            {
                "embedder": {"provider": "openai", "config": {**model, "embedding_dims": DIMENSIONS}},
                "llm": {"provider": "openai", "config": model},
                "vector_store": {
                    "provider": "qdrant",
                    "config": {"path": str(tmp_path / "q"), "on_disk": True, "embedding_model_dims": DIMENSIONS},
                },
                "history_db_path": str(tmp_path / "history.db"),
            }
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def test_what_was_told_in_one_conversation_is_recalled_in_the_next(memory: Any) -> None:
    store = stores.Mem0Store(memory, user_id="ann", infer=False)
    with (
        SimulatedEngine() as engine,
        openai.OpenAI(base_url=f"{engine.base_url}/v1", api_key="none", max_retries=0) as client,
    ):
        settings: dict[str, Any] = {"model": "m", "store": store, "profile": ["Her name is Ann."], "k": 2}
        first = MemorySession(client, **settings)
        for text in TOLD:
            first.ask(text)
        second = MemorySession(client, **settings, remember=lambda question, answer: [])
        for question in ("Which recipe has no hazelnuts?", "When is my tram to work?", "Any recipe without hazelnuts?"):
            answer = second.ask(question)
        recalled = [block.text for block in answer.sources.values()]
        assert TOLD[0] in recalled and TOLD[1] in recalled
        read = [chat_wire.read_chat(chat.json()).prompt for chat in engine.chats]
        for conversation in (read[:3], read[3:]):
            for before, after in pairwise(conversation):
                assert after.startswith(before.removesuffix(chat_wire.template([])))
        assert all(prompt.startswith("<|system|>\nWhat is known of the user:\n- Her name is Ann.\n") for prompt in read)
        assert read[5].count(TOLD[0]) == 1, "a memory that is recalled again is named, not sent again"
        assert read[5].count("in the previous conversation.") >= 1
    other = stores.Mem0Store(memory, user_id="bob", infer=False)
    assert other.retrieve("hazelnuts in a recipe", 5).blocks == ()
