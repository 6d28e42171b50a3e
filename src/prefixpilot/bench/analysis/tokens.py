"""A prompt as the segments of a cache model: pages of its text, in the order in which the model reads it.

Lengths are estimates, one token per four bytes (:func:`prefixpilot.blocks.estimate_tokens`): a log names no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from prefixpilot.apis.base import Message, Prompt, digest
from prefixpilot.blocks import estimate_tokens
from prefixpilot.prefix_cache import Segment

PAGE_CHARS: Final = 128
PAGE_TOKENS: Final = PAGE_CHARS // 4
MESSAGE_TOKENS: Final = 4
"""What a chat template puts around a message."""
PART_TOKENS: Final = 256
"""An image or another part that is no text."""


def segments(prompt: Prompt) -> list[Segment]:
    """The prompt for a :class:`~prefixpilot.prefix_cache.PrefixCache`: equal beginnings, equal segments. O(length)."""
    return list(_segments(prompt))


def text_tokens(text: str) -> int:
    """Length of a text as :func:`segments` counts it, in tokens."""
    return sum(segment.tokens for segment in _pages(text))


def _segments(prompt: Prompt) -> Iterator[Segment]:
    yield Segment(("model", str(prompt.body.get("model"))), 1)
    tools = prompt.body.get("tools")
    if tools:
        yield from _pages(json.dumps(tools, ensure_ascii=False, separators=(",", ":")))
    for message in prompt.messages:
        yield Segment(("role", message.role), MESSAGE_TOKENS)
        for segment in message.segments:
            yield from _pages(segment.text)
        for call in message.calls:
            yield from _pages(f"{call.name}({call.arguments})")
        for part in _other_parts(message):
            yield Segment(("part", digest(part)), PART_TOKENS)


def _pages(text: str) -> Iterator[Segment]:
    if text.isascii():
        whole = len(text) // PAGE_CHARS * PAGE_CHARS
        for at in range(0, whole, PAGE_CHARS):
            yield Segment(text[at : at + PAGE_CHARS], PAGE_TOKENS)
        if whole < len(text):
            yield Segment(text[whole:], -(-(len(text) - whole) // 4))
        return
    for at in range(0, len(text), PAGE_CHARS):
        page = text[at : at + PAGE_CHARS]
        yield Segment(page, estimate_tokens(page))


def _other_parts(message: Message) -> Iterator[Any]:
    """Parts of a message that are no text: two images are two prompts."""
    content = message.value.get("content") if isinstance(message.value, dict) else None
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and "image" in str(part.get("type")) + " ".join(map(str, part)):
                yield part
