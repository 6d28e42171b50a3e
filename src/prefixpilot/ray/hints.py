"""What the request router is told of a request: whose turn it is, and what it carries, as digests. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from prefixpilot.apis import API_OF_PATH
from prefixpilot.blocks.identity import text_digest
from prefixpilot.errors import InvalidInputError
from prefixpilot.prefix_cache import Segment
from prefixpilot.prompts.blocks import FIELD, read_blocks
from prefixpilot.proxy.wire import headers as h
from prefixpilot.routing import RoutedRequest

MAX_SEGMENTS: Final = 512
"""Of one request; what comes behind them does not count."""
BYTES_PER_TOKEN: Final = 4


class Hint(NamedTuple):
    """Travels with a request from the door to the router. Small, and without a word of the prompt.

    Attributes:
        conversation: the id that the client gave; ``None`` if it gave none.
        segments: digest and estimated tokens of each message and of each context block, 0 or more.
    """

    conversation: str | None = None
    segments: tuple[tuple[bytes, int], ...] = ()

    @property
    def routed(self) -> RoutedRequest:
        """As policies take it."""
        return RoutedRequest([Segment(key, tokens) for key, tokens in self.segments], self.conversation)


def hint_of(path: bytes, headers: h.RawHeaders, body: bytes) -> Hint:
    """Read what can be read; a body that is no request to a model has no segments. Never raises. O(body).

    Args:
        path: of the request target, without the query.
        headers: raw, names in lower case.
    """
    conversation = h.get(headers, h.CONVERSATION)
    api = API_OF_PATH.get(path)
    parsed = None if api is None else _object(body)
    if api is None or parsed is None:
        return Hint(conversation)
    prompt = api.read(parsed)
    texts = () if prompt is None else (segment.text for segment in prompt.segments())
    found = dict.fromkeys((*_blocks(parsed), *((_digest(text), _tokens(text)) for text in texts)))
    return Hint(conversation, tuple(found)[:MAX_SEGMENTS])


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Of blocks that cannot be used nothing is said here: the proxy refuses them."""
    try:
        blocks = read_blocks(body[FIELD]) if FIELD in body else ()
    except InvalidInputError:
        return
    for block in blocks:
        yield text_digest(block), _tokens(block.text or "")


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _tokens(text: str) -> int:
    return max(1, len(text) // BYTES_PER_TOKEN)
