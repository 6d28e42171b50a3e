"""Calls to an engine through the user's own ``openai`` client. The only file of this room that imports ``openai``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import signature
from types import MethodType
from typing import Any, Final, NamedTuple, TypeAlias

from prefixpilot.errors import EngineError, InvalidRequestError, MissingExtraError
from prefixpilot.rag.answers import Usage, usage_of
from prefixpilot.rag.tool_results import ToolCall

try:
    import openai
except ImportError:
    raise MissingExtraError("openai", 'pip install "prefixpilot[openai]"') from None

Client: TypeAlias = openai.OpenAI
AsyncClient: TypeAlias = openai.AsyncOpenAI

CALL_ERRORS: Final = (openai.OpenAIError, EngineError)
"""What a call raises when the engine, or the way to it, failed."""

_MAX_ID: Final = 200
_OURS: Final = ("messages", "stream")
_BESIDE: Final = ("extra_headers", "extra_query", "timeout")


class Reply(NamedTuple):
    """What the engine answered.

    Attributes:
        message: as it is sent again in later turns: role, content, and tool calls if there are any.
        calls: the tool calls, read.
        response: the whole completion, as data; empty for a stream.
    """

    message: Mapping[str, Any]
    usage: Usage
    calls: tuple[ToolCall, ...] = ()
    response: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """The content; empty if there is none."""
        return self.message["content"] or ""


def arguments_of(client: Client | AsyncClient) -> frozenset[str] | None:
    """Arguments that the client's ``chat.completions.create`` takes; ``None`` where it is not the SDK's own, since one
    that was wrapped may take more."""
    create = client.chat.completions.create
    if type(create) is not MethodType or not create.__module__.startswith("openai."):
        return None
    return frozenset(signature(create).parameters)


def check_options(
    options: Mapping[str, Any], arguments: frozenset[str] | None = None, settings: Iterable[str] = ()
) -> None:
    """Raise ``InvalidRequestError`` for options that are not the caller's to set, and for those that no call takes.

    Args:
        arguments: what :func:`arguments_of` says.
        settings: that the caller could have meant.
    """
    for name in options:
        if name in _OURS:
            raise InvalidRequestError(name, "is set by the session itself", "leave it out; to stream, call stream()")
        if arguments is not None and name not in arguments:
            near = get_close_matches(name, [*settings, *sorted(arguments - {*_OURS})], 1)
            meant = f"did you mean {near[0]}? Else " if near else ""
            remedy = f"{meant}what the engine knows and the client does not goes into extra_body"
            raise InvalidRequestError(name, "is no setting, and no argument of chat.completions.create", remedy)


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the body that is sent: options of the client are not, and ``extra_body`` is part of it."""
    fields = {name: value for name, value in options.items() if name not in (*_BESIDE, "extra_body")}
    extra = options.get("extra_body")
    return {**fields, **extra} if isinstance(extra, Mapping) else fields


def call_of(options: Mapping[str, Any], messages: Any, request_id: str) -> dict[str, Any]:
    """Arguments of ``chat.completions.create``. The request's id goes along, unless the caller has set one or no header
    can carry it."""
    call = {**options, "messages": list(messages)}
    if request_id.isascii() and request_id.isprintable() and len(request_id) <= _MAX_ID:
        call["extra_headers"] = {"X-Request-Id": request_id, **(options.get("extra_headers") or {})}
    return call


def complete(client: Client, call: Mapping[str, Any]) -> Reply:
    """One call. Raises ``openai.OpenAIError`` as the client does, and ``EngineError`` for an answer without content."""
    return reply_of(_read(client.chat.completions.create(**call)))


async def acomplete(client: AsyncClient, call: Mapping[str, Any]) -> Reply:
    """As :func:`complete`."""
    return reply_of(_read(await client.chat.completions.create(**call)))


def _read(answer: Any) -> Mapping[str, Any]:
    """An answer as JSON. The client gives back the text of one that is none: a gateway's page, a URL without /v1."""
    if not hasattr(answer, "to_dict"):
        raise EngineError(f"the answer is no JSON ({str(answer)[:80]!r}): is the base URL the engine's, with /v1?")
    read: Mapping[str, Any] = answer.to_dict()
    return read


def _text(content: Any) -> str | None:
    """Content as a string: some gateways send parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else None


def reply_of(response: Mapping[str, Any]) -> Reply:
    """A completion, read. Raises ``EngineError`` if it holds no message."""
    choices = response.get("choices")
    message = choices[0].get("message") if isinstance(choices, list) and choices else None
    if not isinstance(message, Mapping):
        raise EngineError("the engine's answer holds no message")
    kept: dict[str, Any] = {"role": "assistant", "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    elif kept["content"] is None:
        kept["content"] = ""  # a refusal, or cut off at once: null is no content that can be sent again
    return Reply(kept, usage_of(response.get("usage")), tuple(map(_call, kept.get("tool_calls", ()))), response)


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    return ToolCall(str(call.get("id")), str(function.get("name")), str(function.get("arguments") or ""))


@dataclass(slots=True)
class Heard:
    """What has come of a stream."""

    pieces: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    ended: bool = False

    def hear(self, chunk: Any) -> str:
        """Take one chunk in; returns its text."""
        if chunk.usage is not None:
            self.usage = usage_of(chunk.usage.to_dict())
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        if choice.delta is not None and choice.delta.tool_calls:
            raise EngineError("the model called a tool in a stream; use ask(..., functions=...)")
        self.ended = self.ended or choice.finish_reason is not None
        text = (choice.delta.content if choice.delta is not None else None) or ""
        if text:
            self.pieces.append(text)
        return text

    def reply(self) -> Reply:
        """The whole of it. Raises ``EngineError`` if the stream broke off."""
        if not self.ended:
            raise EngineError("the stream ended before the answer did")
        return Reply({"role": "assistant", "content": "".join(self.pieces)}, self.usage)


def _streaming(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}, **call, "stream": True}


def stream(client: Client, call: Mapping[str, Any], heard: Heard) -> Generator[str, None, None]:
    """The pieces of an answer, as they come. The connection is closed at the end, or when the iterator is."""
    with client.chat.completions.create(**_streaming(call)) as chunks:
        for chunk in chunks:
            text = heard.hear(chunk)
            if text:
                yield text


async def astream(client: AsyncClient, call: Mapping[str, Any], heard: Heard) -> AsyncGenerator[str, None]:
    """As :func:`stream`."""
    async with await client.chat.completions.create(**_streaming(call)) as chunks:
        async for chunk in chunks:
            text = heard.hear(chunk)
            if text:
                yield text
