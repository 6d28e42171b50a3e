"""Who takes the passes over a log: processes side by side, or this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

_POLL_S: Final = 0.2
_CANCELLED: Final = -(1 << 62)
"""In the place of the bytes that were read: a pass that sees it ends."""

T = TypeVar("T")
OnBytes = Callable[[int], object]
Pass = Callable[[OnBytes], T]
"""A piece of work that tells how many bytes it has read. For other processes it must be picklable."""


class Workers(Protocol):
    """Takes passes, and tells how far all of them are.

    Attributes:
        several: passes run side by side.
    """

    several: bool

    def submit(self, work: Pass[T]) -> Future[T]:
        """Begin a pass."""
        ...

    def results(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """Wait for passes. Raises what one of them raised."""
        ...


@contextmanager
def workers(path: str, processes: int | None, tell: Callable[[float], object]) -> Iterator[Workers]:
    """Workers for passes over one file.

    Args:
        processes: 1 works in this process; ``None``: one a core.
        tell: told which share of the passes submitted so far is done.
    """
    count = processes or os.cpu_count() or 1
    size = max(1, Path(path).stat().st_size) if Path(path).is_file() else 1
    if count == 1:
        yield _Here(size, tell)
        return
    context = get_context("spawn")
    read = context.Value("q", 0)
    with ProcessPoolExecutor(count, context, _begin, (read,)) as pool:
        try:
            yield _Beside(size, tell, pool, read)
        except BaseException:
            read.value = _CANCELLED
            pool.shutdown(cancel_futures=True)
            raise


class _Here:
    several = False

    def __init__(self, size: int, tell: Callable[[float], object]) -> None:
        self._size, self._tell = size, tell
        self._read = self._passes = 0

    def submit(self, work: Pass[T]) -> Future[T]:
        self._passes += 1
        done: Future[T] = Future()
        done.set_result(work(self._add))
        return done

    def results(self, futures: Sequence[Future[Any]]) -> list[Any]:
        return [future.result() for future in futures]

    def _add(self, count: int) -> None:
        self._read += count
        self._tell(min(1.0, self._read / (self._size * self._passes)))


class _Beside:
    several = True

    def __init__(self, size: int, tell: Callable[[float], object], pool: ProcessPoolExecutor, read: Any) -> None:
        self._size, self._tell, self._pool, self._read = size, tell, pool, read
        self._passes = 0

    def submit(self, work: Pass[T]) -> Future[T]:
        self._passes += 1
        return self._pool.submit(_run, work)

    def results(self, futures: Sequence[Future[Any]]) -> list[Any]:
        pending = set(futures)
        while pending:
            _, pending = wait(pending, timeout=_POLL_S)
            self._tell(min(1.0, self._read.value / (self._size * self._passes)))
        return [future.result() for future in futures]


class _Process:
    """One of the processes: bytes that were read go to what all of them share."""

    read: Any = None


def _begin(read: Any) -> None:
    _Process.read = read


def _run(work: Pass[T]) -> T:
    return work(_add)


def _add(count: int) -> None:
    with _Process.read.get_lock():
        if _Process.read.value < 0:
            raise InterruptedError("the analysis was given up")
        _Process.read.value += count
