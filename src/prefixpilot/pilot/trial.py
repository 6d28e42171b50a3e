"""Small indexes side by side: what each policy for the tail would have had cached of the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_KEY = TreeKey(TenantId(""), "")


class _Duel:
    """A challenger against the first policy, by paired differences in cached tokens.

    It is ahead once its lead exceeds two standard deviations (decayed by 0.998 a request), and until that lead is gone.
    No lead counts for more than four, so that the past cannot outweigh a workload that has changed.
    """

    def __init__(self) -> None:
        self.lead = 0.0
        self.ahead = False
        self._variance = 0.0

    def add(self, difference: int) -> None:
        self._variance = self._variance * _DECAY + difference * difference
        sure = _SURE * sqrt(self._variance)
        self.lead = max(-2 * sure, min(2 * sure, self.lead * _DECAY + difference))
        self.ahead = self.lead > (0.0 if self.ahead else sure)


class Trial:
    """Which of several policies pays. Counterfactual: each has an index of its own, no larger than the cache.

    Credit inside one shared index misleads: what one policy has put at the root is matched by every later request,
    whatever would have paid more (docs/decisions/0007). Runs on the first 512 requests, then on 64 of each 512. The
    first policy is the one to follow unless a challenger is ahead; of several, the one with the largest lead.
    O(policies x (k + match + insert)) a request tried.

    Attributes:
        verdict: the policy to follow now.
    """

    def __init__(self, policies: Sequence[TailPolicy], cache_tokens: int | None) -> None:
        config = PilotConfig(cache_tokens=cache_tokens, max_contexts=_MAX_CONTEXTS)
        self._first, *self._challengers = policies
        self._forests = [Forest(config) for _ in policies]
        self._duels = [_Duel() for _ in self._challengers]
        self._seen = 0
        self.verdict = self._first

    def next_is_tried(self) -> bool:
        """Count one more request; whether to :meth:`observe` it."""
        self._seen += 1
        return self._seen <= _ALWAYS_UNTIL or self._seen % _PERIOD < _BURST

    def observe(self, window: Window, length_of: Mapping[BlockId, int]) -> None:
        """Try one request: its distinct blocks by relevance, with their lengths; ``window`` does not hold it yet."""
        standard = self._send(self._forests[0], self._first, window, length_of)
        ahead = []
        for forest, policy, duel in zip(self._forests[1:], self._challengers, self._duels, strict=True):
            duel.add(self._send(forest, policy, window, length_of) - standard)
            if duel.ahead:
                ahead.append((duel.lead, policy))
        self.verdict = max(ahead, key=lambda entry: entry[0])[1] if ahead else self._first

    def _send(self, forest: Forest, policy: TailPolicy, window: Window, length_of: Mapping[BlockId, int]) -> int:
        """Order and insert; returns the cached tokens."""
        prefix = forest.match(_KEY, tuple(length_of))
        order = dict.fromkeys(prefix)
        rest = [block for block in length_of if block not in order]
        if rest:
            tail = Tail(prefix, rest, [length_of[block] for block in rest], len(forest))
            order.update(dict.fromkeys(policy(window, tail)))
            order.update(dict.fromkeys(rest))
        sent = tuple(order)
        forest.insert(_KEY, RequestId(str(self._seen)), sent, tuple(map(length_of.__getitem__, sent)), ())
        forest.trim()
        return sum([length_of[block] for block in prefix])
