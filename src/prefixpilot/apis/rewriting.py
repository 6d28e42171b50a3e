"""A prompt as it is read once texts of its body are others, or its tools stand in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefixpilot.apis.base import Message, Pointer, Prompt


def rewritten(prompt: Prompt, texts: Mapping[Pointer, str], tools: Sequence[int] | None = None) -> Prompt:
    """The prompt with other texts in it. What does not change is shared. O(containers on the way to a text).

    Args:
        texts: of strings of the body, by pointer.
        tools: the old index of the tool at each place; ``None`` leaves them.
    """
    if not texts and tools is None:
        return prompt
    body: Any = prompt.body
    for pointer, text in texts.items():
        body = _with(body, pointer, text)
    if tools is not None:
        body = {**body, "tools": [body["tools"][i] for i in tools]}
    return replace(prompt, body=body, messages=tuple(_message(message, texts) for message in prompt.messages))


def _message(message: Message, texts: Mapping[Pointer, str]) -> Message:
    changed = {segment.pointer for segment in message.segments} & texts.keys()
    if not changed:
        return message
    value = message.value
    segments = []
    for segment in message.segments:
        if segment.pointer in changed:
            segment = replace(segment, text=texts[segment.pointer])
            value = _with(value, segment.pointer[len(message.pointer) :], segment.text)
        segments.append(segment)
    return replace(message, value=value, segments=tuple(segments))


def _with(value: Any, pointer: Pointer, text: str) -> Any:
    """A copy of ``value`` with a text in it; what is not on the way is shared."""
    if not pointer:
        return text
    copied = dict(value) if isinstance(value, Mapping) else list(value)
    copied[pointer[0]] = _with(value[pointer[0]], pointer[1:], text)  # type: ignore[index]
    return copied
