"""The Responses API as the simulated engine speaks it. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from prefixpilot.testing import chat_wire
from prefixpilot.testing.chat_wire import BadChatError, Chat
from prefixpilot.testing.wires import Said, flat, named_event


class ResponsesWire:
    """``POST /v1/responses``, without state: what a response id names is unknown."""

    def read(self, body: Mapping[str, Any]) -> Chat:
        given = body.get("input")
        if not isinstance(given, str | list):
            raise BadChatError("input: must be a string or a list")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        messages = [{"role": "system", "content": flat(body.get("instructions"))}, *map(_message, items)]
        prompt = chat_wire.template(messages, body.get("tools"))
        return chat_wire.chat_of(body, prompt, body.get("max_output_tokens"))

    def whole(self, said: Said) -> bytes:
        return json.dumps(_response(said, "incomplete" if said.cut else "completed", _items(said))).encode()

    def begin(self, said: Said) -> Iterator[bytes]:
        """Up to the part of the message that the tokens are added to; what stands before it is complete."""
        yield _event(said, "response.created", response=_response(said, "in_progress", []))
        *before, (place, message) = enumerate(_items(said)[: _place_of_text(said) + 1])
        for index, item in before:
            yield from _complete(said, index, item)
        empty = {**message, "content": [], "status": "in_progress"}
        yield _event(said, "response.output_item.added", output_index=place, item=empty)
        yield _event(said, "response.content_part.added", **_of_text(said), part=_part(""))

    def piece(self, said: Said, text: str) -> bytes:
        return _event(said, "response.output_text.delta", **_of_text(said), delta=text, logprobs=[])

    def end(self, said: Said) -> Iterator[bytes]:
        place, items = _place_of_text(said), _items(said)
        yield _event(said, "response.output_text.done", **_of_text(said), text=said.text, logprobs=[])
        yield _event(said, "response.content_part.done", **_of_text(said), part=_part(said.text))
        yield _event(said, "response.output_item.done", output_index=place, item=items[place])
        for index, item in enumerate(items[place + 1 :], place + 1):
            yield from _complete(said, index, item)
        status = "incomplete" if said.cut else "completed"
        yield _event(said, f"response.{status}", response=_response(said, status, items))

    def error_body(self, message: str) -> bytes:
        return chat_wire.error_body(message)

    def error(self, error: Mapping[str, object]) -> Mapping[str, object]:
        return {"type": "error", "sequence_number": 0, **error, "error": error}


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise BadChatError("input: each must be an object")
    kind = str(item.get("type", "message"))
    role = "tool" if kind.endswith("_output") else item.get("role", "assistant")
    return {"role": role, "content": flat(item)}


def _items(said: Said) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.reply.thinking:
        summary = [{"type": "summary_text", "text": said.reply.thinking}]
        items.append({"type": "reasoning", "id": f"rs-{said.number}", "summary": summary})
    content = [_part(said.text)]
    status = "incomplete" if said.cut else "completed"
    message = {"type": "message", "id": f"msg-{said.number}", "role": "assistant", "status": status}
    items.append({**message, "content": content})
    for call in said.reply.calls:
        called = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc-{call.call_id}", "status": "completed", **called})
    return items


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _place_of_text(said: Said) -> int:
    return 1 if said.reply.thinking else 0


def _of_text(said: Said) -> dict[str, Any]:
    return {"item_id": f"msg-{said.number}", "output_index": _place_of_text(said), "content_index": 0}


def _complete(said: Said, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    """An item that comes all at once; the arguments of a call as one piece."""
    call = item["type"] == "function_call"
    added = {**item, "arguments": "", "status": "in_progress"} if call else item
    yield _event(said, "response.output_item.added", output_index=index, item=added)
    if call:
        of_item = {"item_id": item["id"], "output_index": index}
        yield _event(said, "response.function_call_arguments.delta", **of_item, delta=item["arguments"])
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield _event(said, "response.function_call_arguments.done", **of_item, **done)
    yield _event(said, "response.output_item.done", output_index=index, item=item)


def _event(said: Said, kind: str, **more: Any) -> bytes:
    return named_event({"type": kind, "sequence_number": 0, **more})


def _response(said: Said, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = None
    if status != "in_progress":
        usage = {
            "input_tokens": said.prompt_tokens,
            "input_tokens_details": {"cached_tokens": said.cached_tokens},
            "output_tokens": len(said.pieces),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said.prompt_tokens + len(said.pieces),
            **(said.counts or {}),
        }
    return {
        "id": f"resp-{said.number}",
        "object": "response",
        "created_at": 0,
        "model": said.chat.model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }
