"""Which engine was sent which request, so that what one of them evicts is not taken from what another one holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from prefixpilot.core import RequestId
from prefixpilot.errors import InvariantError
from prefixpilot.proxy.cache.view import Index


class Holders:
    """Engine by request, of the last ``most`` requests. Thread-safe; O(1) a request.

    A request that was sent to several engines is held by the last of them: it alone has answered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._engine: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._engine)

    def sent(self, request_ids: Iterable[str], engine: int) -> None:
        """They go to that engine."""
        with self._lock:
            for request_id in request_ids:
                self._engine[request_id] = engine
                self._engine.move_to_end(request_id)
            while len(self._engine) > self._most:
                self._engine.popitem(last=False)

    def holds(self, engine: int, request_id: str) -> bool:
        """Whether it was sent there last."""
        with self._lock:
            return self._engine.get(request_id) == engine

    def of(self, engine: int) -> list[str]:
        """What was sent there, oldest first. O(requests)."""
        with self._lock:
            return [request_id for request_id, holder in self._engine.items() if holder == engine]

    def check_invariants(self) -> None:
        """Raises InvariantError: it holds more than its bound."""
        if len(self._engine) > self._most:
            raise InvariantError(f"holds {len(self._engine)} requests of {self._most}")


class Bounds:
    """What the caches of all engines hold together, as the index is told. Thread-safe."""

    def __init__(self, index: Index, count: int) -> None:
        self._index = index
        self._lock = Lock()
        self._of: list[int | None] = [None] * count

    def resize(self, engine: int, cache_tokens: int | None) -> None:
        """That engine holds no more than so many tokens; ``None``: it tells what is gone, or is not known."""
        with self._lock:
            self._of[engine] = cache_tokens
            known = [tokens for tokens in self._of if tokens is not None]
        self._index.resize(sum(known) if len(known) == len(self._of) else None)


class EngineIndex:
    """The one index, as the picture of one engine's cache corrects it: what other engines hold stays.

    See :class:`~prefixpilot.proxy.cache.view.Index`.
    """

    def __init__(self, index: Index, holders: Holders, bounds: Bounds, engine: int) -> None:
        self._index = index
        self._holders = holders
        self._bounds = bounds
        self._engine = engine

    def shorten(self, request_id: RequestId, blocks: int) -> object:
        """Of a context that this engine was sent."""
        return self._index.shorten(request_id, blocks) if self._holders.holds(self._engine, request_id) else None

    def evict(self, request_ids: Iterable[str]) -> object:
        """Those of them that this engine was sent."""
        return self._index.evict([each for each in request_ids if self._holders.holds(self._engine, each)])

    def evict_all(self) -> object:
        """All that this engine was sent."""
        return self._index.evict(self._holders.of(self._engine))

    def resize(self, cache_tokens: int | None) -> object:
        """This engine's part of the bound."""
        self._bounds.resize(self._engine, cache_tokens)
        return None
