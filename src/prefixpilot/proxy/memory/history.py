"""What a request says of its own past: a hash chain over user and tool messages, and the replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from prefixpilot.apis.base import Message, Prompt, chain, digest
from prefixpilot.apis.parts import unmarked
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Said, said_by

Chain = bytes


@dataclass(frozen=True, slots=True)
class History:
    """The user messages of a request, each known by everything the client said up to it.

    Indices are those of ``prompt.messages``.

    Attributes:
        chains: index of each user message, oldest first, and the chain up to and including it. A chain covers the user
            and tool messages as the client sent them, not the replies, which clients trim, and not the cache marks,
            which they move.
        messages: digest of each user message alone, by its index.
        replies: the assistant messages right after a user message, by the user message's index.
        newest: index of the newest user message.
    """

    chains: Mapping[int, Chain]
    messages: Mapping[int, bytes]
    replies: Mapping[int, Said]
    newest: int

    @classmethod
    def of(cls, prompt: Prompt) -> History:
        """O(bytes of the messages)."""
        chains: dict[int, Chain] = {}
        messages: dict[int, bytes] = {}
        replies: dict[int, Said] = {}
        link = b""
        for i, message in enumerate(prompt.messages):
            if message.role in ("user", "tool"):
                own = digest(_identity(prompt.api, message))
                link = chain(link, own)
                if message.role == "user":
                    chains[i], messages[i] = link, own
            elif message.role == "assistant" and i - 1 in chains:
                replies[i - 1] = said_by(takewhile(_is_assistant, prompt.messages[i:]))
        return cls(chains, messages, replies, prompt.newest_user)

    def reply_to(self, index: int) -> Said:
        """The reply to the user message at ``index``, as the client has it."""
        return self.replies.get(index, NOTHING_SAID)


def _is_assistant(message: Message) -> bool:
    return message.role == "assistant"


def _identity(api: str, message: Message) -> Any:
    """The message without cache marks, and in the longest of the forms in which an API lets it be written.

    A client of Responses has its first question as a string, and later as an item; one of Messages has a text as a list
    of one part while a cache mark stands on it, and as a string before and after.
    """
    value = message.value
    if api == "responses" and isinstance(value, str):
        value = {"role": "user", "content": value}
    value = unmarked(value)
    if api == "chat" or not isinstance(value, dict):
        return value
    if value.get("type") == "message":
        del value["type"]
    if isinstance(value.get("content"), str):
        kind = "input_text" if api == "responses" else "text"
        value["content"] = [{"type": kind, "text": value["content"]}]
    return value
