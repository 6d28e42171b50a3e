"""What the simulated engine says and is asked, whatever the API; each API has a module of its own that writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefixpilot.testing.chat_wire import Chat, event, tokenize


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A tool call of the engine's; ``arguments`` is the JSON text of an object."""

    call_id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """An answer that is more than a text: its thinking comes first, its tool calls last."""

    text: str = ""
    thinking: str = ""
    calls: tuple[SimulatedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What the engine answers to a request.

    Attributes:
        chat: the request.
        number: of the request, for ids.
        pieces: the tokens of the text, cut to the request's bound.
        cut: the bound cut it.
        prompt_tokens, cached_tokens: of the prompt; the cached ones are among them.
        counts: what ``usage`` says of the prompt, in the words of a provider; ``None`` for those of the API.
    """

    chat: Chat
    number: int
    reply: SimulatedReply
    pieces: tuple[str, ...]
    cut: bool
    prompt_tokens: int
    cached_tokens: int
    counts: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text as it goes out."""
        return "".join(self.pieces)


def say(
    chat: Chat,
    number: int,
    reply: str | SimulatedReply,
    prompt_tokens: int,
    cached_tokens: int,
    counts: Mapping[str, Any] | None = None,
) -> Said:
    """The answer ``reply``, cut to the request's ``max_tokens``."""
    reply = SimulatedReply(reply) if isinstance(reply, str) else reply
    pieces = tokenize(reply.text)
    kept = tuple(pieces[: chat.max_tokens])
    return Said(chat, number, reply, kept, len(kept) < len(pieces), prompt_tokens, cached_tokens, counts)


class Wire(Protocol):
    """One API as the engine speaks it. Pure."""

    def read(self, body: Mapping[str, Any]) -> Chat:
        """Raises BadChatError for a body that the engine refuses."""
        ...

    def whole(self, said: Said) -> bytes:
        """The body of a plain answer."""
        ...

    def begin(self, said: Said) -> Iterator[bytes]:
        """The events before the first token of the text."""
        ...

    def piece(self, said: Said, text: str) -> bytes:
        """The event of one token."""
        ...

    def end(self, said: Said) -> Iterator[bytes]:
        """The events behind the last token."""
        ...

    def error_body(self, message: str) -> bytes:
        """The body of a 400."""
        ...

    def error(self, error: Mapping[str, object]) -> Mapping[str, object]:
        """An error in the API's own shape: body of a 500, or data of an event."""
        ...


def named_event(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event, named after the ``type`` of its payload."""
    return f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def error_event(error: Mapping[str, Any]) -> bytes:
    """An error as an event, named if its API names events."""
    return named_event(error) if "type" in error else event(error)


def flat(content: Any) -> str:
    """All text in a content, however it is nested: what the simulated prompt holds of it."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        inner = (content.get(key) for key in ("text", "content", "output", "input", "arguments"))
        return "".join(flat(each) if isinstance(each, str | list) else _json(each) for each in inner)
    return "".join(map(flat, content)) if isinstance(content, Sequence) else ""


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value)
