"""What the real engine reports of its prefix cache: the ground that everything else stands on."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.engines.llamacpp import EmbeddedEngine

pytestmark = pytest.mark.engine


def documents(topic: str) -> list[str]:
    """Eight documents of about 60 tokens each, which no other topic shares."""
    return [f"{topic} {i}: " + " ".join(f"{topic}-{i}-{word}" for word in range(12)) for i in range(8)]


def post(engine: EmbeddedEngine, text: str, **more: Any) -> bytes:
    body = {"model": "any-name", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}
    connection = http.client.HTTPConnection(urlsplit(engine.base_url).netloc, timeout=60)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer
    finally:
        connection.close()


def ask(engine: EmbeddedEngine, text: str) -> tuple[int, int]:
    """(prompt tokens, cached tokens)"""
    return counts(json.loads(post(engine, text))["usage"])


def counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_an_identical_prompt_is_cached_but_for_a_token(tiny_engine: EmbeddedEngine) -> None:
    prompt = "\n\n".join(documents("apple"))
    total, cold = ask(tiny_engine, prompt)
    assert total > 300 and cold < 40
    assert ask(tiny_engine, prompt) == (total, total - 1)


def test_the_same_documents_in_another_order_miss(tiny_engine: EmbeddedEngine) -> None:
    docs = documents("birch")
    ask(tiny_engine, "\n\n".join(docs))
    assert ask(tiny_engine, "\n\n".join(docs[::-1]))[1] < 40


def test_a_shared_prefix_hits(tiny_engine: EmbeddedEngine) -> None:
    docs, others = documents("cedar"), documents("date")
    head, _ = ask(tiny_engine, "\n\n".join(docs[:4]))
    total, cached = ask(tiny_engine, "\n\n".join(docs[:4] + others[:4]))
    assert head - 20 <= cached <= head < total


def test_an_earlier_prompt_comes_back_from_the_store(tiny_engine: EmbeddedEngine) -> None:
    first, second = "\n\n".join(documents("elm")), "\n\n".join(documents("fig"))
    total, _ = ask(tiny_engine, first)
    assert ask(tiny_engine, second)[1] < 40
    assert ask(tiny_engine, first) == (total, total - 1)


def test_a_stream_reports_cached_tokens_if_asked(tiny_engine: EmbeddedEngine) -> None:
    prompt = "\n\n".join(documents("gorse"))
    total, _ = ask(tiny_engine, prompt)
    stream = post(tiny_engine, prompt, stream=True, stream_options={"include_usage": True}).decode()
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    assert counts(events[-1]["usage"]) == (total, total - 1)
    assert stream.rstrip().endswith("data: [DONE]")


def test_other_web_pages_may_not_read_it(tiny_engine: EmbeddedEngine) -> None:
    connection = http.client.HTTPConnection(urlsplit(tiny_engine.base_url).netloc, timeout=60)
    try:
        connection.request("GET", "/slots", headers={"Origin": "http://elsewhere.example"})
        response = connection.getresponse()
        response.read()
        assert response.getheader("Access-Control-Allow-Origin") in (None, "http://127.0.0.1")
    finally:
        connection.close()
