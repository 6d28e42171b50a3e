"""Contexts on their way to the pages of their prompts: what the engine tells of a prompt may come behind its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from prefixpilot.proxy.cache.places import Place
from prefixpilot.proxy.cache.rank import Chain, RankView
from prefixpilot.proxy.cache.watch import Rank, Watch
from prefixpilot.residency.contexts import Shortened

MAX_PENDING: Final = 256
PATIENCE: Final = 4
"""How many later requests a context waits for the events of its own pages."""


class _Pending(NamedTuple):
    """Contexts that wait for the events of their own pages."""

    watch: Watch
    places: tuple[Place, ...]
    patience: int


class Attaching:
    """Attaches the contexts of answered requests to the pages of their prompts. Not thread-safe: one owner.

    Args:
        ranks: the caches; the owner adds to them.
    """

    def __init__(self, ranks: Mapping[Rank, RankView]) -> None:
        self._ranks = ranks
        self._pending: deque[_Pending] = deque()

    def add(self, watch: Watch, places: tuple[Place, ...]) -> list[Shortened]:
        """Attach a request's contexts, now or once its events have come; which of them are shorter than planned."""
        return self._attach(_Pending(watch, places, PATIENCE))

    def again(self, *, last_time: bool = False) -> list[Shortened]:
        """Try once more for those that wait. ``last_time``: what is missing will not come."""
        waiting, shortened = list(self._pending), list[Shortened]()
        self._pending.clear()
        for pending in waiting:
            shortened += self._attach(pending._replace(patience=0 if last_time else pending.patience - 1))
        return shortened

    def forget(self) -> None:
        """Nothing waits any more."""
        self._pending.clear()

    def _attach(self, pending: _Pending) -> list[Shortened]:
        chain = self._chain(pending.watch)
        if chain is None or (not chain.whole and pending.patience):
            if pending.patience and len(self._pending) < MAX_PENDING:
                self._pending.append(pending)
            return []
        contexts, shortened = chain.rank.contexts, []
        for place in pending.places if contexts is not None else ():
            assert contexts is not None
            usable = contexts.attach(place.request_id, chain.pages, place.counts_at)
            if usable < len(place.counts_at):
                shortened.append(Shortened(place.request_id, usable))
        return shortened

    def _chain(self, watch: Watch) -> Chain | None:
        """The pages of a request's prompt, in the rank that holds most of them."""
        chains = (view.chain(watch, watch.marks.get(rank, -1)) for rank, view in self._ranks.items())
        return max((chain for chain in chains if chain is not None), key=lambda chain: len(chain.pages), default=None)
