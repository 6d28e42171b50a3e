"""What a chat request says of its own past: a hash chain over user and tool messages, and the replies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prefixpilot.prompts.chat import ChatRequest, digest
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Said, said_in

Chain = bytes
CHAINED_ROLES: Final = ("user", "tool", "function")


@dataclass(frozen=True, slots=True)
class History:
    """The user messages of a request, each known by everything the client said up to it.

    Attributes:
        chains: index in ``messages`` of each user message, oldest first, and the chain up to and including it. A chain
            covers the user and tool messages as the client sent them, not the replies, which clients trim.
        messages: digest of each user message alone, by its index.
        replies: the assistant message right after a user message, by the user message's index.
        newest: index of the newest user message.
    """

    chains: Mapping[int, Chain]
    messages: Mapping[int, bytes]
    replies: Mapping[int, Said]
    newest: int

    @classmethod
    def of(cls, chat: ChatRequest) -> History:
        """O(bytes of the messages)."""
        chains: dict[int, Chain] = {}
        messages: dict[int, bytes] = {}
        replies: dict[int, Said] = {}
        chain = b""
        for i, message in enumerate(chat.messages):
            if not isinstance(message, dict):
                continue
            role = message.get("role")
            if role in CHAINED_ROLES:
                own = digest(message)
                chain = _link(chain, own)
                if role == "user":
                    chains[i], messages[i] = chain, own
            elif role == "assistant" and i - 1 in chains:
                replies[i - 1] = said_in(message)
        return cls(chains, messages, replies, chat.newest_user)

    def reply_to(self, index: int) -> Said:
        """The reply to the user message at ``index``, as the client has it."""
        return self.replies.get(index, NOTHING_SAID)


def _link(chain: Chain, message: bytes) -> Chain:
    return hashlib.blake2b(chain + message, digest_size=16).digest()
