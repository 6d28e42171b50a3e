"""The hash chain over the client's messages, by which an ordinary history is found again (invariant 4a). Pure.

It covers user and tool messages as the client sent them. Not covered:

- *system text*, so that a clock in it breaks nothing; its regions have keys of their own, behind the first link;
- *assistant messages*, which we never change and no annotation points to, and which clients trim, translate and strip
  of thinking from one turn to the next;
- *cache marks*, which clients move from turn to turn, and how a lone text is written: as a string or as a list with one
  part (which clients change to set a mark), as a whole ``input`` or as a message in it (Responses).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from prefixpilot.apis.base import Message, Prompt, chain

MARK: Final = "cache_control"


@dataclass(frozen=True, slots=True)
class Links:
    """What the messages of a prompt are known by.

    Attributes:
        digests: of each message alone.
        links: of each user and tool message, the chain up to and including it; ``None`` for others.
        first: the first link; empty if there is none.
        system: digest of all system text.
    """

    digests: tuple[bytes, ...]
    links: tuple[bytes | None, ...]
    first: bytes
    system: bytes

    @classmethod
    def of(cls, prompt: Prompt) -> Links:
        """O(bytes of the messages)."""
        digests = tuple(message_digest(message) for message in prompt.messages)
        links: list[bytes | None] = []
        link = b""
        for message, own in zip(prompt.messages, digests, strict=True):
            if message.role in ("user", "tool"):
                link = chain(link, own)
                links.append(link)
            else:
                links.append(None)
        first = next((known for known in links if known is not None), b"")
        roles = (message.role for message in prompt.messages)
        return cls(
            digests, tuple(links), first, joined(d for d, r in zip(digests, roles, strict=True) if r == "system")
        )

    def over(self, prompt: Prompt) -> Links:
        """Those of the same messages with other system text. O(bytes of that)."""
        pairs = zip(prompt.messages, self.digests, strict=True)
        digests = tuple(message_digest(m) if m.role == "system" else known for m, known in pairs)
        system = joined(d for m, d in zip(prompt.messages, digests, strict=True) if m.role == "system")
        return replace(self, digests=digests, system=system)


def message_digest(message: Message) -> bytes:
    """Digest of a message (16 bytes), whatever cache marks stand on it. O(bytes)."""
    value = message.value
    if isinstance(value, str):
        value = {"role": message.role, "content": value}
    elif isinstance(value, Mapping) and value.get("type") == "message":
        value = {key: member for key, member in value.items() if key != "type"}
    if isinstance(value, Mapping) and isinstance(value.get("content"), list) and len(value["content"]) == 1:
        value = _without_marks(value)
    content = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(content, str):
        return _digest(f"{message.role}\n{canonical(value)}")
    rest = {key: member for key, member in value.items() if key != "content"}
    return _digest(f"{message.role}\n{canonical(rest)}\n{content}")


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def canonical(value: Any) -> str:
    """A JSON value as one text: sorted keys, ASCII, no cache marks, a lone text part as a string.

    >>> canonical({"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]})
    '{"content":"a"}'
    """
    text = _dumped(value)
    if MARK in text or '"text"' in text:
        text = _dumped(_without_marks(value))
    return text


def joined(digests: Iterable[bytes]) -> bytes:
    """One digest of several, 16 bytes."""
    return blake2b(b"".join(digests), digest_size=16).digest()


def _dumped(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key: _without_marks(member) for key, member in value.items() if key != MARK}
        if "content" in kept:
            kept["content"] = _lone_text(kept["content"])
        return kept
    if isinstance(value, list):
        return [_without_marks(element) for element in value]
    return value


def _lone_text(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() == {"type", "text"} and part["type"] in ("text", "input_text"):
            return part["text"]
    return content
