"""Context-aware routing (paper 7: 16 and 32 GPUs): where the prompt's prefix is, unless the way there is much longer.

A replica costs the tokens that it would have to compute for the request, those of the prompt that its cache does not
hold, and what its queue is longer than the shortest one by more than a given share. The least costly one is taken. So a
conversation goes where its history is, requests with equal documents meet, a hot prefix is computed a second time
elsewhere once the queue before it has grown (no herding), and a request that no cache knows goes to a short queue, of
equal ones to the replica that has computed least so far.

Why a share: where all queues are long, work saved shortens all of them, and is worth some evenness; where one is empty,
nothing is worth a wait longer than computing.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import PagedPrefixCache, PrefixCache, RadixPrefixCache
from prefixpilot.routing.base import Load, Route, RoutedRequest, available


class ContextAware:
    """See the module. O(replicas x segments matched) a request; memory of one cache model a replica.

    Args:
        cache_tokens: KV capacity of each replica; ``None``: unknown, nothing is thought evicted.
        page_size: of its cache, in tokens: less than a page is never hit.
        slack: by which share of the shortest queue another may be longer without a cost.
        balance: how much of what a replica has computed beyond the average counts as if it still had to; 0 looks at
            the moment only.
    """

    def __init__(
        self, cache_tokens: int | None = None, page_size: int = 1, *, balance: float = 0.05, slack: float = 0.25
    ) -> None:
        if not balance >= 0:
            raise ConfigError("balance", f"is {balance!r}", "use a number of 0 or more")
        if not slack >= 0:
            raise ConfigError("slack", f"is {slack!r}", "use a number of 0 or more")
        self._cache_tokens, self._page_size, self._balance, self._slack = cache_tokens, page_size, balance, slack
        self._caches: list[PrefixCache] = []
        self._computed: list[int] = []
        self._grow(1)

    def route(self, request: RoutedRequest, loads: Sequence[Load]) -> Route:
        """See :class:`~prefixpilot.routing.base.Router`."""
        self._grow(len(loads))
        open_now = available(loads)
        total = request.tokens
        mean = sum(self._computed[index] for index in open_now) / len(open_now)
        cached = {index: self._caches[index].match_prefix(request.prompt) for index in open_now}

        shortest = min(loads[index].prefill_tokens for index in open_now)

        def cost(index: int) -> tuple[float, int, int]:
            longer = max(0.0, loads[index].prefill_tokens - (1 + self._slack) * shortest)
            uneven = self._balance * (self._computed[index] - mean)
            return longer + total - cached[index] + uneven, loads[index].in_flight, index

        best = min(open_now, key=cost)
        return Route(best, cached[best], "prefix" if cached[best] else "load")

    def sent(self, request: RoutedRequest, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`."""
        self._grow(replica + 1)
        access = self._caches[replica].access(request.prompt)
        self._computed[replica] += access.prefilled_tokens

    def lost(self, replica: int) -> None:
        """See :class:`~prefixpilot.routing.base.Router`."""
        self._grow(replica + 1)
        self._caches[replica].clear()

    def _grow(self, replicas: int) -> None:
        """A new replica has computed what the others have on average, so that not all goes to it."""
        while len(self._caches) < replicas:
            mean = sum(self._computed) // len(self._computed) if self._computed else 0
            self._computed.append(mean)
            self._caches.append(self._new_cache())

    def _new_cache(self) -> PrefixCache:
        if self._page_size > 1:
            return PagedPrefixCache(self._cache_tokens, self._page_size)
        return RadixPrefixCache(self._cache_tokens)
