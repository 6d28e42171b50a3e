"""The contract of routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from prefixpilot.errors import InvalidRequestError
from prefixpilot.prefix_cache import Segment

Reason = Literal["prefix", "load", "turn", "hash"]
"""``prefix``: its cache holds the longest part of the prompt that is worth the wait. ``load``: it is the least busy.
``turn``: it is next. ``hash``: a hash of the request says so."""


class Load(NamedTuple):
    """How busy a replica is now.

    Attributes:
        in_flight: requests under way there.
        prefill_tokens: that these still have to compute before a new one's turn comes, as far as the caller knows.
        available: it takes requests; one that does not is never chosen.
    """

    in_flight: int = 0
    prefill_tokens: int = 0
    available: bool = True


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request as routing sees it.

    Attributes:
        prompt: as the engine will get it, ordered already.
        conversation: whose turn it is; ``None`` stands alone.
    """

    prompt: Sequence[Segment]
    conversation: str | None = None

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return sum(segment.tokens for segment in self.prompt)


class Route(NamedTuple):
    """Where a request goes.

    Attributes:
        replica: its index.
        cached_tokens: that its cache is believed to have of the prompt; 0 where the policy keeps no picture.
        reason: see :data:`Reason`.
    """

    replica: int
    cached_tokens: int
    reason: Reason


class Router(Protocol):
    """A policy. Deterministic; not for several threads at once.

    Replicas have indices from 0; how many there are is given with each call, and may grow.
    """

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """Choose a replica. Changes nothing but whose turn it is.

        Raises:
            InvalidRequestError: no replica is available.
        """
        ...

    def sent(self, request: RoutedRequest, replica: int) -> None:
        """The replica has the prompt now: its cache holds it."""
        ...

    def lost(self, replica: int) -> None:
        """The replica began anew: its cache is empty."""
        ...


def available(loads: Sequence[Load]) -> list[int]:
    """Indices of the replicas that take requests; at least one.

    Raises:
        InvalidRequestError: none does.
    """
    found = [index for index, load in enumerate(loads) if load.available]
    if not found:
        raise InvalidRequestError("loads", "has no replica that is available", "wait for one, or start one")
    return found
