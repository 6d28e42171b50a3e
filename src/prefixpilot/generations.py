"""A bounded cache of what is used again: in two generations, by size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from prefixpilot.errors import InvariantError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Generations(Generic[K, V]):
    """Values by key, bounded by what ``size`` says of them. ``get`` and ``put`` O(1); threads may share it.

    What is used goes to the newer generation; when that has half of the bound, the older one is forgotten and the newer
    takes its place. So a use is one look-up, and what was used lately, up to half of the bound, is known.

    Attributes:
        newer: what was used lately. To look here first, and to call ``get`` for what is not here, saves a call.

    Args:
        max_size: of all values together. One that has more than half of it is not kept.
        size: of a value; always the same of the same value.
    """

    def __init__(self, max_size: int, size: Callable[[V], int]) -> None:
        self._most = max_size // 2
        self._size_of = size
        self._lock = Lock()
        self.newer: dict[K, V] = {}
        self._older: dict[K, V] = {}
        self._newer_size = 0
        self._older_size = 0

    def __len__(self) -> int:
        return len(self.newer) + len(self._older)

    @property
    def size(self) -> int:
        """Of all that is kept."""
        return self._newer_size + self._older_size

    def get(self, key: K) -> V | None:
        """The value of a key, if it is kept."""
        found = self.newer.get(key)
        return self._used_again(key) if found is None else found

    def put(self, key: K, value: V) -> None:
        """Keep a value; one of the same key makes room for it."""
        size = self._size_of(value)
        if size > self._most:
            return
        with self._lock:
            self._forget(key)
            if self._newer_size + size > self._most:
                self._older, self._older_size = self.newer, self._newer_size
                self.newer, self._newer_size = {}, 0
            self.newer[key] = value
            self._newer_size += size

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.newer, self._newer_size = {}, 0
            self._older, self._older_size = {}, 0

    def _used_again(self, key: K) -> V | None:
        found = self._older.get(key)
        if found is not None:
            self.put(key, found)
        return found

    def _forget(self, key: K) -> None:
        if (before := self.newer.pop(key, None)) is not None:
            self._newer_size -= self._size_of(before)
        elif (before := self._older.pop(key, None)) is not None:
            self._older_size -= self._size_of(before)

    def check_invariants(self) -> None:
        """Raises InvariantError: a generation is too large, a size is wrong, or a key is in both. O(everything)."""
        with self._lock:
            for held, size in ((self.newer, self._newer_size), (self._older, self._older_size)):
                if size > self._most or size != sum(map(self._size_of, held.values())):
                    raise InvariantError(f"a generation of {len(held)} values is taken for {size} of {self._most}")
            if not self.newer.keys().isdisjoint(self._older):
                raise InvariantError("a value is in both generations")
