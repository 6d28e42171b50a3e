"""What a chat request says of its own past: a hash chain over user and tool messages, and the replies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prefixpilot.prompts.chat import ChatRequest, digest
from prefixpilot.proxy.reply import message_text

Chain = bytes
CHAINED_ROLES: Final = ("user", "tool", "function")


@dataclass(frozen=True, slots=True)
class History:
    """The user messages of a request, each known by everything the client said up to it.

    Attributes:
        chains: index in ``messages`` of each user message, oldest first, and the chain up to and including it. A chain
            covers the user and tool messages as the client sent them, not the replies, which clients trim.
        replies: text of the assistant message right after a user message, by the user message's index.
        newest: index of the newest user message.
    """

    chains: Mapping[int, Chain]
    replies: Mapping[int, str]
    newest: int

    @classmethod
    def of(cls, chat: ChatRequest) -> History:
        """O(bytes of the messages)."""
        chains: dict[int, Chain] = {}
        replies: dict[int, str] = {}
        chain = b""
        for i, message in enumerate(chat.messages):
            if not isinstance(message, dict):
                continue
            role = message.get("role")
            if role in CHAINED_ROLES:
                chain = _link(chain, digest(message))
            if role == "user":
                chains[i] = chain
            elif role == "assistant" and i - 1 in chains:
                replies[i - 1] = message_text(message)
        return cls(chains, replies, chat.newest_user)


def _link(chain: Chain, message: bytes) -> Chain:
    return hashlib.blake2b(chain + message, digest_size=16).digest()
