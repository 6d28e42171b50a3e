"""Routing to proxies, before anything is ordered: to the one that has seen the most of what a request carries.

What a request carries are its documents and messages, in whatever order: the proxy behind orders them itself, by what
it has sent before. So what counts is how much of the request a replica has seen, not how long a prefix. A conversation
stays with its replica, which alone has its earlier turns, unless they share a store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

from prefixpilot.errors import ConfigError
from prefixpilot.routing.base import Load, Route, RoutedRequest, available
from prefixpilot.routing.baselines import rendezvous

MAX_SEGMENTS: Final = 100_000
MAX_CONVERSATIONS: Final = 100_000


class SharedBlocks:
    """The replica that has seen the most tokens of the request, unless it is much busier. O(replicas x segments).

    A replica costs the tokens that it has not seen, those of the requests that it has under way beyond a share more
    than the idlest has, and a share of what it got beyond the average. Of equal ones the conversation's hash decides,
    so that routers that know nothing of each other agree; without one, the lowest index.

    Args:
        cache_tokens: what a replica may keep in its engines' caches; older segments count no more. ``None``: no bound
            but ``max_segments``.
        slack: by which share of the idlest replica's requests another may have more without a cost.
        balance: how much of the tokens that a replica got beyond the average counts as if it still had to.
        max_segments: remembered of each replica.
        max_conversations: remembered in all, the most recently used.
    """

    def __init__(
        self,
        cache_tokens: int | None = None,
        *,
        slack: float = 0.25,
        balance: float = 0.05,
        max_segments: int = MAX_SEGMENTS,
        max_conversations: int = MAX_CONVERSATIONS,
    ) -> None:
        for name, share in (("slack", slack), ("balance", balance)):
            if not share >= 0:
                raise ConfigError(name, f"is {share!r}", "use a number of 0 or more")
        for name, bound in (("max_segments", max_segments), ("max_conversations", max_conversations)):
            if type(bound) is not int or bound < 1:
                raise ConfigError(name, f"is {bound!r}", "use an int of 1 or more")
        self._slack, self._balance = slack, balance
        self._bounds = cache_tokens, max_segments
        self._seen: list[_Seen] = []
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._max_conversations = max_conversations

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        self._grow(len(loads))
        open_now = available(loads)
        home = None if request.conversation is None else self._homes.get(request.conversation)
        if home is not None and home in open_now:
            return Route(home, self._seen[home].of(request), "prefix")
        seen = {index: self._seen[index].of(request) for index in open_now}
        idlest = min(loads[index].in_flight for index in open_now)
        mean = sum(self._seen[index].got for index in open_now) / len(open_now)
        total = request.tokens
        first = open_now[0] if request.conversation is None else rendezvous(request.conversation, open_now)

        def cost(index: int) -> tuple[float, bool, int]:
            busier = max(0.0, loads[index].in_flight - (1 + self._slack) * idlest - 1)
            uneven = self._balance * (self._seen[index].got - mean)
            return total - seen[index] + busier * total + uneven, index != first, index

        best = min(open_now, key=cost)
        return Route(best, seen[best], "prefix" if seen[best] else "load")

    def sent(self, request: RoutedRequest, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`."""
        self._grow(replica + 1)
        self._seen[replica].add(request)
        if request.conversation is not None:
            self._homes[request.conversation] = replica
            self._homes.move_to_end(request.conversation)
            if len(self._homes) > self._max_conversations:
                self._homes.popitem(last=False)

    def lost(self, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`. Its conversations keep their place: what comes in its stead
        may have found their turns on its disk."""
        self._grow(replica + 1)
        self._seen[replica] = _Seen(*self._bounds, got=self._seen[replica].got)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if a bound does not hold. For tests."""
        assert len(self._homes) <= self._max_conversations
        for seen in self._seen:
            seen.check_invariants()

    def _grow(self, replicas: int) -> None:
        """A new replica has got what the others have on average, so that not all goes to it."""
        while len(self._seen) < replicas:
            mean = sum(seen.got for seen in self._seen) // len(self._seen) if self._seen else 0
            self._seen.append(_Seen(*self._bounds, got=mean))


class _Seen:
    """What one replica has seen, the most recently used; and how many tokens it had not seen before."""

    def __init__(self, max_tokens: int | None, max_segments: int, got: int) -> None:
        self._max_tokens, self._max_segments = max_tokens, max_segments
        self._tokens_of: OrderedDict[Hashable, int] = OrderedDict()
        self._tokens = 0
        self.got = got

    def of(self, request: RoutedRequest) -> int:
        """Tokens of the request that it has seen."""
        return sum(segment.tokens for segment in request.prompt if segment.key in self._tokens_of)

    def add(self, request: RoutedRequest) -> None:
        for segment in request.prompt:
            if segment.key not in self._tokens_of:
                self._tokens_of[segment.key] = segment.tokens
                self._tokens += segment.tokens
                self.got += segment.tokens
            self._tokens_of.move_to_end(segment.key)
        while len(self._tokens_of) > self._max_segments or self._tokens > (self._max_tokens or self._tokens):
            self._tokens -= self._tokens_of.popitem(last=False)[1]

    def check_invariants(self) -> None:
        assert self._tokens == sum(self._tokens_of.values())
        assert len(self._tokens_of) <= self._max_segments
        assert self._max_tokens is None or self._tokens <= self._max_tokens
