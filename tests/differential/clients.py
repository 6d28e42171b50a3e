"""Clients of four APIs: a dialogue, said as the bodies that their programs send. Knows nothing of the proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple

ApiName = Literal["chat", "completions", "responses", "messages"]
APIS: Final[tuple[ApiName, ...]] = ("chat", "completions", "responses", "messages")
PATHS: Final[Mapping[ApiName, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
Pointer = tuple[str | int, ...]
IMAGE: Final = "data:image/png;base64,iVBORw0KGgo="


class Use(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: str


class Asks(NamedTuple):
    """A user's message."""

    text: str
    parts: bool = False
    image: bool = False


class Says(NamedTuple):
    """An assistant's message."""

    text: str
    uses: tuple[Use, ...] = ()
    thinking: str = ""


class Result(NamedTuple):
    """What a tool answered."""

    use_id: str
    text: str


Entry = Asks | Says | Result


class Place(NamedTuple):
    """A string of a body that the model reads, and the entry that it belongs to; -1 is the system text."""

    pointer: Pointer
    entry: int
    role: Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Style:
    """How a client's JSON library writes."""

    indent: int | None = None
    separators: tuple[str, str] | None = None
    ascii: bool = True

    def dumps(self, value: Any) -> str:
        text = json.dumps(value, indent=self.indent, separators=self.separators, ensure_ascii=self.ascii)
        for name, raw in RAW_NUMBERS.items():
            text = text.replace(f'"{name}"', raw)
        return text


STYLES: Final = (Style(), Style(separators=(",", ":")), Style(indent=2), Style(ascii=False))
RAW_NUMBERS: Final = {
    "~raw 1~": "0.70",
    "~raw 2~": "1E2",
    "~raw 3~": "123456789012345678901234567890",
    "~raw 4~": "-0.0",
}
"""Numbers that no parser writes back as they were."""


@dataclass(slots=True)
class Body:
    """A request's body as a value, and where the dialogue stands in it."""

    api: ApiName
    value: dict[str, Any]
    places: list[Place] = field(default_factory=list)
    origins: dict[Pointer, int] = field(default_factory=dict)
    """Where an entry begins; a place inside belongs to the nearest origin above it."""

    def entry_at(self, pointer: Pointer) -> int | None:
        for end in range(len(pointer), 0, -1):
            if pointer[:end] in self.origins:
                return self.origins[pointer[:end]]
        return None


def body_of(api: ApiName, entries: Sequence[Entry], system: str, more: Mapping[str, Any]) -> Body:
    """The body of a request; ``more`` are its other members."""
    body = Body(api, {"model": "m"})
    _WRITERS[api](body, entries, system)
    body.value.update(more)
    return body


def _chat(body: Body, entries: Sequence[Entry], system: str) -> None:
    messages: list[dict[str, Any]] = []
    body.value["messages"] = messages
    if system:
        body.places.append(Place(("messages", 0, "content"), -1, "system"))
        body.origins["messages", 0] = -1
        messages.append({"role": "system", "content": system})
    for i, entry in enumerate(entries):
        at: Pointer = ("messages", len(messages))
        body.origins[at] = i
        match entry:
            case Asks():
                messages.append({"role": "user", "content": _content(body, i, entry, (*at, "content"), "text")})
            case Says(text, uses):
                calls = [
                    {"id": u.id, "type": "function", "function": {"name": u.name, "arguments": u.arguments}}
                    for u in uses
                ]
                content = text or (None if uses else "")
                messages.append({"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})})
                if content:
                    body.places.append(Place((*at, "content"), i, "assistant"))
            case Result(use_id, text):
                messages.append({"role": "tool", "tool_call_id": use_id, "content": text})
                body.places.append(Place((*at, "content"), i, "tool"))


def _content(body: Body, entry: int, asks: Asks, at: Pointer, kind: str) -> Any:
    if not (asks.parts or asks.image):
        body.places.append(Place(at, entry, "user"))
        return asks.text
    parts: list[dict[str, Any]] = []
    if asks.image:
        parts.append(_image(body.api))
    body.places.append(Place((*at, len(parts), "text"), entry, "user"))
    return [*parts, {"type": kind, "text": asks.text}]


def _image(api: ApiName) -> dict[str, Any]:
    if api == "messages":
        return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    if api == "responses":
        return {"type": "input_image", "image_url": IMAGE}
    return {"type": "image_url", "image_url": {"url": IMAGE}}


def _completions(body: Body, entries: Sequence[Entry], system: str) -> None:
    lines = [system, *(entry.text for entry in entries)]
    body.value["prompt"] = "\n".join(line for line in lines if line)
    body.places.append(Place(("prompt",), len(entries) - 1, "user"))
    body.origins["prompt",] = len(entries) - 1


def _responses(body: Body, entries: Sequence[Entry], system: str) -> None:
    if system:
        body.value["instructions"] = system
        body.places.append(Place(("instructions",), -1, "system"))
        body.origins["instructions",] = -1
    if len(entries) == 1 and isinstance(entries[0], Asks) and not (entries[0].parts or entries[0].image):
        body.value["input"] = entries[0].text
        body.places.append(Place(("input",), 0, "user"))
        body.origins["input",] = 0
        return
    items: list[dict[str, Any]] = []
    body.value["input"] = items
    for i, entry in enumerate(entries):
        match entry:
            case Asks():
                at: Pointer = ("input", len(items))
                body.origins[at] = i
                items.append({"role": "user", "content": _content(body, i, entry, (*at, "content"), "input_text")})
            case Says(text, uses, thinking):
                _said_items(body, i, items, text, uses, thinking)
            case Result(use_id, text):
                at = ("input", len(items))
                body.origins[at] = i
                body.places.append(Place((*at, "output"), i, "tool"))
                items.append({"type": "function_call_output", "call_id": use_id, "output": text})


def _said_items(
    body: Body, entry: int, items: list[dict[str, Any]], text: str, uses: Sequence[Use], thinking: str
) -> None:
    for item in said_items(text, uses, thinking):
        at: Pointer = ("input", len(items))
        body.origins[at] = entry
        if item["type"] == "message":
            body.places.append(Place((*at, "content", 0, "text"), entry, "assistant"))
        items.append(item)


def said_items(text: str, uses: Sequence[Use], thinking: str) -> Iterator[dict[str, Any]]:
    """Output items of Responses; a client sends them back as they are."""
    if thinking:
        yield {"type": "reasoning", "summary": [], "encrypted_content": thinking}
    if text:
        yield {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    for use in uses:
        yield {"type": "function_call", "call_id": use.id, "name": use.name, "arguments": use.arguments}


def _messages(body: Body, entries: Sequence[Entry], system: str) -> None:
    body.value["max_tokens"] = 64
    if system:
        body.value["system"] = system
        body.places.append(Place(("system",), -1, "system"))
        body.origins["system",] = -1
    messages: list[dict[str, Any]] = []
    body.value["messages"] = messages
    for i, entry in enumerate(entries):
        if isinstance(entry, Says):
            at: Pointer = ("messages", len(messages))
            body.origins[at] = i
            content = list(said_parts(entry))
            for k, part in enumerate(content):
                if part["type"] == "text":
                    body.places.append(Place((*at, "content", k, "text"), i, "assistant"))
            messages.append({"role": "assistant", "content": content})
        else:
            _user_parts(body, i, entry, messages, after_result=i > 0 and isinstance(entries[i - 1], Result))


def _user_parts(
    body: Body, i: int, entry: Asks | Result, messages: list[dict[str, Any]], *, after_result: bool
) -> None:
    """Results, and a question behind them, stand in one message."""
    if not after_result:
        at: Pointer = ("messages", len(messages))
        body.origins[at] = i
        if isinstance(entry, Asks):
            messages.append({"role": "user", "content": _content(body, i, entry, (*at, "content"), "text")})
            return
        messages.append({"role": "user", "content": []})
    at = ("messages", len(messages) - 1)
    content: list[Any] = messages[-1]["content"]
    if isinstance(entry, Result):
        body.origins[(*at, "content", len(content))] = i
        body.places.append(Place((*at, "content", len(content), "content"), i, "tool"))
        content.append({"type": "tool_result", "tool_use_id": entry.use_id, "content": entry.text})
        return
    body.origins[at] = i  # what is put between the results and the question belongs to the question
    if entry.image:
        content.append(_image("messages"))
    body.origins[(*at, "content", len(content))] = i
    body.places.append(Place((*at, "content", len(content), "text"), i, "user"))
    content.append({"type": "text", "text": entry.text})


def said_parts(says: Says) -> Iterator[dict[str, Any]]:
    """Content of an assistant's message of Anthropic; a client sends it back as it is."""
    if says.thinking:
        yield {"type": "thinking", "thinking": says.thinking, "signature": "c2lnbmVk"}
    if says.text:
        yield {"type": "text", "text": says.text}
    for use in says.uses:
        yield {"type": "tool_use", "id": use.id, "name": use.name, "input": json.loads(use.arguments)}


_WRITERS: Final = {"chat": _chat, "completions": _completions, "responses": _responses, "messages": _messages}


def answer_of(api: ApiName, says: Says) -> bytes:
    """The engine's answer, whole."""
    uses = [{"id": u.id, "type": "function", "function": {"name": u.name, "arguments": u.arguments}} for u in says.uses]
    document: dict[str, Any]
    match api:
        case "chat":
            message = {"role": "assistant", "content": says.text or None, **({"tool_calls": uses} if uses else {})}
            document = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        case "completions":
            document = {"choices": [{"index": 0, "text": says.text, "finish_reason": "stop"}]}
        case "responses":
            output = list(said_items(says.text, says.uses, says.thinking))
            document = {"object": "response", "status": "completed", "error": None, "output": output}
        case "messages":
            document = {"type": "message", "role": "assistant", "content": list(said_parts(says))}
    return json.dumps(document).encode()


def extras(rng: Random, api: ApiName) -> dict[str, Any]:
    """Members of a body that nobody may change; known and unknown ones, in any order."""
    given: dict[str, Any] = {
        "stream": rng.random() < 0.3,
        "temperature": "~raw 1~",
        "top_p": "~raw 2~",
        "x_vendor": {"a": ["~raw 3~", None, True], "ü": '\u2028 \\ / "', "n": "~raw 4~"},
        "user": "someone",
        "metadata": {"k": "v"},
    }
    if api in ("chat", "responses", "messages"):
        given["tools"] = [_tool(api, name) for name in ("read_file", "search")]
    kept = [name for name in given if rng.random() < 0.5]
    rng.shuffle(kept)
    return {name: given[name] for name in kept}


def _tool(api: ApiName, name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    if api == "messages":
        return {"name": name, "input_schema": schema}
    function = {"name": name, "parameters": schema}
    return {"type": "function", **function} if api == "responses" else {"type": "function", "function": function}
