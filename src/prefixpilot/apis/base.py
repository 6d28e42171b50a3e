"""What all APIs have in common: a prompt as the model reads it, and where each of its strings stands in the body.

An API reads a body into a :class:`Prompt`. Everything that changes a prompt names strings of it by their pointers and
gives each a form (:mod:`prefixpilot.pieces`); :mod:`prefixpilot.jsontext` writes them into the body, every other
character of which stays as the client wrote it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from prefixpilot.jsontext import Edit
from prefixpilot.jsontext import Pointer as Pointer

_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One string of a body that the model reads as text.

    Attributes:
        pointer: of the string in the body.
        text: its value, decoded.
        role: whose words these are; those of a tool result are ``tool``, also inside a user message (Anthropic).
        message: index in :attr:`Prompt.messages`.
        sealed: must not be changed: an assistant's words, thinking, whatever is signed, and text in a message with it.
        ends_prefix: the client set a cache mark on it (Anthropic's ``cache_control``): nothing moves across its end.
        call_id: of the tool call that it answers; ``None`` if it is no tool result.
    """

    pointer: Pointer
    text: str
    role: Role
    message: int
    sealed: bool = False
    ends_prefix: bool = False
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made earlier in this prompt: what a later result may be told apart by.

    Attributes:
        arguments: as the body has them: a JSON text (OpenAI), or the canonical JSON of an object (Anthropic).
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message, or one item that counts as one.

    Attributes:
        role: ``tool`` if it holds nothing but tool results.
        pointer: of it in the body; that of the string itself where a top-level string is the message (``system``,
            ``instructions``, ``prompt``, ``input``).
        value: the client's JSON of it.
        segments: its text, in the order in which the model reads it.
        calls: tool calls that it makes.
    """

    role: Role
    pointer: Pointer
    value: Any
    segments: tuple[Segment, ...]
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A body, read.

    Attributes:
        api: which API it is of.
        body: the client's JSON object.
        messages: in the order in which the model reads them: ``system`` and ``instructions`` first, wherever the body
            has them.
        newest_user: index in ``messages`` of the newest user message; -1 if there is none.
        in_tool_loop: an assistant message follows the newest user message, so that the engine has had that.
        unseen: earlier turns that the body does not hold (Responses with ``previous_response_id`` or
            ``conversation``): of the history nothing is known.
    """

    api: str
    body: Mapping[str, Any]
    messages: tuple[Message, ...]
    newest_user: int
    in_tool_loop: bool
    unseen: bool = False

    def segments(self) -> Iterator[Segment]:
        """All text, in the order in which the model reads it."""
        for message in self.messages:
            yield from message.segments

    @property
    def first_new(self) -> int:
        """Index of the first message behind the last assistant message: what no engine has had yet.

        O(messages): read it once.
        """
        answered = (i for i, message in enumerate(self.messages) if message.role == "assistant")
        return max(answered, default=-1) + 1


class Api(Protocol):
    """One API. Stateless; an instance is shared by all requests."""

    @property
    def name(self) -> str:
        """``chat``, ``completions``, ``responses`` or ``messages``."""
        ...

    @property
    def paths(self) -> tuple[bytes, ...]:
        """Request targets without query that it answers, the one to forward to first."""
        ...

    @property
    def members(self) -> tuple[str, ...]:
        """Of a body, those that hold the prompt."""
        ...

    def read(self, body: Mapping[str, Any]) -> Prompt | None:
        """The prompt of a body; ``None`` if it has none that can be read (token ids, unknown shapes): leave it alone.

        Never raises: the engine is the one to refuse a body.
        """
        ...

    def in_front(self, message: Message, text: str) -> Edit:
        """The edit that puts ``text`` and a blank line in front of a message's own words.

        Content given as parts gets one more text part.

        Raises:
            InvalidRequestError: the message takes no text; names its content.
        """
        ...


def digest(value: Any) -> bytes:
    """16 bytes over a JSON value, equal for equal values in every process (sorted keys, ASCII, blake2b)."""
    return hashlib.blake2b(_CANONICAL.encode(value).encode("ascii"), digest_size=16).digest()


def chain(parent: bytes, message: bytes) -> bytes:
    """The next link of a hash chain over messages, 16 bytes (blake2b): equal for equal histories, in every process."""
    return hashlib.blake2b(parent + message, digest_size=16).digest()


def prompt_of(api: str, body: Mapping[str, Any], messages: Sequence[Message], *, unseen: bool = False) -> Prompt:
    """A prompt from its messages in reading order; where the newest user message stands is found here."""
    roles = [message.role for message in messages]
    newest_user = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
    in_tool_loop = newest_user >= 0 and "assistant" in roles[newest_user:]
    return Prompt(api, body, tuple(messages), newest_user, in_tool_loop, unseen)
