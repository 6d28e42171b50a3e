"""Small indexes side by side: what each policy for the tail would have had cached of the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from operator import attrgetter
from typing import Any

from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId, RequestId, TenantId
from prefixpilot.pilot.forest import Forest, TreeKey
from prefixpilot.tails import Tail, TailPolicy, Window

_MAX_CONTEXTS = 256
_ALWAYS_UNTIL = 512
_PERIOD, _BURST, _BURST_AHEAD = 512, 32, 64
_DECAY = 0.998
_SURE = 2.0
_KEY = TreeKey(TenantId(""), "")


class _Arm:
    """What one policy would have had cached: an index of its own."""

    def __init__(self, policy: TailPolicy, config: PilotConfig) -> None:
        self.policy = policy
        self._forest = Forest(config)

    def send(self, name: RequestId, window: Window, length_of: Mapping[BlockId, int]) -> int:
        """Order and insert; returns the cached tokens."""
        prefix = self._forest.match(_KEY, tuple(length_of))
        left = dict(length_of)
        cached = sum(map(left.pop, prefix))
        order = dict.fromkeys(prefix)
        if left:
            tail = Tail(prefix, tuple(left), tuple(left.values()), len(self._forest))
            order.update(dict.fromkeys(self.policy(window, tail)))
            order.update(dict.fromkeys(left))
        sent = tuple(order)
        self._forest.insert(_KEY, name, sent, tuple(map(length_of.__getitem__, sent)), ())
        self._forest.trim()
        return cached


class _Duel:
    """A challenger against the first policy, by paired differences in cached tokens.

    It is ahead once its lead exceeds two standard deviations (decayed by 0.998 a request), and until that lead is gone.
    No lead counts for more than four, so that the past cannot outweigh a workload that has changed.
    """

    def __init__(self, first: TailPolicy, challenger: TailPolicy, config: PilotConfig) -> None:
        self.challenger = challenger
        self.lead = 0.0
        self.ahead = False
        self.variance = 0.0
        self._arms = (_Arm(challenger, config), _Arm(first, config))

    def snapshot(self) -> dict[str, Any]:
        """The state of play; not what the arms have cached, of which both begin anew."""
        return {"lead": self.lead, "variance": self.variance, "ahead": self.ahead}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from a state of play. ``ValueError``, ``TypeError`` or ``KeyError``: it is none."""
        lead, variance = float(data["lead"]), float(data["variance"])
        if not (isfinite(lead) and isfinite(variance) and variance >= 0):
            raise ValueError(f"lead {lead}, variance {variance}")
        self.lead, self.variance, self.ahead = lead, variance, bool(data["ahead"])

    def observe(self, name: RequestId, window: Window, length_of: Mapping[BlockId, int]) -> None:
        """Send one request by both policies."""
        challenger, first = [arm.send(name, window, length_of) for arm in self._arms]
        self._add(challenger - first)

    def _add(self, difference: int) -> None:
        self.variance = self.variance * _DECAY + difference * difference
        sure = _SURE * sqrt(self.variance)
        self.lead = max(-2 * sure, min(2 * sure, self.lead * _DECAY + difference))
        self.ahead = self.lead > (0.0 if self.ahead else sure)


class Trial:
    """Which of several policies pays. Counterfactual: each has an index of its own, no larger than the cache.

    Credit inside one shared index misleads: what one policy has put at the root is matched by every later request,
    whatever would have paid more (docs/decisions/0007). Each challenger has a duel with the first policy: all on the
    first 512 requests, then each on 32 of 512, or on 64 while its challenger is ahead, so that a workload that has
    changed is noticed as soon again; never two on the same request, so that a request tried takes 0.1 ms longer (0.2 ms
    in pure Python). The first policy is the one to follow unless a challenger is ahead; of several, the
    one with the largest lead. O(k + match + insert), twice, a request tried.

    Attributes:
        verdict: the policy to follow now.
    """

    def __init__(self, policies: Sequence[TailPolicy], cache_tokens: int | None) -> None:
        config = PilotConfig(cache_tokens=cache_tokens, max_contexts=_MAX_CONTEXTS)
        self._first, *challengers = policies
        self._duels = [_Duel(self._first, challenger, config) for challenger in challengers]
        self._seen = 0
        self.verdict = self._first

    def next_is_tried(self) -> bool:
        """Count one more request; whether to :meth:`observe` it."""
        self._seen += 1
        return bool(self._due())

    def observe(self, window: Window, length_of: Mapping[BlockId, int]) -> None:
        """Try one request: its distinct blocks by relevance, with their lengths; ``window`` does not hold it yet."""
        for duel in self._due():
            duel.observe(RequestId(str(self._seen)), window, length_of)
        self._decide()

    def snapshot(self) -> dict[str, Any]:
        """How far the trial is, as data that ``json`` can write."""
        return {"seen": self._seen, "duels": [duel.snapshot() for duel in self._duels]}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`. ``ValueError``, ``TypeError`` or ``KeyError``: it is none of such a trial."""
        seen, duels = int(data["seen"]), data["duels"]
        if seen < 0:
            raise ValueError(f"seen {seen}")
        for duel, state in zip(self._duels, duels, strict=True):
            duel.restore(state)
        self._seen = seen
        self._decide()

    def _decide(self) -> None:
        ahead = [duel for duel in self._duels if duel.ahead]
        self.verdict = max(ahead, key=attrgetter("lead")).challenger if ahead else self._first

    def _due(self) -> Sequence[_Duel]:
        if self._seen <= _ALWAYS_UNTIL:
            return self._duels
        turn, place = divmod(self._seen % _PERIOD, _PERIOD // len(self._duels))
        duel = self._duels[turn]
        return (duel,) if place < (_BURST_AHEAD if duel.ahead else _BURST) else ()
