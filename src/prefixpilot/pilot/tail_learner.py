"""What follows the cached prefix: learns per tree which blocks stand together, and which way of ordering pays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from prefixpilot.config import PilotConfig
from prefixpilot.core import BlockId, TenantId
from prefixpilot.errors import InvalidRequestError, InvariantError
from prefixpilot.index.snapshot import id_data, read_ids
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

    def snapshot(self) -> list[dict[str, Any]]:
        """What is known of each tree, the least recently used first, as data that ``json`` can write."""
        return [
            {
                "tenant": key.tenant,
                "scope": key.scope,
                "contexts": [list(map(id_data, context)) for context in route.window.contexts()],
                "trial": None if route.trial is None else route.trial.snapshot(),
            }
            for key, route in self._routes.items()
        ]

    def restore(self, data: Any) -> None:
        """Learn what :meth:`snapshot` described, as far as these settings learn; before anything else.

        Raises:
            InvalidRequestError: ``data`` is not such a description. This learner is of no use then.
        """
        try:
            for place, entry in enumerate(data):
                self._restore_route(entry, f"snapshot.tails[{place}]")
        except InvalidRequestError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise InvalidRequestError("snapshot.tails", f"is wrong ({error!r})", "make the snapshot again") from error

    def _restore_route(self, entry: Mapping[str, Any], where: str) -> None:
        key = TreeKey(TenantId(str(entry["tenant"])), str(entry["scope"]))
        contexts = [read_ids(context, f"{where}.contexts") for context in entry["contexts"]]
        if not all(contexts):
            raise InvalidRequestError(f"{where}.contexts", "holds an empty one", "make the snapshot again")
        self.remember_all(key, contexts)
        route = self._routes.get(key)
        if route is not None and self._adaptive and entry["trial"] is not None:
            route.trial = Trial(_ADAPTIVE, self._cache_tokens)
            route.trial.restore(entry["trial"])

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless the windows are sound and bounded. O(everything)."""
        for route in self._routes.values():
            route.window.check_invariants()
        held = sum(len(route.window) for route in self._routes.values())
        if held != self._held or held > max(MAX_HELD, WINDOW):
            raise InvariantError("tail learner: holds another number of contexts than it counts, or too many")
