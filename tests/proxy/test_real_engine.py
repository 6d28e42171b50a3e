"""llama.cpp behind the proxy, in each of the four APIs: blocks, a second turn of a conversation, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread

from .support import Answer, fetch
from .watched import APIS, Ask

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def proxy(tiny_engine: EmbeddedEngine) -> Iterator[RunningProxy]:
    for slot in range(2):  # else the proxy tries a second slot at some request, to see what becomes of the first
        ask = {"prompt": f"Slot {slot} is taken.", "n_predict": 1, "id_slot": slot}
        assert fetch(tiny_engine.base_url, "POST", "/completion", ask).status == 200
    with serve_in_thread(ProxySettings(tiny_engine.base_url, port=0, drain_timeout=2)) as running:
        yield running


def documents(api: str, stream: bool) -> list[str]:
    """Of each test its own, since the engine's cache is shared."""
    return [f"Report {n} by {api}, {stream}: gate {n} of the harbour opens at {n} every day. " * 2 for n in range(1, 5)]


def body(api: str, messages: list[Any], blocks: list[str], stream: bool) -> dict[str, Any]:
    prompts: dict[str, dict[str, Any]] = {
        "chat": {"messages": messages, "max_tokens": 2, "stream_options": {"include_usage": True}},
        "completions": {"prompt": "Which gate?", "max_tokens": 2, "stream_options": {"include_usage": True}},
        "responses": {"input": messages, "max_output_tokens": 2},
        "messages": {"messages": messages, "max_tokens": 2},
    }
    return {"model": "m", "temperature": 0, "stream": stream, "context_blocks": blocks, **prompts[api]}


def says(api: str, text: str) -> dict[str, Any]:
    """An assistant's message; in Responses as an item of output, the only form that llama.cpp reads back."""
    if api != "responses":
        return {"role": "assistant", "content": text}
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "id": "m1", "status": "completed", "content": [part]}


def usage(answer: Answer) -> tuple[int, int]:
    """Prompt tokens and how many of them were cached, as the engine counts; the last event that says it counts."""
    text = answer.body.decode()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")] or [text]
    counts: dict[str, Any] = {}
    for document in map(json.loads, lines):
        held: list[Mapping[str, Any]] = [document, document.get("response") or {}, document.get("message") or {}]
        for each in held:
            counts |= each.get("usage") or {}
    if "cache_read_input_tokens" in counts:
        cached = counts["cache_read_input_tokens"]
        return counts["input_tokens"] + cached, cached
    name = "prompt_tokens" if "prompt_tokens" in counts else "input_tokens"
    return counts[name], counts[f"{name}_details"]["cached_tokens"]


@pytest.mark.parametrize(("api", "stream"), [*((api, True) for api in APIS), ("responses", False), ("messages", False)])
def test_blocks_are_cached_whatever_their_order_and_over_turns(proxy: RunningProxy, api: str, stream: bool) -> None:
    def ask(messages: list[Any], blocks: list[str], **headers: str) -> tuple[Answer, dict[str, Any]]:
        answer = fetch(proxy.url, "POST", Ask(api, "blocks").path, body(api, messages, blocks, stream), headers)
        assert answer.status == 200, answer.body
        return answer, json.loads(answer.header("X-PrefixPilot-Plan") or "")

    conversation = {"X-PrefixPilot-Conversation": f"{api} {stream}"}
    question = {"role": "user", "content": "Which gate?"}
    blocks = documents(api, stream)
    first, _ = ask([question], blocks, **conversation)
    prompt, _ = usage(first)
    if api != "completions":  # one string: it has no turns
        turns = [question, says(api, "One."), {"role": "user", "content": "Now?"}]
        second, plan = ask(turns, blocks[1:2], **conversation)
        assert plan["restored"] == 1
        longer, cached = usage(second)
        assert prompt - 8 <= cached < longer, "the first turn as it was sent"
        assert longer < prompt + 60, "a document that the model has is not sent again"
    _, cached = usage(ask([question], blocks[::-1])[0])
    assert cached > prompt * 0.8, "another order, the same prefix"
