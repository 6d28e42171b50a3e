"""Anthropic Messages: a system text beside the messages, and tool results inside user messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from prefixpilot.apis.base import Message, Pointer, Prompt, Role, Segment, ToolCall, prompt_of
from prefixpilot.apis.parts import Text, canonical, is_marked, objects, segments_of, string, text_in_front, texts_of
from prefixpilot.jsontext import Edit

_ROLES: Final[Mapping[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_RESULT: Final = "tool_result"


class Messages:
    """``POST /v1/messages``. Documents, search results, images and thinking have no text that could be changed."""

    name = "messages"
    paths = (b"/v1/messages", b"/messages")
    members = ("messages", "system")

    def read(self, body: Mapping[str, Any]) -> Prompt | None:
        """See :class:`~prefixpilot.apis.base.Api`."""
        given = body.get("messages")
        if not isinstance(given, list):
            return None
        messages: list[Message] = []
        system = body.get("system")
        if isinstance(system, str | list):
            texts = texts_of(system, ("system",))
            messages.append(Message("system", ("system",), system, segments_of(texts, 0, "system")))
        first = len(messages)
        messages += [_message(i, value, first + i) for i, value in enumerate(given)]
        return prompt_of(self.name, body, messages)

    def in_front(self, message: Message, text: str) -> Edit:
        """See :class:`~prefixpilot.apis.base.Api`. Tool results stay first, as the API demands."""
        content = message.value.get("content")
        return text_in_front(content, (*message.pointer, "content"), text, at=results_end(content))


def results_end(content: Any) -> int:
    """Index of the first part of a message behind all tool results in it."""
    return max((i + 1 for i, part in objects(content) if part.get("type") == _RESULT), default=0)


def _message(i: int, value: Any, message: int) -> Message:
    pointer: Pointer = ("messages", i)
    role = _ROLES.get(string(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        return Message("tool", pointer, value, ())
    content, at = value.get("content"), (*pointer, "content")
    if role == "user" and isinstance(content, list):
        own: Role = "tool" if _only_results(content) else "user"
        return Message(own, pointer, value, tuple(_user_segments(content, at, message)))
    calls = tuple(_call(part) for _, part in objects(content) if part.get("type") == "tool_use")
    segments = segments_of(texts_of(content, at), message, role)
    return Message(role, pointer, value, segments, calls if role == "assistant" else ())


def _only_results(content: list[Any]) -> bool:
    return bool(content) and all(isinstance(part, dict) and part.get("type") == _RESULT for part in content)


def _user_segments(content: list[Any], at: Pointer, message: int) -> list[Segment]:
    """The texts of all parts in order, each with its own role."""
    segments: list[Segment] = []
    for i, part in objects(content):
        if part.get("type") == _RESULT:
            texts = texts_of(part.get("content"), (*at, i, "content"))
            segments += segments_of(texts, message, "tool", call_id=string(part.get("tool_use_id")))
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            segments += segments_of([Text((*at, i, "text"), part["text"])], message, "user")
        if is_marked(part) and segments:
            segments[-1] = replace(segments[-1], ends_prefix=True)
    return segments


def _call(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(string(part.get("id")), string(part.get("name")), canonical(part.get("input")))
