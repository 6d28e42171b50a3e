"""One conversation, said in each of the APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.settings import ProxySettings

USAGE: Mapping[str, Mapping[str, Any]] = {
    "chat": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    "completions": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    "responses": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
    "messages": {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2},
}
"""Nine tokens, four of them cached, as each API says it."""


def body(api: str, turns: Sequence[str], blocks: Any = None, **more: Any) -> dict[str, Any]:
    """A request; ``turns`` are the user's and the assistant's words by turns, a system text stands before them."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    prompts: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "system", "content": "S"}, *messages]},
        "completions": {"prompt": "\n".join(turns)},
        "responses": {"instructions": "S", "input": messages},
        "messages": {"messages": messages, "system": "S", "max_tokens": 9},
    }
    given = {"model": "m", **prompts[api], **more}
    return given if blocks is None else {**given, "context_blocks": blocks}


def texts(api: str, sent: Mapping[str, Any]) -> list[Any]:
    """The contents of a request's messages, without the system text."""
    if api == "completions":
        return [sent["prompt"]]
    messages = sent["input" if api == "responses" else "messages"]
    return [message["content"] for message in messages if message["role"] != "system"]


def answer(api: str, text: str) -> dict[str, Any]:
    """A whole answer."""
    if api in ("chat", "completions"):
        said = {"text": text} if api == "completions" else {"message": {"role": "assistant", "content": text}}
        return {"choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": USAGE[api]}
    if api == "messages":
        content = [{"type": "text", "text": text}]
        return {"type": "message", "role": "assistant", "content": content, "usage": USAGE[api]}
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"object": "response", "status": "completed", "error": None, "output": [item], "usage": USAGE[api]}


def events(api: str, *pieces: str) -> list[dict[str, Any]]:
    """The events of a streamed answer; the first two say nothing of the engine's having begun."""
    if api == "chat":
        deltas = [{"role": "assistant", "content": ""}, {"content": None}, *({"content": piece} for piece in pieces)]
        last: dict[str, Any] = {"choices": [], "usage": USAGE[api]}
        return [*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), last]
    if api == "completions":
        return [
            *({"choices": [{"index": 0, "text": piece}]} for piece in ("", "", *pieces)),
            {"choices": [], "usage": USAGE[api]},
        ]
    if api == "messages":
        start = {"type": "message_start", "message": {"content": [], "usage": USAGE[api]}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        said = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
        return [start, block, *said, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}]
    created = {"type": "response.created", "response": {"status": "in_progress", "usage": None}}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}}
    said = [{"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces]
    item = answer(api, "".join(pieces))["output"][0]
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    return [created, added, *said, done, {"type": "response.completed", "response": answer(api, "".join(pieces))}]


def stream(documents: Sequence[Mapping[str, Any]]) -> bytes:
    """Events as they stand on the wire."""
    return b"".join(f"event: {d.get('type')}\ndata: {json.dumps(d)}\n\n".encode() for d in documents)


@dataclass(frozen=True)
class Sent:
    """One request as the engine got it."""

    api: str
    forward: Forward

    @property
    def body(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.forward.body)
        return document

    @property
    def texts(self) -> list[Any]:
        return texts(self.api, self.body)

    @property
    def plan(self) -> dict[str, Any]:
        assert self.forward.plan_header is not None
        document: dict[str, Any] = json.loads(self.forward.plan_header)
        return document


class Desk:
    """A pipeline with an engine that answers at once, without sockets."""

    def __init__(self, **steps: Any) -> None:
        self.app = ProxyApp(ProxySettings("http://127.0.0.1:9"), **steps)

    def ask(
        self, api: str, given: Mapping[str, Any], conversation: str | None = None, reply: Any = "ok", **headers: str
    ) -> Sent:
        """Send one request; the engine answers with a text or a document, or not at all for ``None``."""
        named = [(f"x-prefixpilot-{name}".encode(), value.encode()) for name, value in headers.items()]
        if conversation is not None:
            named.append((b"x-prefixpilot-conversation", conversation.encode()))
        pipeline = self.app.pipeline
        forward = pipeline.prepare(Call(named, json.dumps(given).encode(), API_OF_NAME[api]))
        if forward.observed and reply is not None:
            observation = pipeline.observe(forward, 200, "application/json", "")
            observation.feed(json.dumps(answer(api, reply) if isinstance(reply, str) else reply).encode())
            observation.finish()
        return Sent(api, forward)
