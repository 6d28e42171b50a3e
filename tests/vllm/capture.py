"""Captures what a real vLLM publishes, and the answers of its paths, for ``tests/engines/wire/``.

``PREFIXPILOT_VLLM_PYTHON=... python -m tests.vllm.capture FOLDER MODEL``. Takes what vLLM 0.32 sends for a few prompts:
stored pages, the same prompt under a salt, eviction, a reset. Each payload is a file; ``answers.json`` holds the rest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import zmq
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, cached_tokens, make_model


def words(first: int, count: int) -> str:
    """A text of numbers: no two of them alike, about three tokens each here."""
    return " ".join(str(first + i) for i in range(count))


def steps(server: VllmServer) -> dict[str, Any]:
    """The requests, in order, and what the engine said to each."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "count: " + words(100, 40)}]}
    said: dict[str, Any] = {
        "tokenize_chat": server.post("/tokenize", chat),
        "tokenize_prompt": server.post("/tokenize", {"model": "tiny", "prompt": words(100, 10)}),
        "chat": server.post("/v1/chat/completions", {**chat, "max_tokens": 40, "temperature": 0, "ignore_eos": True}),
        "again": server.post("/v1/chat/completions", {**chat, "max_tokens": 1}),
        "salted": server.complete(words(100, 40), cache_salt="tenant-a"),
    }
    for number in range(4):
        said[f"fill_{number}"] = server.complete(words(1000 * (number + 1), 180))
    said["evicted"] = server.complete(words(100, 40), cache_salt="tenant-a")
    server.post("/reset_prefix_cache", {})
    said["after_reset"] = server.complete(words(100, 40))
    said["sources"] = server.get("/kv_event_sources")
    return said


def replay(endpoint: str) -> list[bytes]:
    """Every payload from the first on."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(endpoint)
    dealer.send_multipart((b"", bytes(8)))
    payloads: list[bytes] = []
    try:
        while dealer.poll(5000):
            _, topic, number, payload = dealer.recv_multipart()
            if number == b"\xff" * 8:
                return payloads
            assert (topic, int.from_bytes(number, "big")) == (b"kv-events", len(payloads))
            payloads.append(payload)
        raise TimeoutError("the engine did not replay")
    finally:
        dealer.close(linger=0)
        context.term()


def main() -> None:
    folder, model = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    python = os.environ[PYTHON_VARIABLE]
    # 33 blocks and 1,024 tokens: a few prompts fill it.
    with VllmServer(python, make_model(python, model), folder / "server.log", blocks=34, max_tokens=1024) as server:
        said = steps(server)
        payloads = replay(server.replay_endpoint)
    for number, payload in enumerate(payloads):
        (folder / f"{number:03d}.msgpack").write_bytes(payload)
    (folder / "answers.json").write_text(json.dumps(said, indent=1))
    cached = {key: cached_tokens(value) for key, value in said.items() if "usage" in value}
    print(len(payloads), "batches;", cached)  # noqa: T201


if __name__ == "__main__":
    main()
