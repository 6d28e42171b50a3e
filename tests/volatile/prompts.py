"""Prompts to test with: system texts, turns, tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefixpilot.apis.base import Message, Pointer, Prompt, Role, Segment


def chat(*turns: tuple[Role, str | Sequence[str]], body: Mapping[str, Any] | None = None, api: str = "chat") -> Prompt:
    """A prompt of messages, each of a role and one text, or several parts."""
    messages = tuple(_message(i, role, content) for i, (role, content) in enumerate(turns))
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    newest = users[-1] if users else -1
    answered = any(message.role == "assistant" for message in messages[newest + 1 :]) if users else False
    return Prompt(api, dict(body or {"model": "m"}), messages, newest, answered)


def _message(index: int, role: Role, content: str | Sequence[str]) -> Message:
    pointer = ("messages", index)
    if isinstance(content, str):
        value: Any = content
        places: list[tuple[Pointer, str]] = [((*pointer, "content"), content)]
    else:
        value = [{"type": "text", "text": text} for text in content]
        places = [((*pointer, "content", i, "text"), text) for i, text in enumerate(content)]
    sealed = role == "assistant"
    segments = tuple(Segment(place, text, role, index, sealed=sealed) for place, text in places)
    return Message(role, pointer, {"role": role, "content": value}, segments)
