"""The engines of one proxy: the way to each, its slots, and the picture of its cache. Of several, which gets what.

With one engine there is nothing to choose and nothing to look after: no pool, no looks, no header.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.account import Account
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.cache.following import followed
from prefixpilot.proxy.cache.standing import THE_ENGINES
from prefixpilot.proxy.cache.sums import together
from prefixpilot.proxy.cache.tracker import CacheTracker
from prefixpilot.proxy.call import RefusedError
from prefixpilot.proxy.fleet.drains import Drains, SharedDrains
from prefixpilot.proxy.fleet.figures import FleetFigures, Served
from prefixpilot.proxy.fleet.holders import Bounds, EngineIndex, Holders
from prefixpilot.proxy.fleet.pool import NOBODY, Pool, Seat
from prefixpilot.proxy.fleet.responses import ResponseHomes
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.slots import Slots
from prefixpilot.proxy.steps import Attempt, Planner
from prefixpilot.proxy.wire.upstream import Upstream
from prefixpilot.residency.state import CacheState
from prefixpilot.routing import RoutedRequest, router_of
from prefixpilot.routing.base import Router

CACHE_TOKENS: Final = 1_000_000
"""What each engine's cache is taken to hold by the policy, where nobody says: it has to be bounded."""
RETRY_AFTER_S: Final = 1
WORST_FIRST: Final = (CacheState.UNKNOWN, CacheState.DEGRADED, CacheState.EXACT)
NOT_FOLLOWED: Final[Mapping[str, Any]] = {"state": "UNKNOWN", "followed": False}
"""What ``/stats`` says of an engine's cache where ``cache`` is off."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One engine, as the proxy has to do with it.

    Attributes:
        number: from 0, in the order of the settings.
        url: without ``/v1``.
        cache: ``None``: it is not followed.
    """

    number: int
    url: str
    upstream: Upstream
    slots: Slots
    cache: CacheTracker | None


class Engines:
    """One engine or several. Between ``start`` and ``close``, on one event loop.

    Args:
        planner: the index that pictures of caches correct.
        attempt: the fail-open point.
        clock: monotonic seconds.
        shared: what other proxies before the same engines take out by hand; ``None``: each its own.

    Attributes:
        all: the engines, by number.
        several: there is more than one.
        drains: which of several are taken out by hand.
        responses: which of them made which response.
    """

    def __init__(
        self,
        settings: ProxySettings,
        planner: Planner,
        metrics: Metrics,
        attempt: Attempt,
        clock: Callable[[], float],
        shared: SharedDrains | None = None,
    ) -> None:
        count = len(settings.all_engines)
        self.several = count > 1
        self._settings = settings
        self._wrongs: Sequence[str | None] = [None] * count
        self._cache_figures = CacheFigures(metrics.registry)
        self._holders = Holders(settings.max_contexts)
        bounds = Bounds(planner, count)

        def engine(number: int) -> Engine:
            own = settings.of_engine(number) if self.several else settings
            upstream = Upstream(own)
            index = EngineIndex(planner, self._holders, bounds, number) if self.several else planner
            whose = f"engine {number}'s" if self.several else THE_ENGINES
            cache = followed(own, index, upstream, metrics, attempt, clock, self._cache_figures, whose)
            return Engine(number, own.engine_root, upstream, Slots(own, index, upstream, attempt, clock), cache)

        self.all = tuple(engine(number) for number in range(count))
        self._trackers = tuple(each.cache for each in self.all if each.cache is not None)
        self.pool = Pool(router(settings), count, settings.fleet, settings.standby)
        urls = [each.url for each in self.all]
        self.drains = Drains(self.pool, urls, shared if self.several else None, settings.store.disk_timeout)
        self.responses = ResponseHomes()
        self.figures = FleetFigures(metrics.registry, count) if self.several else None
        self._looks: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Open the ways to them, follow their caches, and look after them if they are several."""
        for each in self.all:
            await each.upstream.start()
            if each.cache is not None:
                each.cache.start()
        await self.drains.agree()
        if self.several:
            self._looks = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """Let all of that go."""
        if self._looks is not None:
            self._looks.cancel()
        for each in self.all:
            each.slots.cancel()
        for tracker in self._trackers:
            await tracker.close()
        for each in self.all:
            await each.upstream.close()

    async def _look_after(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._settings.fleet.check_interval)
            await self.drains.agree()

    async def look(self) -> Sequence[str | None]:
        """Ask each how it is, at once and within ``ready_timeout``; what is wrong with each."""
        met = [health.met for health in self.pool.health]
        wrongs = await asyncio.gather(*(each.upstream.probe() for each in self.all))
        for each, wrong in zip(self.all, wrongs, strict=True):
            if wrong is not None:
                self.failed(each, wrong)
            elif self.pool.health[each.number].looked_well(met[each.number]):
                log.warning("engine %d at %s gets requests again", each.number, each.url)
        self._wrongs = wrongs
        return wrongs

    async def missing(self) -> str | None:
        """What is wrong; ``None`` if one engine can answer. What they have for slots is learnt on the way."""
        wrongs = await self.look() if self.several else [await self.all[0].upstream.probe()]
        await asyncio.gather(*(each.slots.look() for each in self.all))
        asked = [wrong for number, wrong in enumerate(wrongs) if number not in self.pool.drained]
        if None in asked:
            return None
        why = asked[0] if asked else "all are drained"
        return why if not self.several else f"none of {len(self.all)} engines is fit: {why}"

    # -- who gets a request

    def seat(self, routed: RoutedRequest | None, without: Set[int] = NOBODY) -> Seat | None:
        """A place for a request at an engine that is fit; ``None``: there is none. Only of several.

        Args:
            routed: ``None``: any engine will do.
        """
        return self._counted(self.pool.any_seat(without) if routed is None else self.pool.seat(routed, without))

    def seat_at(self, engine: int, routed: RoutedRequest | None) -> Seat | None:
        """A place at that engine, which alone can answer; ``None``: it takes none. See :meth:`Pool.seat_at`."""
        return self._counted(self.pool.seat_at(engine, routed))

    def _counted(self, seat: Seat | None) -> Seat | None:
        if seat is not None and self.figures is not None:
            self.figures.count_request(seat.engine)
        return seat

    def sent(self, forward: Forward, engine: Engine) -> None:
        """A request goes to that engine. Of one engine nobody asks which it was."""
        if not self.several:
            return
        plans = (plan.request_id for plan in forward.ticket.plans)
        self._holders.sent(chain((forward.request_id,), plans), engine.number)

    def leave(self, seat: Seat, account: Account) -> None:
        """Its answer is over."""
        self.pool.leave(seat)
        if self.figures is not None:
            self.figures.count_usage(seat.engine, account.usage)

    def failed(self, engine: Engine, why: str) -> None:
        """A look at it, or a request to it, has failed."""
        if self.figures is not None:
            self.figures.failures[engine.number].inc()
            if self.pool.failed(engine.number):
                self.figures.ejections[engine.number].inc()
                log.warning(
                    "engine %d at %s gets no more requests until it is well: %s", engine.number, engine.url, why
                )

    def any(self) -> Engine:
        """One that is fit, for what any of them can answer; the first if none is."""
        return self.all[next(iter(self.pool.fit()), 0)]

    # -- all of them together

    @property
    def names_requests(self) -> bool:
        """Whether each request needs an id of its own at the engine."""
        return any(tracker.names_requests for tracker in self._trackers)

    @property
    def state(self) -> str | None:
        """How well the least known cache is known; ``None``: they are not followed."""
        return self._least_known.name.lower() if self._trackers else None

    @property
    def _least_known(self) -> CacheState:
        return min((tracker.known for tracker in self._trackers), key=WORST_FIRST.index, default=CacheState.UNKNOWN)

    def finding(self, request_id: str) -> Mapping[str, Any] | None:
        """What came of a request, by the picture of the cache; ``None`` if that is not known."""
        found = (tracker.finding(request_id) for tracker in self._trackers)
        return next((each for each in found if each is not None), None)

    def evicted(self, request_ids: Iterable[str]) -> None:
        """A client says that the prefixes of these are gone."""
        ids = list(request_ids)
        for tracker in self._trackers:
            tracker.evicted(ids)

    def forget(self) -> None:
        """The index is empty: nothing of it is to be shortened, and the policy knows of no cache."""
        self.pool.clear()
        for each in self.all:
            each.slots.clear()
        for tracker in self._trackers:
            tracker.forget()

    def show(self) -> None:
        """Set the gauges of ``/metrics``."""
        if self._trackers:
            self._cache_figures.show(self._least_known, together(tracker.sums() for tracker in self._trackers))
        if self.figures is not None:
            for number, load in enumerate(self.pool.loads()):
                self.figures.show(number, load, drained=number in self.pool.drained)

    def stats(self) -> dict[str, Any]:
        """For ``/stats``; of several engines their caches together, and each by itself."""
        if not self.several:
            only = self.all[0]
            cache = NOT_FOLLOWED if only.cache is None else only.cache.stats()
            return {"engine_cache": cache, "slots": asdict(only.slots.stats)}
        engines = [self._stats_of(each) for each in self.all]
        reason = _reasons([each["engine_cache"].get("reason", "") for each in engines])
        caches = {"state": self._least_known.name, "reason": reason, "followed": bool(self._trackers)}
        sums = together(tracker.sums() for tracker in self._trackers).shown() if self._trackers else {}
        return {"engine_cache": {**caches, **sums}, "engines": engines}

    def told(self, number: int) -> dict[str, Any]:
        """Of several, how one stands now."""
        return {
            "engine": number,
            "url": self.all[number].url,
            "fit": self.pool.health[number].fit,
            "drained": number in self.pool.drained,
            "in_flight": self.pool.loads()[number].in_flight,
        }

    def _stats_of(self, engine: Engine) -> dict[str, Any]:
        return {
            **self.told(engine.number),
            **({} if self.figures is None else _served(self.figures.served[engine.number])),
            "prefill_tokens": self.pool.loads()[engine.number].prefill_tokens,
            "ejections": self.pool.health[engine.number].ejections,
            "engine_cache": NOT_FOLLOWED if engine.cache is None else engine.cache.stats(),
            "slots": asdict(engine.slots.stats),
        }

    def out(self) -> list[str]:
        """Of several, those that get no requests or did not answer the last look, and why; for ``/readyz``."""
        if not self.several:
            return []
        whys = [self._why_out(each) for each in self.all]
        return [f"the engine at {each.url} {why}" for each, why in zip(self.all, whys, strict=True) if why]

    def _why_out(self, engine: Engine) -> str:
        """Empty: it is well."""
        if engine.number in self.pool.drained:
            return "is drained"
        if not self.pool.health[engine.number].fit:
            return "gets no requests"
        return (self._wrongs[engine.number] or "").removeprefix(f"the engine at {engine.url} ")

    def in_doubt(self) -> list[str]:
        """Those whose cache may hold something else than is known; for ``/readyz``."""
        doubtful = [each for each in self.all if each.cache is not None and each.cache.known is CacheState.DEGRADED]
        names = [f"the engine at {each.url}" if self.several else "the engine" for each in doubtful]
        return [f"what {name} holds is known as DEGRADED (why: engine_cache.reason in /stats)" for name in names]

    def standing(self) -> list[dict[str, Any]]:
        """For ``/readyz``: which of several get requests."""
        drained = self.pool.drained
        return [
            {"engine": each.url, "fit": self.pool.health[each.number].fit, "drained": each.number in drained}
            for each in self.all
        ]


def _reasons(reasons: Sequence[str]) -> str:
    """Why caches are known no better, by engine; equal ones are said once. Empty if all are well known.

    >>> _reasons(["", "no events", "1 is lost", "no events"])
    'engine 1, 3: no events; engine 2: 1 is lost'
    """
    engines: dict[str, list[str]] = {}
    for number, reason in enumerate(reasons):
        if reason:
            engines.setdefault(reason, []).append(str(number))
    return "; ".join(f"engine {', '.join(numbers)}: {reason}" for reason, numbers in engines.items())


def _served(served: Served) -> dict[str, Any]:
    return {**asdict(served), "hit_rate": served.hit_rate}


def router(settings: ProxySettings) -> Router:
    """The policy that the settings name. Its picture of each engine's cache is bounded.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return router_of(settings.routing.replace("_", "-"), settings.cache_tokens or CACHE_TOKENS)
    except ConfigError as error:
        raise ConfigError("routing", error.reason, error.remedy) from None


def none_fit(count: int) -> RefusedError:
    """The refusal of a request that no engine can take."""
    return _refused(f"none of the {count} engines is fit for requests now; try again", "no_engine")


def home_out(engine: int) -> RefusedError:
    """The refusal of a request that goes on from a response, or is about one, whose engine takes none."""
    message = f"engine {engine} made the response, no other has it, and it takes no requests now; "
    return _refused(message + "try again, or send the history itself", "response_unreachable")


def _refused(message: str, code: str) -> RefusedError:
    retry = [(b"retry-after", str(RETRY_AFTER_S).encode("ascii"))]
    return RefusedError(503, message, "server_error", None, code, retry)
