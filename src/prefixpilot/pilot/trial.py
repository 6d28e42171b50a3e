"""Two small indexes side by side: what two policies for the tail would have had cached of the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId, RequestId, TenantId
from prefixpilot.pilot.forest import Forest, TreeKey
from prefixpilot.tails import Tail, TailPolicy, Window

_MAX_CONTEXTS = 256
_ALWAYS_UNTIL = 512
_PERIOD, _BURST = 512, 64
_DECAY = 0.998
_SURE = 2.0


class Trial:
    """Whether a policy pays, against relevance. Counterfactual: each has an index of its own, no larger than the cache.

    Credit inside one shared index misleads: what one policy has put at the root is matched by every later request,
    whatever would have paid more (docs/decisions/0007). Runs on the first 512 requests, then on 64 of each 512.

    The verdict is relevance once its lead in predicted cached tokens exceeds two standard deviations of the paired
    differences (decayed by 0.998 a request), and until that lead is gone; no lead counts for more than four, so that
    the past cannot outweigh a workload that has changed. O(k + match + insert) a request tried.
    """

    def __init__(self, policy: TailPolicy, cache_tokens: int | None) -> None:
        config = PilotConfig(cache_tokens=cache_tokens, max_contexts=_MAX_CONTEXTS)
        self._policy = policy
        self._with_policy, self._by_relevance = Forest(config), Forest(config)
        self._seen = 0
        self._lead = 0.0
        self._variance = 0.0
        self.relevance_pays_more = False

    def next_is_tried(self) -> bool:
        """Count one more request; whether to :meth:`observe` it."""
        self._seen += 1
        return self._seen <= _ALWAYS_UNTIL or self._seen % _PERIOD < _BURST

    def observe(self, window: Window, length_of: Mapping[BlockId, int]) -> None:
        """Try one request: its distinct blocks by relevance, with their lengths; ``window`` does not hold it yet."""
        by_relevance = self._send(self._by_relevance, None, window, length_of)
        with_policy = self._send(self._with_policy, self._policy, window, length_of)
        self._judge(by_relevance - with_policy)

    def _send(self, forest: Forest, policy: TailPolicy | None, window: Window, length_of: Mapping[BlockId, int]) -> int:
        """Order and insert; returns the cached tokens."""
        prefix = forest.match(_KEY, tuple(length_of))
        order = dict.fromkeys(prefix)
        if policy is not None:
            rest = [block for block in length_of if block not in order]
            tail = Tail(prefix, rest, [length_of[block] for block in rest], len(forest))
            order.update(dict.fromkeys(policy(window, tail)))
        order.update(dict.fromkeys(length_of))
        sent = tuple(order)
        forest.insert(_KEY, RequestId(str(self._seen)), sent, tuple(map(length_of.__getitem__, sent)), ())
        forest.trim()
        return sum(length_of[block] for block in prefix)

    def _judge(self, difference: int) -> None:
        self._variance = self._variance * _DECAY + difference * difference
        sure = _SURE * sqrt(self._variance)
        self._lead = max(-2 * sure, min(2 * sure, self._lead * _DECAY + difference))
        self.relevance_pays_more = self._lead > (0.0 if self.relevance_pays_more else sure)


_KEY = TreeKey(TenantId(""), "")
