"""What the documents of an answer say, API by API: whether content has begun, the reply, the engine's own counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from prefixpilot.proxy.memory.reply import Reply

_CONTENT_KEYS: Final = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "audio")


@dataclass(frozen=True, slots=True)
class Usage:
    """The engine's own counts; ``None`` is unknown, never zero.

    Attributes:
        prompt_tokens: all of the prompt, cached ones included.
        completion_tokens: of the answer.
        written_tokens: of it, written to a hosted provider's cache.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None = None
    written_tokens: int | None = None


class Heard(NamedTuple):
    """What one document adds to what is known of the answer.

    Attributes:
        name: the id under which the engine keeps it (Responses).
    """

    started: bool = False
    failed: bool = False
    usage: Usage | None = None
    name: str | None = None


class Listener(Protocol):
    """Reads the documents of one answer in order: the events of a stream, or the one of a plain answer."""

    def __call__(self, document: Mapping[str, Any], reply: Reply) -> Heard:
        """Adds what the document says to ``reply``. Never raises on any JSON object."""
        ...


def _choices(document: Mapping[str, Any], reply: Reply) -> Heard:
    """Chat Completions and Completions. The reply is the first choice."""
    started = False
    for choice in _objects(document.get("choices")):
        message = choice.get("message") or choice.get("delta")
        message = message if isinstance(message, dict) else {}
        content = choice.get("finish_reason") or choice.get("text") or message.get("content")
        started = started or bool(content or any(message.get(key) for key in _CONTENT_KEYS))
        if choice.get("index", 0) == 0:
            reply.add(_string(choice.get("text")) + _string(message.get("content")))
            if (calls := message.get("tool_calls")) is not None:
                reply.add_calls(calls)
            if (call := message.get("function_call")) is not None:
                reply.add_function_call(call)
        else:
            reply.there_are_others()
    usage = _openai_usage(document.get("usage"), "prompt_tokens")
    return Heard(started, usage=usage or _llamacpp_usage(document.get("timings")))


class _Responses:
    """Responses. Text is taken as it streams, so that a stream that is cut has its beginning; calls when complete."""

    def __init__(self) -> None:
        self._streamed: set[Any] = set()

    def __call__(self, document: Mapping[str, Any], reply: Reply) -> Heard:
        kind = document.get("type")
        if document.get("object") == "response":
            return self._whole(document, reply)
        if not isinstance(kind, str):
            return Heard()
        if kind in ("error", "response.failed"):
            return Heard(failed=True)
        response = document.get("response")
        whole = response if isinstance(response, dict) else {}
        if kind in ("response.completed", "response.incomplete"):
            return Heard(True, usage=_responses_usage(whole), name=_name(whole))
        if whole:
            return Heard(name=_name(whole))
        if kind == "response.output_text.delta":
            self._streamed.add(document.get("output_index"))
            reply.add(_string(document.get("delta")))
        elif kind == "response.output_item.done":
            self._item(document.get("output_index"), document.get("item"), reply)
        return Heard(kind.endswith(".delta") or kind == "response.output_item.done")

    def _whole(self, document: Mapping[str, Any], reply: Reply) -> Heard:
        items = _objects(document.get("output"))
        for index, item in enumerate(items):
            self._item(index, item, reply)
        ended = document.get("status") in ("completed", "incomplete")
        failed = document.get("status") == "failed"
        return Heard(ended or bool(items), failed, _responses_usage(document), _name(document))

    def _item(self, index: Any, item: Any, reply: Reply) -> None:
        if not isinstance(item, dict):
            return
        if item.get("type") in ("function_call", "custom_tool_call"):
            function = {"name": item.get("name"), "arguments": item.get("arguments", item.get("input"))}
            reply.add_calls([{"index": index, "id": item.get("call_id"), "function": function}])
        elif item.get("type") == "message" and index not in self._streamed:
            for part in _objects(item.get("content")):
                reply.add(_string(part.get("text")))


def _messages(document: Mapping[str, Any], reply: Reply) -> Heard:
    """Anthropic Messages. ``message_start`` has counts, and is no content: it comes when the request is accepted."""
    kind = document.get("type")
    if kind == "message":
        for index, block in enumerate(_objects(document.get("content"))):
            _block(index, block, reply)
        started = bool(document.get("content") or document.get("stop_reason"))
        return Heard(started, usage=_anthropic_usage(document.get("usage")))
    if kind == "message_start":
        message = document.get("message")
        return Heard(usage=_anthropic_usage(message.get("usage") if isinstance(message, dict) else None))
    if kind == "content_block_start":
        begun = document.get("content_block")
        if isinstance(begun, dict):
            _block(document.get("index"), begun, reply)
            return Heard(begun.get("type") not in ("text", "thinking"))
    if kind == "content_block_delta":
        delta = document.get("delta")
        if isinstance(delta, dict):
            reply.add(_string(delta.get("text")))
            if "partial_json" in delta:
                function = {"arguments": delta["partial_json"]}
                reply.add_calls([{"index": document.get("index"), "function": function}])
        return Heard(True)
    return Heard(kind in ("message_delta", "message_stop"), usage=_anthropic_usage(document.get("usage")))


def _block(index: Any, block: Mapping[str, Any], reply: Reply) -> None:
    reply.add(_string(block.get("text")))
    if block.get("type") == "tool_use":
        arguments = json.dumps(block["input"]) if block.get("input") else ""
        function = {"name": block.get("name"), "arguments": arguments}
        reply.add_calls([{"index": index, "id": block.get("id"), "function": function}])


_LISTENERS: Final[Mapping[str, Callable[[], Listener]]] = {
    "chat": lambda: _choices,
    "completions": lambda: _choices,
    "responses": _Responses,
    "messages": lambda: _messages,
}


def listener(api: str) -> Listener:
    """One for an answer of that API."""
    return _LISTENERS[api]()


def _name(response: Mapping[str, Any]) -> str | None:
    return _string(response.get("id")) or None


def _responses_usage(response: Mapping[str, Any]) -> Usage | None:
    return _openai_usage(response.get("usage"), "input_tokens")


def _openai_usage(value: Any, name: str) -> Usage | None:
    """The counts whose names begin with ``name``; cached ones are among them."""
    if not isinstance(value, dict):
        return None
    details = value.get(f"{name}_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = value.get("prompt_cache_hit_tokens")
    written = details.get("cache_write_tokens") if isinstance(details, dict) else None
    generated = value.get("completion_tokens" if name == "prompt_tokens" else "output_tokens")
    return Usage(_count(value.get(name)), _count(cached), _count(generated), _count(written))


def _llamacpp_usage(timings: Any) -> Usage | None:
    """llama.cpp's ``timings``, which stand in the last chunk of a stream also where no usage was asked for:
    ``prompt_n`` are those that were computed."""
    if not isinstance(timings, dict):
        return None
    cached, computed = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
    if cached is None or computed is None:
        return None
    return Usage(cached + computed, cached, _count(timings.get("predicted_n")))


def _anthropic_usage(value: Any) -> Usage | None:
    """``input_tokens`` are those that were neither read from the cache nor written to it. A sum of 0 is no count:
    engines send it where they do not know yet, or have said it before."""
    if not isinstance(value, dict) or _count(value.get("input_tokens")) is None:
        return None
    parts = [_count(value.get(f"{name}input_tokens")) for name in ("", "cache_read_", "cache_creation_")]
    total = sum(part or 0 for part in parts)
    return Usage(total, parts[1], written_tokens=parts[2]) if total else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _objects(value: Any) -> list[dict[str, Any]]:
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []
