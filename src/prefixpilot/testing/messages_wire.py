"""Anthropic's Messages API as the simulated engine speaks it. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from prefixpilot.testing import chat_wire
from prefixpilot.testing.chat_wire import BadChatError, Chat
from prefixpilot.testing.wires import Said, flat, named_event


class MessagesWire:
    """``POST /v1/messages``. Tool results must come first in a message, as the API demands."""

    def read(self, body: Mapping[str, Any]) -> Chat:
        given = body.get("messages")
        if not isinstance(given, list) or not given:
            raise BadChatError("messages: must be a non-empty list")
        messages = [{"role": "system", "content": flat(body.get("system"))}, *map(_message, given)]
        return chat_wire.chat_of(body, chat_wire.template(messages, body.get("tools")), body.get("max_tokens"))

    def whole(self, said: Said) -> bytes:
        return json.dumps({**_frame(said), "content": _blocks(said), "stop_reason": _reason(said)}).encode()

    def begin(self, said: Said) -> Iterator[bytes]:
        yield named_event({"type": "message_start", "message": {**_frame(said), "content": [], "stop_reason": None}})
        for index, block in enumerate(_blocks(said)[: _place_of_text(said)]):
            yield _started(index, {**block, "thinking": "", "signature": ""})
            yield _delta(index, {"type": "thinking_delta", "thinking": block["thinking"]})
            yield _delta(index, {"type": "signature_delta", "signature": block["signature"]})
            yield _stopped(index)
        yield _started(_place_of_text(said), {"type": "text", "text": ""})
        yield named_event({"type": "ping"})

    def piece(self, said: Said, text: str) -> bytes:
        return _delta(_place_of_text(said), {"type": "text_delta", "text": text})

    def end(self, said: Said) -> Iterator[bytes]:
        place = _place_of_text(said)
        yield _stopped(place)
        for index, call in enumerate(said.reply.calls, place + 1):
            yield _started(index, {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}})
            middle = len(call.arguments) // 2
            for piece in (call.arguments[:middle], call.arguments[middle:]):
                yield _delta(index, {"type": "input_json_delta", "partial_json": piece})
            yield _stopped(index)
        stop = {"stop_reason": _reason(said), "stop_sequence": None}
        yield named_event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": len(said.pieces)}})
        yield named_event({"type": "message_stop"})

    def error_body(self, message: str) -> bytes:
        return json.dumps(self.error({"type": "invalid_request_error", "message": message})).encode()

    def error(self, error: Mapping[str, object]) -> Mapping[str, object]:
        return {"type": "error", "error": error}


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
        raise BadChatError("messages: each must be an object with the role user or assistant")
    content = message.get("content")
    if not isinstance(content, str | list):
        raise BadChatError("messages: content must be a string or a list of parts")
    kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
    if "tool_result" in kinds[kinds.count("tool_result") :]:
        raise BadChatError("messages: tool results must come first in a message")
    return {"role": message["role"], "content": flat(content)}


def _blocks(said: Said) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.reply.thinking:
        blocks.append({"type": "thinking", "thinking": said.reply.thinking, "signature": f"signed-{said.number}"})
    blocks.append({"type": "text", "text": said.text})
    blocks += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)}
        for call in said.reply.calls
    ]
    return blocks


def _place_of_text(said: Said) -> int:
    return 1 if said.reply.thinking else 0


def _reason(said: Said) -> str:
    return "tool_use" if said.reply.calls else "max_tokens" if said.cut else "end_turn"


def _frame(said: Said) -> dict[str, Any]:
    """All that is not cached has been written to the cache, but for the last token, which is always computed."""
    written = max(said.prompt_tokens - said.cached_tokens - 1, 0)
    usage: dict[str, Any] = {
        "input_tokens": said.prompt_tokens - said.cached_tokens - written,
        "cache_read_input_tokens": said.cached_tokens,
        "cache_creation_input_tokens": written,
        "output_tokens": len(said.pieces),
    }
    if said.counts is not None:
        usage = {**said.counts, "output_tokens": len(said.pieces)}
    frame = {"id": f"msg-{said.number}", "type": "message", "role": "assistant", "model": said.chat.model}
    return {**frame, "stop_sequence": None, "usage": usage}


def _started(index: int, block: Mapping[str, Any]) -> bytes:
    return named_event({"type": "content_block_start", "index": index, "content_block": block})


def _delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return named_event({"type": "content_block_delta", "index": index, "delta": delta})


def _stopped(index: int) -> bytes:
    return named_event({"type": "content_block_stop", "index": index})
