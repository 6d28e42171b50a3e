"""Which of several engines gets a request, and how busy each is. Pure: no sockets, no clock."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from prefixpilot.errors import InvariantError
from prefixpilot.proxy.fleet.health import Health
from prefixpilot.proxy.fleet.settings import FleetSettings
from prefixpilot.routing import Load, RoutedRequest, Router

NOBODY: Final[frozenset[int]] = frozenset()


@dataclass(slots=True, eq=False)
class Seat:
    """A request at an engine, from when it is sent to the end of its answer.

    Attributes:
        engine: its number.
        cached_tokens: that the policy believes to be cached there.
        prefill_tokens: that the engine still has to compute of its prompt, as far as is known.
        left: it is over.
    """

    engine: int
    cached_tokens: int = 0
    prefill_tokens: int = 0
    left: bool = False


class Pool:
    """Engines by number, from 0. One event loop uses it. O(engines), and what the policy costs.

    Args:
        router: the policy.
        count: of engines.
        standby: numbers of those that get requests only while no other is fit.
    """

    def __init__(self, router: Router, count: int, settings: FleetSettings, standby: frozenset[int] = NOBODY) -> None:
        self._router = router
        self._standby = standby
        self._settings = settings
        self.health = tuple(Health(settings.eject_after, settings.return_after) for _ in range(count))
        self._in_flight = [0] * count
        self._prefill = [0] * count
        self._drained: set[int] = set()

    def loads(self, without: Set[int] = NOBODY) -> list[Load]:
        """How busy each engine is; of those that are out, or in ``without``, that they take nothing."""
        fit = self.fit(without)
        return [
            Load(flight, prefill, number in fit)
            for number, (flight, prefill) in enumerate(zip(self._in_flight, self._prefill, strict=True))
        ]

    def fit(self, without: Set[int] = NOBODY) -> list[int]:
        """Engines that take requests; those that stand by if there is no other."""
        out = self._drained | without
        fit = [number for number, health in enumerate(self.health) if health.fit and number not in out]
        return [number for number in fit if number not in self._standby] or fit

    def spare(self, tried: Set[int]) -> bool:
        """Whether another engine may be tried, once the last of ``tried`` has failed."""
        return len(tried) <= self._settings.retries and bool(self.fit(tried))

    def seat(self, request: RoutedRequest, without: Set[int] = NOBODY) -> Seat | None:
        """A place for a request to a model, by the policy; ``None``: no engine is fit. :meth:`leave` it at the end."""
        if not self.fit(without):
            return None
        route = self._router.route(request, self.loads(without))
        self._router.sent(request, route.replica)
        return self._taken(Seat(route.replica, route.cached_tokens, max(request.tokens - route.cached_tokens, 0)))

    def any_seat(self, without: Set[int] = NOBODY) -> Seat | None:
        """A place for any other request: where fewest are under way; ``None``: no engine is fit."""
        fit = self.fit(without)
        return self._taken(Seat(min(fit, key=lambda number: (self._in_flight[number], number)))) if fit else None

    def seat_at(self, engine: int, request: RoutedRequest | None) -> Seat | None:
        """A place at that engine and no other; ``None``: it takes none.

        Args:
            request: to a model. ``None``: any other, for which an engine that is drained still stands.
        """
        if request is not None:
            return self.seat(request, set(range(len(self.health))) - {engine})
        return self._taken(Seat(engine)) if self.health[engine].fit else None

    def _taken(self, seat: Seat) -> Seat:
        self._in_flight[seat.engine] += 1
        self._prefill[seat.engine] += seat.prefill_tokens
        return seat

    def began(self, seat: Seat) -> None:
        """Its answer has begun: its prompt is computed."""
        self._prefill[seat.engine] -= seat.prefill_tokens
        seat.prefill_tokens = 0

    def leave(self, seat: Seat) -> None:
        """It is over. A second time it does nothing."""
        if not seat.left:
            seat.left = True
            self.began(seat)
            self._in_flight[seat.engine] -= 1

    def failed(self, engine: int) -> bool:
        """A look at it or a request to it failed; whether it is out since now. What its cache held counts as lost."""
        ejected = self.health[engine].failed()
        if ejected:
            self._router.lost(engine)
        return ejected

    @property
    def drained(self) -> Set[int]:
        """Engines that an administrator has taken out."""
        return self._drained

    def drain(self, engine: int) -> None:
        """It gets nothing new, however well it is; what is under way there goes on. A second time it does nothing."""
        self._drained.add(engine)

    def resume(self, engine: int) -> None:
        """It takes requests again, with an empty cache as far as is known: it may have been started anew meanwhile."""
        if engine in self._drained:
            self._drained.remove(engine)
            self._router.lost(engine)

    def lost(self, engine: int) -> None:
        """It holds nothing any more."""
        self._router.lost(engine)

    def clear(self) -> None:
        """Forget what each engine holds."""
        for engine in range(len(self.health)):
            self._router.lost(engine)

    def check_invariants(self, seats: Sequence[Seat]) -> None:
        """Raises InvariantError: the counts are not those of the seats that have been taken and not left."""
        for engine, health in enumerate(self.health):
            health.check_invariants()
            mine = [seat for seat in seats if seat.engine == engine and not seat.left]
            counted = len(mine), sum(seat.prefill_tokens for seat in mine)
            if (self._in_flight[engine], self._prefill[engine]) != counted:
                raise InvariantError(f"engine {engine} has {counted}, counted {self.loads()[engine]}")
