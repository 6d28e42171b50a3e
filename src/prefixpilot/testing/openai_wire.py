"""Chat Completions and Completions as the simulated engine writes them. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from prefixpilot.testing import chat_wire
from prefixpilot.testing.chat_wire import DONE, BadChatError, Chat, event, usage
from prefixpilot.testing.wires import Said


class _OpenAi:
    """What both have in common: ids, frames, usage and errors."""

    prefix: str
    kind: str
    chunk_kind: str
    last: Mapping[str, Any]

    def error_body(self, message: str) -> bytes:
        return chat_wire.error_body(message)

    def error(self, error: Mapping[str, object]) -> Mapping[str, object]:
        return {"error": error}

    def end(self, said: Said) -> Iterator[bytes]:
        """The usage, without choices, only if the request asks for it."""
        yield self._chunk(said, self.last, self._finish(said))
        if said.chat.include_usage:
            yield event({**self._frame(said, self.chunk_kind), "choices": [], "usage": self._usage(said)})
        yield DONE

    def _chunk(self, said: Said, content: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, **content, "finish_reason": finish}
        return event({**self._frame(said, self.chunk_kind), "choices": [choice]})

    def _whole(self, said: Said, content: Mapping[str, Any]) -> bytes:
        choice = {"index": 0, **content, "finish_reason": self._finish(said)}
        answer = {**self._frame(said, self.kind), "choices": [choice], "usage": self._usage(said)}
        return json.dumps(answer).encode()

    def _finish(self, said: Said) -> str:
        return "tool_calls" if said.reply.calls else "length" if said.cut else "stop"

    def _usage(self, said: Said) -> dict[str, Any]:
        if said.counts is not None:
            return {**said.counts, "completion_tokens": len(said.pieces)}
        return usage(said.prompt_tokens, said.cached_tokens, len(said.pieces))

    def _frame(self, said: Said, kind: str) -> dict[str, Any]:
        return {"id": f"{self.prefix}-{said.number}", "object": kind, "created": 0, "model": said.chat.model}


class ChatWire(_OpenAi):
    """``POST /v1/chat/completions``."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    last: Mapping[str, Any] = MappingProxyType({"delta": {}})

    def read(self, body: Mapping[str, Any]) -> Chat:
        return chat_wire.read_chat(body)

    def whole(self, said: Said) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": said.text, **_thinking(said)}
        if said.reply.calls:
            message["tool_calls"] = _calls(said)
        return self._whole(said, {"message": message})

    def begin(self, said: Said) -> Iterator[bytes]:
        yield self._chunk(said, {"delta": {"role": "assistant", "content": ""}})
        if said.reply.thinking:
            yield self._chunk(said, {"delta": _thinking(said)})

    def piece(self, said: Said, text: str) -> bytes:
        return self._chunk(said, {"delta": {"content": text}})

    def end(self, said: Said) -> Iterator[bytes]:
        for index, call in enumerate(_calls(said)):
            yield self._chunk(said, {"delta": {"tool_calls": [{"index": index, **call}]}})
        yield from super().end(said)


class CompletionsWire(_OpenAi):
    """``POST /v1/completions``, of one prompt."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"
    last: Mapping[str, Any] = MappingProxyType({"text": "", "logprobs": None})

    def read(self, body: Mapping[str, Any]) -> Chat:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise BadChatError("prompt: must be a string")
        return chat_wire.chat_of(body, prompt, body.get("max_tokens"))

    def whole(self, said: Said) -> bytes:
        return self._whole(said, {"text": said.text, "logprobs": None})

    def begin(self, said: Said) -> Iterator[bytes]:
        return iter(())

    def piece(self, said: Said, text: str) -> bytes:
        return self._chunk(said, {"text": text, "logprobs": None})


def _thinking(said: Said) -> dict[str, str]:
    return {"reasoning_content": said.reply.thinking} if said.reply.thinking else {}


def _calls(said: Said) -> list[dict[str, Any]]:
    return [
        {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in said.reply.calls
    ]
