"""What follows the cached prefix: learns per tree which blocks stand together, and which way of ordering pays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter

from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId
from prefixpilot.errors import InvariantError
from prefixpilot.pilot.forest import TreeKey
from prefixpilot.pilot.trial import Trial
from prefixpilot.tails import POLICIES, Tail, Window

WINDOW = 1024
MAX_HELD = 8192
_TRIAL_FROM = 16
_ADAPTIVE = tuple(POLICIES[name] for name in ("co-occurrence", "relevance", "popularity-tokens"))


class _Route:
    """What is known of the requests of one tree."""

    __slots__ = ("trial", "window")

    def __init__(self) -> None:
        self.window = Window(WINDOW)
        self.trial: Trial | None = None


class TailLearner:
    """Decides what follows the prefix, from the contexts sent lately with the same tenant and scope.

    ``adaptive`` is co-occurrence, unless relevance or popularity x tokens has paid more lately: each tree has a
    :class:`~prefixpilot.pilot.trial.Trial`. What is learnt outlives the tree, since the workload outlives the cache.
    Over all trees at most ``MAX_HELD`` contexts are remembered; the least recently used tree goes first. Nothing is
    learnt where nothing is moved (``relevance``).
    """

    def __init__(self, config: PilotConfig) -> None:
        self._adaptive = config.tail == "adaptive"
        self._policy = _ADAPTIVE[0] if self._adaptive else POLICIES[config.tail]
        self._learns = config.tail != "relevance"
        self._cache_tokens = config.cache_tokens
        self._routes: OrderedDict[TreeKey, _Route] = OrderedDict()
        self._held = 0

    def lead(self, key: TreeKey, tail: Tail) -> list[BlockId]:
        """The blocks of ``tail.rest`` that follow the prefix first; the others keep their order. Changes nothing."""
        route = self._routes.get(key)
        if route is None or not tail.rest:
            return []
        policy = self._policy if route.trial is None else route.trial.verdict
        return policy(route.window, tail)

    def learn(self, key: TreeKey, sent: Sequence[BlockId], tokens: Sequence[int], ranks: Sequence[int]) -> None:
        """A context was sent: distinct blocks in any order; their lengths and ranks. O(k), on a trial's turn more."""
        if not sent:
            return
        route = self._routes.get(key)
        if route is not None and route.trial is not None and route.trial.next_is_tried():
            by_rank = sorted(zip(ranks, sent, tokens, strict=True), key=itemgetter(0))
            route.trial.observe(route.window, {block: length for _, block, length in by_rank})
        self.remember(key, sent)

    def remember(self, key: TreeKey, blocks: Sequence[BlockId]) -> None:
        """A context was sent, but not one by one as it came: it counts as seen and is not tried. O(blocks)."""
        if not self._learns:
            return
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route()
        self._routes.move_to_end(key)
        if self._adaptive and route.trial is None and len(route.window) >= _TRIAL_FROM:
            route.trial = Trial(_ADAPTIVE, self._cache_tokens)
        self._held += route.window.add(blocks)
        while self._held > MAX_HELD and len(self._routes) > 1:
            self._held -= len(self._routes.popitem(last=False)[1].window)

    def remember_all(self, key: TreeKey, contexts: Sequence[Sequence[BlockId]]) -> None:
        """Many contexts were sent. O(blocks of the last ``WINDOW``): more are forgotten again at once."""
        for blocks in contexts[-WINDOW:]:
            self.remember(key, blocks)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless the windows are sound and bounded. O(everything)."""
        for route in self._routes.values():
            route.window.check_invariants()
        held = sum(len(route.window) for route in self._routes.values())
        if held != self._held or held > max(MAX_HELD, WINDOW):
            raise InvariantError("tail learner: holds another number of contexts than it counts, or too many")
