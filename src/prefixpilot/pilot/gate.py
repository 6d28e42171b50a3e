"""Whether ordering has paid lately, for each route."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from prefixpilot.pilot.forest import TreeKey

DECAY: Final = 0.98
"""Of the running gain, a request: half of it is from the last 34."""
MAX_ROUTES: Final = 10_000


class Gate:
    """The running net gain of ordering by route (tenant and scope), the least recently used route out first.

    Gains come in whether or not a request was ordered: what ordering would have saved is known from the index alone. So
    a route that is closed opens again when ordering would pay. ``is_open`` and ``add`` O(1); not thread-safe.
    """

    def __init__(self, max_routes: int = MAX_ROUTES) -> None:
        self._max = max_routes
        self._gain: OrderedDict[TreeKey, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._gain)

    def is_open(self, route: TreeKey) -> bool:
        """Whether the running net gain of a route is positive; not so for one that is new."""
        return self._gain.get(route, 0.0) > 0

    def add(self, route: TreeKey, gain: int) -> None:
        """A request was sent for which ordering was predicted to gain so many tokens, net."""
        self._gain[route] = DECAY * self._gain.get(route, 0.0) + gain
        self._gain.move_to_end(route)
        if len(self._gain) > self._max:
            self._gain.popitem(last=False)
