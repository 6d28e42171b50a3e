"""Runs the samples of ``docs/what-changes.md`` through the proxy's own pipeline.

A ``toml`` sample starts a proxy with those settings. A sample titled ``client`` is a request that it gets, on the path
and with the headers that the title names; the one titled ``engine`` behind it is what it sent. Chats are written as
text: a line such as ``=== user ===`` before each message, and ``=== context block ===`` before each block.
``(6000 characters)`` stands for so many characters of text.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.pages import Fence, rewritten

from prefixpilot.apis import API_OF_PATH
from prefixpilot.cli.serve_settings import ServeSettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.configuration import Sources, load

CHAT = "/v1/chat/completions"
ENGINE = "http://127.0.0.1:9"
BLOCK = "context block"

_HEAD = re.compile(r"^=== (.+) ===$", re.MULTILINE)
_CALLS = re.compile(r"assistant calls (\w+) (\{.*\}) as (\w+)")
_LONG = re.compile(r"\((\d+) characters\)")
_RESULT = re.compile(r"tool, result of (\w+)")


class Sample(NamedTuple):
    """A request of a client and what the engine got, as a page tells them."""

    client: Fence
    engine: Fence


class Product:
    """A proxy whose engine answers ``ok`` to all."""

    def __init__(self, toml: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "settings.toml"
            path.write_text(toml, encoding="utf-8")
            flags = {} if re.search("^engine = ", toml, re.MULTILINE) else {"--engine": ENGINE}
            settings = load(ServeSettings, Sources(flags, {}, path)).settings
            proxy = settings.proxy(settings.engine)
            if proxy.store.state_dir is not None:  # a sample's directory is not this machine's
                proxy = replace(proxy, store=replace(proxy.store, state_dir=folder))
            self._pipeline = ProxyApp(proxy).pipeline

    def sent(self, client: Fence) -> str:
        """What the engine gets in the place of a sample, written as the sample is."""
        path, headers = _title(client.title)
        body = _body(client._replace(text=_LONG.sub(_long, client.text)))
        call = Call([(k.lower().encode(), v.encode()) for k, v in headers.items()], body, API_OF_PATH[path.encode()])
        forward = self._pipeline.prepare(call)
        assert forward.outcome in ("planned", "passthrough"), forward.outcome
        observation = self._pipeline.observe(forward, 200, "application/json", "")
        observation.feed(json.dumps(_ANSWERS[call.api.name]).encode())
        observation.finish()
        value = json.loads(forward.body)
        told = shown(value) if client.language == "text" else json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        for match in _LONG.finditer(client.text):
            told = told.replace(_long(match), match[0])
        return told


_ANSWERS: Mapping[str, Any] = {
    "chat": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]},
    "messages": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}]},
}


def _long(match: re.Match[str]) -> str:
    """The text that a sample does not write out."""
    return ("lorem ipsum " * int(match[1]))[: int(match[1])]


def _title(title: str) -> tuple[str, dict[str, str]]:
    """Path and headers of ``client /v1/messages, X-Header: value``."""
    first, *rest = title.split(", ")
    headers = dict(part.split(": ", 1) for part in rest)
    return first.removeprefix("client").strip() or CHAT, headers


def _body(client: Fence) -> bytes:
    return json.dumps(read(client.text)).encode() if client.language == "text" else client.text.encode()


def read(text: str) -> dict[str, Any]:
    """The chat that a sample in text means."""
    _, *parts = _HEAD.split(text)
    body: dict[str, Any] = {"model": "m", "messages": []}
    for head, content in zip(parts[::2], parts[1::2], strict=True):
        words = content.strip("\n")
        if head == BLOCK:
            body.setdefault("context_blocks", []).append(words)
        else:
            body["messages"].append(_message(head, words))
    return body


def _message(head: str, words: str) -> dict[str, Any]:
    if calls := _CALLS.fullmatch(head):
        name, arguments, call = calls.groups()
        function = {"name": name, "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]}
    if result := _RESULT.fullmatch(head):
        return {"role": "tool", "tool_call_id": result[1], "content": words}
    return {"role": head, "content": words}


def shown(body: Mapping[str, Any]) -> str:
    """A chat as a sample writes it."""
    assert "context_blocks" not in body
    return "\n\n".join(_shown(message) for message in body["messages"]) + "\n"


def _shown(message: Mapping[str, Any]) -> str:
    for call in message.get("tool_calls", ()):
        function = call["function"]
        return f"=== assistant calls {function['name']} {function['arguments']} as {call['id']} ==="
    head = f"tool, result of {message['tool_call_id']}" if message["role"] == "tool" else message["role"]
    return f"=== {head} ===\n{message['content']}"


def samples(fences: list[Fence]) -> Iterator[tuple[Sample, str]]:
    """Each request with its expected form, and what the product sent."""
    product: Product | None = None
    waiting: tuple[Fence, str] | None = None
    for fence in fences:
        if fence.language == "toml":
            product = Product(fence.text)
        elif fence.title.startswith("client"):
            assert product is not None, "the page shows settings first"
            waiting = (fence, product.sent(fence))
        elif fence.title == "engine":
            assert waiting is not None, f"line {fence.line}: no request stands in front"
            client, sent = waiting
            yield Sample(client, fence), sent


def written(page: str) -> str:
    """The page with every ``engine`` sample as the product sends it now."""
    product: Product | None = None
    sent = ""

    def write(fence: Fence) -> str | None:
        nonlocal product, sent
        if fence.language == "toml":
            product = Product(fence.text)
        elif fence.title.startswith("client"):
            assert product is not None, "the page shows settings first"
            sent = product.sent(fence)
        return sent if fence.title == "engine" else None

    return rewritten(page, write)
