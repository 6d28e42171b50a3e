"""OpenAI Completions: one string, without messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixpilot.apis.base import Message, Prompt, prompt_of
from prefixpilot.apis.parts import segments_of, text_in_front, texts_of
from prefixpilot.jsontext import Edit


class Completions:
    """``POST /v1/completions`` with one prompt as text; token ids and lists of prompts are left alone.

    ``/completions`` is not one of its paths: llama.cpp answers there in a shape of its own.
    """

    name = "completions"
    paths = (b"/v1/completions",)
    members = ("prompt",)

    def read(self, body: Mapping[str, Any]) -> Prompt | None:
        """See :class:`~prefixpilot.apis.base.Api`."""
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            return None
        segments = segments_of(texts_of(prompt, ("prompt",)), 0, "user")
        return prompt_of(self.name, body, [Message("user", ("prompt",), prompt, segments)])

    def in_front(self, message: Message, text: str) -> Edit:
        """See :class:`~prefixpilot.apis.base.Api`."""
        return text_in_front(message.value, message.pointer, text)
