"""A request to a model as routing sees it: its prompt in reading order, cut into pages of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from prefixpilot.apis import RESPONSES
from prefixpilot.prefix_cache import Segment
from prefixpilot.proxy.cache.watch import facts_of, read_body
from prefixpilot.proxy.call import Call, credential_of, is_encoded, unfold
from prefixpilot.proxy.fleet.responses import previous_of
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.slots import prompt_text
from prefixpilot.proxy.wire import headers as h
from prefixpilot.routing import RoutedRequest

PAGE_BYTES: Final = 256
"""Text that is compared as a whole. An engine's page of 16 tokens is finer; what differs is less than one of ours."""
BYTES_A_TOKEN: Final = 4


class Asked(NamedTuple):
    """What routing has to know of a request.

    Attributes:
        routed: its prompt.
        previous: the id of the response that it goes on from; ``None``: of none.
    """

    routed: RoutedRequest
    previous: str | None


def asked(call: Call, forward: Forward, max_bytes: int) -> Asked:
    """A request as it is about to be sent. O(bytes). Model and salt come first: caches of others are of no use.

    Args:
        max_bytes: that a compressed body may have.
    """
    body = unfold(call, max_bytes) if not forward.touched and is_encoded(call) else forward.body
    document = read_body(body)
    prompt = call.api.read(document) if document else None
    text = body if prompt is None else prompt_text(prompt)
    routed = RoutedRequest((_selector(document), *_pages(text)), _conversation(call))
    return Asked(routed, previous_of(document) if call.api is RESPONSES else None)


def _selector(document: Mapping[str, Any]) -> Segment:
    return Segment(tuple(facts_of(document)), 1)


def _pages(text: bytes) -> Iterator[Segment]:
    for start in range(0, len(text), PAGE_BYTES):
        page = text[start : start + PAGE_BYTES]
        yield Segment(page, -(-len(page) // BYTES_A_TOKEN))


def _conversation(call: Call) -> str | None:
    """Two clients may give their conversations one name."""
    name = h.get(call.headers, h.CONVERSATION)
    return None if name is None else "\0".join((call.tenant, credential_of(call.headers), name))
