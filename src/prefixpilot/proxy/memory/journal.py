"""What a ledger tells of its turns to whoever keeps them beyond the process, and asks of what is kept."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol

from prefixpilot.proxy.memory.records import LedgerKey, Turn


class Erased(NamedTuple):
    """What became of a conversation that is to be deleted.

    Attributes:
        known: it was kept.
        done: resolves once it is gone from the disk: true, or false if that failed.
    """

    known: bool
    done: Future[bool]


class Journal(Protocol):
    """Keeps turns. No method blocks or raises: what cannot be kept is counted and told by ``healthy``."""

    def save(self, key: LedgerKey, turn: Turn, used: float) -> None:
        """Keep a turn, and all its ancestors that are not kept yet; of a kept turn, its replies and when it was sent.

        Args:
            used: unix seconds.
        """
        ...

    def erase(self, key: LedgerKey) -> Erased:
        """Forget a conversation. What was saved of it before is gone when that is done."""
        ...

    def erase_all(self) -> Erased:
        """Forget all conversations. What was saved before is gone when that is done."""
        ...

    def holds(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation are kept, or under way to it."""
        ...

    def lost(self, key: LedgerKey) -> bool:
        """Whether turns of this conversation were kept, and had to go."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether what is saved now will be kept, as far as is known."""
        ...


class _NoJournal:
    """Keeps nothing: the ledger's memory is all there is."""

    healthy = True

    def save(self, key: LedgerKey, turn: Turn, used: float) -> None:
        """Nothing."""

    def erase(self, key: LedgerKey) -> Erased:
        """Nothing was kept."""
        done: Future[bool] = Future()
        done.set_result(True)
        return Erased(False, done)

    def erase_all(self) -> Erased:
        """Nothing was kept."""
        done: Future[bool] = Future()
        done.set_result(True)
        return Erased(False, done)

    def holds(self, key: LedgerKey) -> bool:
        """No."""
        return False

    def lost(self, key: LedgerKey) -> bool:
        """No."""
        return False


NO_JOURNAL: Final[Journal] = _NoJournal()
