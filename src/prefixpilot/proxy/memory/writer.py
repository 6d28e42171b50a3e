"""Keeps what a ledger tells: one thread writes it to the store, many changes a commit; another one reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import time
from typing import Any, Final, Protocol

from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.journal import Erased
from prefixpilot.proxy.memory.keeping import Keeping
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.store import Erase, Save, Store

MAX_WAITING: Final = 4096
"""Changes that wait to be written; past it further ones are not kept, and counted."""
MAX_A_COMMIT: Final = 256
CHECK_S: Final = 1.0
"""So often it is looked whether the files are still there."""
SWEEP_S: Final = 60.0
CLOSE_S: Final = 10.0

log = logging.getLogger(__name__)


class Attempt(Protocol):
    """Runs an action; what it returns, or something else if it raised (``Pipeline.attempt``)."""

    def __call__(self, step: str, action: Callable[[], Any], /) -> Any: ...


def bare(step: str, action: Callable[[], Any], /) -> Any:
    """An attempt that lets errors pass."""
    return action()


@dataclass(slots=True)
class _Batch:
    """Changes that are committed together. ``done``: true once they are, false if that failed."""

    changes: list[Save | Erase] = field(default_factory=list)
    done: Future[bool] = field(default_factory=Future)
    places: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def add(self, change: Save | Erase) -> None:
        """Behind all others. A turn is saved as it is when it is written, so one that waits already waits once."""
        if isinstance(change, Erase):
            self.places.clear()
        else:
            place = self.places.setdefault((change.key, id(change.turn)), len(self.changes))
            if place < len(self.changes):
                self.changes[place] = change
                return
        self.changes.append(change)


class StoreWriter:
    """A journal on a store. No call waits for the disk but ``close``; thread-safe.

    Errors of the disk are logged when they begin and when they end, and counted; meanwhile ``healthy`` is false, and
    the ledger goes on in memory. A turn that could not be written is written with the next turn of its branch.
    If the files are gone, or are others, the directory is opened anew, until that succeeds.

    Args:
        clock: unix seconds.
        attempt: around each commit: the end of an error of ours.
        on_unsaved: called with how many changes were not kept, in any thread.
        on_lost: called with how many conversations had to go, in any thread.
    """

    def __init__(
        self,
        store: Keeping,
        *,
        clock: Callable[[], float] = time,
        attempt: Attempt = bare,
        on_unsaved: Callable[[int], object] = lambda count: None,
        on_lost: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._attempt = attempt
        self._on_unsaved = on_unsaved
        self._on_lost = on_lost
        self._keys = store.keys()
        self._gone = store.gone()
        self._first_sent: int = store.last_sent()
        self._size: int = store.size
        self._healthy = True
        self._closing = False
        self._closed = False
        self._idle = 0
        self._something = threading.Condition()
        self._waiting: list[_Batch] = []
        self._last: Future[bool] = resolved(True)
        self._reader = ThreadPoolExecutor(1, "prefixpilot-read")
        self._thread = threading.Thread(target=self._run, name="prefixpilot-store", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        max_bytes: int,
        max_turns: int,
        ttl: float,
        *,
        clock: Callable[[], float] = time,
        attempt: Attempt = bare,
        on_unsaved: Callable[[int], object] = lambda count: None,
        on_lost: Callable[[int], object] = lambda count: None,
    ) -> StoreWriter:
        """A writer of the store in a directory. Raises ConfigError as :meth:`Store.open`."""
        store = Store.open(directory, max_bytes, max_turns, ttl)
        return cls(store, clock=clock, attempt=attempt, on_unsaved=on_unsaved, on_lost=on_lost)

    # -- the journal

    def save(self, key: LedgerKey, turn: Turn, used: float) -> None:
        """See :class:`~prefixpilot.proxy.memory.journal.Journal`."""
        digest = key.digest
        with self._something:
            if self._put(Save(digest, turn, used)):
                self._keys.add(digest)
                self._gone.discard(digest)

    def erase(self, key: LedgerKey) -> Erased:
        """See :class:`~prefixpilot.proxy.memory.journal.Journal`."""
        digest = key.digest
        with self._something:
            known = digest in self._keys
            if not known and digest not in self._gone:
                return Erased(False, resolved(True))
            if not self._put(Erase(digest, known)):
                return Erased(known, resolved(False))
            self._keys.discard(digest)
            self._gone.discard(digest)
            return Erased(known, self._last)

    def erase_all(self) -> Erased:
        """See :class:`~prefixpilot.proxy.memory.journal.Journal`. One commit, however many there are."""
        with self._something:
            known = bool(self._keys)
            if not known and not self._gone:
                return Erased(False, resolved(True))
            if self._closing:
                return Erased(known, resolved(False))
            batch = _Batch()
            batch.changes.extend(Erase(digest, digest in self._keys) for digest in sorted(self._keys | self._gone))
            self._waiting.append(batch)
            self._last = batch.done
            self._keys.clear()
            self._gone.clear()
            self._something.notify()
            return Erased(known, batch.done)

    def holds(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation are kept, or under way to it."""
        return key.digest in self._keys

    def lost(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation were kept, and had to go."""
        return key.digest in self._gone

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded, and there is room for another change."""
        return self._healthy

    @property
    def first_sent(self) -> int:
        """The greatest count of sent prompts that was kept when this began."""
        return self._first_sent

    @property
    def size(self) -> int:
        """Bytes in use in the file, at the last commit."""
        return self._size

    def __len__(self) -> int:
        return len(self._keys)

    # -- waiting

    async def settled(self, bound_s: float) -> bool:
        """Wait until all that was saved before is committed. False if it failed, or took longer than that."""
        return await _within(self._last, bound_s)

    def flush(self, bound_s: float) -> bool:
        """The same for threads that may wait."""
        try:
            return self._last.result(bound_s)
        except TimeoutError:
            return False

    def read(self, key: LedgerKey) -> list[Turn]:
        """What is committed of a conversation. Waits for the disk. Raises StoreError: it cannot be read."""
        return self._store.load(key.digest, self._clock())

    async def load(self, key: LedgerKey, bound_s: float) -> list[Turn]:
        """The turns that are kept of a conversation, what was saved before included.

        Raises:
            StoreError: they could not be read within ``bound_s`` seconds.
        """
        await self.settled(bound_s)
        reading = self._reader.submit(self.read, key)
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.wrap_future(reading)
        except TimeoutError:
            raise StoreError(f"a conversation was not read within {bound_s:g} s") from None

    def close(self) -> None:
        """Write what waits, and close the file. Waits at most ``CLOSE_S`` seconds for that."""
        with self._something:
            self._closing = True
            self._something.notify()
        self._thread.join(CLOSE_S)
        self._reader.shutdown(wait=True, cancel_futures=True)
        if not self._thread.is_alive():
            self._store.close()

    # -- the thread

    def _put(self, change: Save | Erase) -> bool:
        """Under the lock. Whether it waits to be written now."""
        if self._closing or sum(len(batch.changes) for batch in self._waiting) >= MAX_WAITING:
            if self._healthy:
                log.error("conversations are kept in memory only: %d changes wait to be written", MAX_WAITING)
            self._fail(1)
            return False
        if not self._waiting or len(self._waiting[-1].changes) >= MAX_A_COMMIT:
            self._waiting.append(_Batch())
            self._last = self._waiting[-1].done
            self._something.notify()
        self._waiting[-1].add(change)
        return True

    def _take(self) -> _Batch | None:
        """The next batch; an empty one when it is time to look at the files; ``None`` at the end."""
        with self._something:
            if not self._waiting and not self._closing:
                self._something.wait(CHECK_S)
            if self._waiting:
                return self._waiting.pop(0)
            return None if self._closing else _Batch()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            written = False
            try:
                written = self._attempt("store", partial(self._write, batch)) is True
            finally:
                if not written:
                    self._fail(len(batch.changes))
                    self._not_erased(change for change in batch.changes if isinstance(change, Erase))
                batch.done.set_result(written)

    def _write(self, batch: _Batch) -> bool:
        try:
            opened = self._ensure_open(batch)
            went = self._commit(batch) if batch.changes or self._is_time_to_sweep() else None
        except StoreError as error:
            if self._healthy:
                log.error("conversations are kept in memory only until their store takes them again: %s", error)
            return False
        if went:
            self._forget(went)
        if not self._healthy and (opened or went is not None):
            self._healthy = True
            log.warning("conversations are kept in their store again")
        return True

    def _commit(self, batch: _Batch) -> list[bytes]:
        """Write; the keys of conversations that had to make room. Raises StoreError."""
        if batch.changes:
            self._store.apply(batch.changes)
        went = self._store.trim(self._clock())
        if any(isinstance(change, Erase) for change in batch.changes):
            self._store.empty_log()
        self._size = self._store.size
        return went

    def _is_time_to_sweep(self) -> bool:
        self._idle += 1
        if self._idle * CHECK_S < SWEEP_S:
            return False
        self._idle = 0
        return True

    def _ensure_open(self, batch: _Batch) -> bool:
        """Open the directory anew if its files are not those that are open; whether that was done.

        Raises:
            StoreError: it cannot be opened now.
        """
        if not self._closed:
            try:
                self._store.check()
            except StoreError as error:
                log.error("the store of conversations is opened anew: %s", error)
            else:
                return False
            self._close_in_reader()
        self._store.reopen()
        self._closed = False
        self._begin_anew(batch)
        return True

    def _close_in_reader(self) -> None:
        """Let the files go in the thread that reads, between two reads. Raises StoreError."""
        closing = self._reader.submit(self._store.close)
        try:
            closing.result(CLOSE_S)
        except (TimeoutError, RuntimeError) as error:
            raise StoreError(f"a read from it does not end ({type(error).__name__})") from error
        self._closed = True

    def _begin_anew(self, batch: _Batch) -> None:
        """What was kept is what the files hold now. What waits is written with all that stands before it."""
        with self._something:
            waits = _by_key([batch, *self._waiting])
            kept = {key for key in self._store.keys() | set(waits) if waits.get(key, True)}
            lost = {key for key in self._keys - kept if key not in waits}
            self._gone = (self._gone | self._store.gone() | lost) - set(waits)
            self._keys = kept
        self._on_lost(len(lost))

    def _forget(self, keys: list[bytes]) -> None:
        with self._something:
            waits = _by_key(self._waiting)
            lost = [key for key in keys if key not in waits]
            self._gone.update(lost)  # first: at no moment it is neither kept nor gone
            self._keys.difference_update(lost)
        self._on_lost(len(lost))

    def _not_erased(self, changes: Iterable[Erase]) -> None:
        """They are on the disk as they were."""
        with self._something:
            for change in changes:
                (self._keys if change.kept else self._gone).add(change.key)

    def _fail(self, count: int) -> None:
        self._on_unsaved(count)
        self._healthy = False


def _by_key(batches: Iterable[_Batch]) -> dict[bytes, bool]:
    """The conversations that wait: whether each will be kept once all is written."""
    return {change.key: isinstance(change, Save) for batch in batches for change in batch.changes}


async def _within(done: Future[bool], bound_s: float) -> bool:
    """What ``done`` comes to; false if that takes longer. With less around it than ``asyncio.wrap_future`` has: each
    turn of each conversation waits here."""
    if done.done():
        return done.result()
    loop = asyncio.get_running_loop()
    known: asyncio.Future[bool] = loop.create_future()

    def know(value: bool) -> None:
        if not known.done():
            known.set_result(value)

    def tell(finished: Future[bool]) -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(know, finished.result())

    done.add_done_callback(tell)
    bound = loop.call_later(bound_s, know, False)
    try:
        return await known
    finally:
        bound.cancel()


def resolved(value: bool) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(value)
    return future
