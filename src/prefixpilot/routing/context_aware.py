"""Context-aware routing (paper 7: 16 and 32 GPUs): where the prompt's prefix is, unless the way there is much longer.

A replica costs the tokens that it would have to compute for the request, those of the prompt that its cache does not
hold, and what its queue is longer than the shortest one beyond a margin. The least costly one is taken. So a
conversation goes where its history is, requests with equal documents meet, a hot prefix is computed a second time
elsewhere once the queue before it has grown (no herding), and a request that no cache knows goes to a short queue, of
equal ones to the replica that has computed least so far.

The margin is the larger of two. Where all queues are long, work saved shortens all of them: a share of the shortest
queue. Where one is empty, it is what a request may wait for what is cached: a few times that, and no longer than its
whole prompt takes. Without it a single prompt under way sends the next one with the same beginning elsewhere, and idle
replicas end up with the same content, which costs them the room for other content (decision 0055).
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
        patience: how many times the tokens that a replica has cached of a prompt its queue may be longer without a
            cost, up to the tokens of the prompt.
        balance: how much of what a replica has computed beyond the average counts as if it still had to; 0 looks at
            the moment only.
    """

    def __init__(
        self,
        cache_tokens: int | None = None,
        page_size: int = 1,
        *,
        balance: float = 0.05,
        slack: float = 0.25,
        patience: float = 2.0,
    ) -> None:
        for name, value in (("balance", balance), ("slack", slack), ("patience", patience)):
            if not value >= 0:
                raise ConfigError(name, f"is {value!r}", "use a number of 0 or more")
        self._cache_tokens, self._page_size = cache_tokens, page_size
        self._balance, self._slack, self._patience = balance, slack, patience
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
            margin = max(self._slack * shortest, min(total, self._patience * cached[index]))
            longer = max(0.0, loads[index].prefill_tokens - shortest - margin)
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
