"""One SQLite file in a directory of its own, in WAL mode. The only file that imports ``sqlite3``.

::

    DIR/conversations.db   0600   -wal and -shm beside it, by SQLite, with the same mode
    DIR/lock.db            0600   held while a process uses the directory; let go by the system, however that ends

A commit survives the end of the process, however it comes (``synchronous=NORMAL``: a power cut may take the last ones,
never the file). What is deleted is overwritten (``secure_delete``).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from prefixpilot.errors import ConfigError, PrefixPilotError

FILE: Final = "conversations.db"
LOCK: Final = "lock.db"
APPLICATION_ID: Final = 0x50504C54
CHECKED_BYTES: Final = 256 << 20
"""A file up to this size is checked as a whole when it is opened: some 1 s for each GB."""
LOG_BYTES: Final = 16 << 20
"""To which SQLite's log is cut after it was larger."""
BUSY_S: Final = 5.0

Rows = list[tuple[Any, ...]]


class StoreError(PrefixPilotError, RuntimeError):
    """The file cannot be read or written now: full, damaged, read-only."""


class Database:
    """Two connections to the file: one for a thread that writes, one for another that only reads.

    Every method but ``close`` raises StoreError for what SQLite cannot do.
    """

    def __init__(self, path: Path, lock: sqlite3.Connection, tables: str, version: int) -> None:
        self.directory = path.parent
        self._lock = lock
        self._db = _connect(path)
        try:
            _prepare(self._db, tables, version)
            self._page_bytes = int(self._db.execute("PRAGMA page_size").fetchone()[0])
            self._reading = _connect(path)
            self._files = self._found()
        except BaseException:
            self._db.close()
            raise

    def check(self) -> None:
        """Look whether the directory still holds the files that are open: SQLite goes on writing to one that has been
        removed, and nobody would find it again.

        Raises:
            StoreError: one is gone, or is another file, or may not be written any more.
        """
        found = self._found()
        for name, opened in self._files.items():
            if found[name] != opened:
                gone = "is gone" if found[name] is None else "is another file than the one that was opened"
                raise StoreError(f"{self.directory / name} {gone}")
        for path in (self.directory, self.directory / FILE):
            if not os.access(path, os.W_OK):
                raise StoreError(f"{path} may not be written")

    def _found(self) -> dict[str, tuple[int, int] | None]:
        """Device and inode of each file in the directory; ``None``: there is none of that name."""
        return {name: _identity(self.directory / name) for name in (FILE, LOCK, f"{FILE}-wal")}

    @classmethod
    def open(cls, directory: Path, tables: str, version: int) -> Database:
        """The file in a directory, which is made with mode 0700 if it is not there.

        Args:
            tables: SQL that makes them in a new file.
            version: of these tables.

        Raises:
            ConfigError: it cannot be used: no rights, in use by another process, damaged, other tables, other content.
        """
        remedy = "choose another directory, or leave --state-dir out to keep conversations in memory only"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _locked(directory / LOCK)
            try:
                _touch(directory / FILE)
                return cls(directory / FILE, lock, tables, version)
            except BaseException:
                lock.close()
                raise
        except OSError as error:
            raise ConfigError("state_dir", f"{directory} cannot be used ({error.strerror})", remedy) from error
        except sqlite3.Error as error:
            reason = f"{directory / FILE} cannot be used ({error})"
            raise ConfigError("state_dir", reason, f"move it away, or {remedy}") from error

    def close(self) -> None:
        """Write SQLite's log into the file, and let the directory go."""
        for connection in (self._reading, self._db, self._lock):
            connection.close()

    def read(self, question: str, *values: Any) -> Rows:
        """Ask in the thread that reads: what was committed."""
        try:
            return self._reading.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def ask(self, question: str, *values: Any) -> Rows:
        """Ask in the thread that writes."""
        try:
            return self._db.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def change(self, statement: str, *values: Any) -> int:
        """Change rows; the number of the row that was inserted, if one was."""
        try:
            return self._db.execute(statement, values).lastrowid or 0
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def change_each(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """The same for many."""
        try:
            self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def empty_log(self) -> None:
        """Leave nothing in SQLite's log."""
        self.ask("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def size(self) -> int:
        """Bytes in use in the file."""
        pages, free = (self.ask(f"PRAGMA {it}")[0][0] for it in ("page_count", "freelist_count"))
        return int(pages - free) * self._page_bytes

    @property
    def damage(self) -> str | None:
        """What SQLite finds wrong with the file. O(bytes of the file)."""
        found = self.ask("PRAGMA integrity_check(1)")[0][0]
        return None if found == "ok" else str(found)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _touch(path: Path) -> None:
    """Make a file that only its owner may read, or see to it that an existing one is."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.fchmod(number, 0o600)
    finally:
        os.close(number)


def _locked(path: Path) -> sqlite3.Connection:
    """A connection that holds a file as long as it is open.

    Raises:
        ConfigError: another process has it.
    """
    _touch(path)
    lock = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        reason = f"{path.parent} is in use by another proxy ({error})"
        raise ConfigError("state_dir", reason, "give each proxy a directory of its own") from None
    except BaseException:
        lock.close()
        raise
    return lock


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    wanted = ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", f"journal_size_limit = {LOG_BYTES}")
    try:
        for pragma in wanted:
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, tables: str, version: int) -> None:
    """Make the tables in a new file; check an existing one.

    Raises:
        ConfigError: it is damaged, of another version, or something else.
    """
    asked = ("application_id", "user_version", "page_count", "page_size")
    application, found, pages, page_size = (db.execute(f"PRAGMA {it}").fetchone()[0] for it in asked)
    remedy = "move it away, or choose another directory"
    if application == 0 and found == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
        db.executescript(f"BEGIN; {tables} {pragmas} COMMIT;")
    elif application != APPLICATION_ID:
        raise ConfigError("state_dir", f"its {FILE} was not made by this program", remedy)
    elif found != version:
        reason = f"its {FILE} has the schema {found}, and this version knows {version}"
        raise ConfigError("state_dir", reason, f"use the version that made it, {remedy}")
    elif pages * page_size <= CHECKED_BYTES and db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise ConfigError("state_dir", f"its {FILE} is damaged", remedy)
