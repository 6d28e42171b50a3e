"""OpenAI Chat Completions, as all engines serve it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prefixpilot.apis.base import Message, Pointer, Prompt, Role, ToolCall, prompt_of
from prefixpilot.apis.parts import is_marked, mark_last, objects, segments_of, string, text_in_front, texts_of
from prefixpilot.jsontext import Edit

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class Chat:
    """``POST /v1/chat/completions``. A message of an unknown role is opaque, and counts as a tool's."""

    name = "chat"
    paths = (b"/v1/chat/completions", b"/chat/completions")
    members = ("messages",)

    def read(self, body: Mapping[str, Any]) -> Prompt | None:
        """See :class:`~prefixpilot.apis.base.Api`."""
        given = body.get("messages")
        if not isinstance(given, list):
            return None
        return prompt_of(self.name, body, [_message(i, value) for i, value in enumerate(given)])

    def in_front(self, message: Message, text: str) -> Edit:
        """See :class:`~prefixpilot.apis.base.Api`."""
        return text_in_front(message.value.get("content"), (*message.pointer, "content"), text)


def _message(i: int, value: Any) -> Message:
    pointer: Pointer = ("messages", i)
    given = value.get("role") if isinstance(value, dict) else None
    if not isinstance(given, str) or given not in _ROLES:
        return Message("tool", pointer, value, ())
    role = _ROLES[given]
    texts = texts_of(value.get("content"), (*pointer, "content"))
    if is_marked(value):
        mark_last(texts)
    answered = value.get("tool_call_id" if given == "tool" else "name") if role == "tool" else None
    segments = segments_of(texts, i, role, call_id=string(answered) if role == "tool" else None)
    return Message(role, pointer, value, segments, tuple(_calls(value)) if role == "assistant" else ())


def _calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Of the legacy form, which has no ids, the function's name is the id: its result has no other."""
    for _, call in objects(message.get("tool_calls")):
        called = call.get("function") or call.get("custom")
        if isinstance(called, dict):
            arguments = called.get("arguments", called.get("input"))
            yield ToolCall(string(call.get("id")), string(called.get("name")), string(arguments))
    called = message.get("function_call")
    if isinstance(called, dict):
        name = string(called.get("name"))
        yield ToolCall(name, name, string(called.get("arguments")))
