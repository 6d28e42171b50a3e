"""One lock around what all requests share, so that a large request can be worked on in a thread of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _Guarded:
    """Passes every call and every attribute on, under the lock."""

    def __init__(self, target: Any, lock: RLock) -> None:
        self._target = target
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            value = getattr(self._target, name)
        if not callable(value):
            return value
        locked = self._locked(value)
        if callable(getattr(type(self._target), name, None)):  # a method, not what somebody may set anew
            vars(self)[name] = locked
        return locked

    def __len__(self) -> int:
        with self._lock:
            return len(self._target)

    def __contains__(self, item: object) -> bool:
        with self._lock:
            return item in self._target

    def _locked(self, method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> T:
            with self._lock:
                return method(*args, **kwargs)

        return call


def guarded(target: T, lock: RLock) -> T:
    """``target``, whose methods run one at a time with those of all others that have the same lock.

    Each call is short (a plan of at most ``max_request_blocks`` blocks, a look into the ledger): what grows with the
    bytes of a request, reading it, hashing it and writing it, happens outside.
    """
    return cast(T, _Guarded(target, lock))
