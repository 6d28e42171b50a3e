"""What the simulated engine reads: prompt, tokens and settings of a request. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixpilot.prefix_cache import Segment

_PIECE = re.compile(r"\s*\S{1,6}|\s+")
DONE = b"data: [DONE]\n\n"


class BadChatError(ValueError):
    """A chat body that the engine refuses."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What the engine reads of a body.

    Attributes:
        prompt: the templated prompt.
        scope: what isolates caches though it stands in no prompt: model, adapter and salt.
        max_tokens: bound of the answer's tokens, or ``None``.
        salt: the request's ``cache_salt``; part of ``scope``.
    """

    prompt: str
    scope: str
    model: str
    stream: bool
    include_usage: bool
    max_tokens: int | None
    salt: str | None = None


def read_chat(body: Mapping[str, Any]) -> Chat:
    """Raises BadChatError where ``messages`` is no list of messages."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadChatError("messages: must be a non-empty list")
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return chat_of(body, template(messages, body.get("tools")), limit)


def chat_of(body: Mapping[str, Any], prompt: str, limit: Any) -> Chat:
    """A request of any API, whose prompt and bound have been read."""
    options = body.get("stream_options")
    return Chat(
        prompt=prompt,
        scope=json.dumps([body.get(key) for key in ("model", "lora", "cache_salt")]),
        model=str(body.get("model", "simulated")),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        max_tokens=limit if isinstance(limit, int) else None,
        salt=body["cache_salt"] if isinstance(body.get("cache_salt"), str) else None,
    )


def template(messages: Sequence[Any], tools: Any = None) -> str:
    """``<|role|>``, newline, text, newline for each message; tools (as JSON) first, the answer's head last."""
    head = "" if not tools else f"<|tools|>\n{json.dumps(tools)}\n"
    return head + "".join(_message(message) for message in messages) + "<|assistant|>\n"


def _message(message: Any) -> str:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadChatError("messages: each must be an object with a role")
    calls = message.get("tool_calls")
    return f"<|{message['role']}|>\n{_text(message.get('content'))}{json.dumps(calls) if calls else ''}\n"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in content)
    raise BadChatError("messages: content must be a string or a list of parts")


def tokenize(text: str) -> list[str]:
    """The stated tokenizer: a token is up to six characters and the whitespace before them; ``"".join`` gives ``text``.

    >>> tokenize("The conveyor belt")
    ['The', ' convey', 'or', ' belt']
    """
    return _PIECE.findall(text)


def segments(chat: Chat) -> list[Segment]:
    """The prompt token by token, for a prefix cache."""
    return [Segment((chat.scope, token), 1) for token in tokenize(chat.prompt)]


def usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The ``usage`` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error_body(message: str, kind: str = "invalid_request_error") -> bytes:
    """An error in the API's own shape."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()


def event(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"
