"""Policies that know nothing of caches, to compare with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from prefixpilot.errors import ConfigError
from prefixpilot.routing.base import Load, Route, RoutedRequest, available


class _Blind:
    """Learns nothing."""

    def sent(self, request: RoutedRequest, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`."""

    def lost(self, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`."""


class RoundRobin(_Blind):
    """One after the other. O(replicas)."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        open_now = available(loads)
        replica = next((index for index in open_now if index >= self._next), open_now[0])
        self._next = (replica + 1) % len(loads)
        return Route(replica, 0, "turn")


class LeastLoaded(_Blind):
    """Fewest tokens to compute, then fewest requests, then the lowest index. O(replicas)."""

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        least = min(available(loads), key=lambda index: (loads[index].prefill_tokens, loads[index].in_flight, index))
        return Route(least, 0, "load")


class ConsistentHash(_Blind):
    """By conversation, on a ring: where replicas come and go, few conversations move. O(replicas).

    A request without a conversation goes by its whole prompt.
    """

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        key = request.conversation or _key(request, len(request.prompt))
        return Route(rendezvous(key, available(loads)), 0, "hash")


class PrefixHash(_Blind):
    """By the first tokens of the prompt: what begins alike goes to one replica, however busy. O(replicas).

    Args:
        tokens: how many count, whole segments.
    """

    def __init__(self, tokens: int = 256) -> None:
        if type(tokens) is not int or tokens < 1:
            raise ConfigError("tokens", f"is {tokens!r}", "use an int of 1 or more")
        self._tokens = tokens

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        count = reached = 0
        for segment in request.prompt:
            if reached >= self._tokens:
                break
            reached += segment.tokens
            count += 1
        return Route(rendezvous(_key(request, count), available(loads)), 0, "hash")


def _key(request: RoutedRequest, segments: int) -> str:
    return "\0".join(repr(segment) for segment in request.prompt[:segments])


def rendezvous(key: str, replicas: Sequence[int]) -> int:
    """Highest random weight: the replica whose hash with the key is largest. Few keys move where one comes or goes."""
    return max(replicas, key=lambda index: hashlib.blake2b(f"{index}\0{key}".encode(), digest_size=8).digest())
