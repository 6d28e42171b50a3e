"""Which request of a log goes on from which: by what the messages say, as applications send their history again.

A history is a chain of digests over its messages from the first that is no system text on, so that another clock in the
system prompt does not hide it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from prefixpilot.apis.base import Message, Prompt

MAX_HISTORIES: Final = 200_000


class Place(NamedTuple):
    """Where a request stands in its conversation.

    Attributes:
        opener: number of the request that opened it; its own where it goes on from none.
        parent: of the request that it goes on from.
    """

    opener: int
    parent: int | None


class Histories:
    """The requests read so far, by their whole history; the one that came longest ago is forgotten first."""

    def __init__(self, limit: int = MAX_HISTORIES) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def place(self, number: int, prompt: Prompt) -> Place:
        """Where ``prompt`` stands; it can be gone on from then. O(length)."""
        links = list(_links(prompt))
        found = next((self._known[link] for link in reversed(links[:-1]) if link in self._known), None)
        place = Place(number, None) if found is None else Place(found[1], found[0])
        if links:
            self._known[links[-1]] = (number, place.opener)
            self._known.move_to_end(links[-1])
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        return place


def _links(prompt: Prompt) -> Iterator[bytes]:
    link = b""
    spoken = False
    for message in prompt.messages:
        spoken = spoken or message.role != "system"
        if spoken:
            link = hashlib.blake2b(link + _said(message), digest_size=16).digest()
            yield link


def _said(message: Message) -> bytes:
    texts = [message.role, *(segment.text for segment in message.segments)]
    texts += [f"{call.name}\0{call.arguments}" for call in message.calls]
    return "\0".join(texts).encode("utf-8", "surrogatepass")
