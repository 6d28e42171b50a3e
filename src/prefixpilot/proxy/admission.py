"""Holds requests that come close together for a few milliseconds, so that they can be planned as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Timer(Protocol):
    """What ``call_later`` gives."""

    def cancel(self) -> None: ...


class CallLater(Protocol):
    """``loop.call_later``."""

    def __call__(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


def _loop_call_later(delay: float, callback: Callable[[], object]) -> Timer:
    return asyncio.get_running_loop().call_later(delay, callback)


class _Held(NamedTuple):
    item: Any
    released: asyncio.Future[Any]


class AdmissionWindow(Generic[Item, Result]):
    """A gate that stands open while one request is under way, and lets the others through in batches.

    * A request is held only if another is under way, so a lone one never waits.
    * The window opens with the first request that is held and closes ``window_s`` later, whoever else comes meanwhile:
      no request waits longer than that and the planning of one batch. It closes at once when ``max_held`` are held.
    * All that are held then go, in the planned order: nobody is passed over.
    * What a client gives up on leaves the batch.

    Args:
        window_s: how long a request may be held; 0 holds none.
        plan: items of a batch, in order of arrival, to the order in which to go on and what each is told. It should not
            raise; whoever it has told nothing by its end goes on with ``None`` in any case.
        call_later: the clock.

    For one event loop.
    """

    def __init__(
        self,
        window_s: float,
        max_held: int,
        plan: Callable[[Sequence[Item]], Sequence[tuple[Item, Result | None]]],
        call_later: CallLater = _loop_call_later,
    ) -> None:
        self._window_s = window_s
        self._max_held = max_held
        self._plan = plan
        self._call_later = call_later
        self._under_way = 0
        self._held: list[_Held] = []
        self._timer: Timer | None = None

    @property
    def held(self) -> int:
        """How many wait now."""
        return len(self._held)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Within it one more request is under way, held or at the engine."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    async def admit(self, item: Item) -> Result | None:
        """Wait for the window to close, inside :meth:`under_way`; what the plan says of ``item``, if it was held."""
        if self._window_s <= 0 or self._under_way <= 1:
            return None
        held = _Held(item, asyncio.get_running_loop().create_future())
        self._held.append(held)
        if len(self._held) >= self._max_held:
            self._close()
        elif self._timer is None:
            self._timer = self._call_later(self._window_s, self._close)
        try:
            result: Result | None = await held.released
        finally:
            self._held = [other for other in self._held if other is not held]
        return result

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._held = [held for held in self._held if not held.released.done()], []
        left = {id(held.item): held for held in batch}
        try:
            if len(batch) > 1:
                for item, result in self._plan([held.item for held in batch]):
                    left.pop(id(item)).released.set_result(result)
        finally:
            for held in left.values():
                held.released.set_result(None)
