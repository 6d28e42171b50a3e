"""Conversations on disk, bounded: which rows stand for what, and which go first.

::

    conversations   key (a hash) | used: unix seconds
    turns           conversation | identity | parent | sent | data, replies: JSON | pieces: its own texts, ids of shared
    texts           hash | text | refs: how many pieces show it
    gone            key of a conversation that had to go | when
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.proxy.escaping import dumped
from prefixpilot.proxy.memory.codec import KeptTurn, Piece, kept, read, replies_of
from prefixpilot.proxy.memory.database import Database, StoreError
from prefixpilot.proxy.memory.records import Turn

SCHEMA_VERSION: Final = 1
LOW_WATER: Final = 0.9
"""Share of the bound that is left when conversations had to go."""
MAX_GONE: Final = 100_000
_AT_A_TIME: Final = 16
_NAMES_AT_A_TIME: Final = 64

_TABLES: Final = """
CREATE TABLE conversations (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, used REAL NOT NULL);
CREATE INDEX conversations_used ON conversations (used);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL, identity BLOB NOT NULL, parent INTEGER,
    sent INTEGER NOT NULL, data TEXT NOT NULL, replies TEXT NOT NULL, pieces TEXT NOT NULL,
    UNIQUE (conversation, identity)
);
CREATE INDEX turns_parent ON turns (parent);
CREATE TABLE texts (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, text BLOB NOT NULL, refs INTEGER NOT NULL);
CREATE TABLE gone (key BLOB PRIMARY KEY, at REAL NOT NULL);
"""


class Save(NamedTuple):
    """Keep a turn and its ancestors; ``key`` is that of the conversation, ``used`` unix seconds."""

    key: bytes
    turn: Turn
    used: float


class Erase(NamedTuple):
    """Forget a conversation, and that it had to go if it had. ``kept``: turns of it are kept."""

    key: bytes
    kept: bool = True


class Store:
    """What a ledger told, in a database. All calls block; one thread at a time, but for :meth:`load`.

    Args:
        max_bytes: in use in the file. Past it the conversations used longest ago go, as a whole.
        max_turns: of one conversation; past it the branches sent longest ago go.
        ttl: seconds after its last use in which a conversation is kept.

    Every method raises StoreError for what the disk does not do.
    """

    def __init__(self, database: Database, max_bytes: int, max_turns: int, ttl: float) -> None:
        self.database = database
        self._max_bytes = max_bytes
        self._max_turns = max_turns
        self._ttl = ttl

    @classmethod
    def open(cls, directory: Path, max_bytes: int, max_turns: int, ttl: float) -> Store:
        """The store in a directory. Raises ConfigError as :meth:`Database.open`."""
        return cls(Database.open(directory, _TABLES, SCHEMA_VERSION), max_bytes, max_turns, ttl)

    def reopen(self) -> None:
        """Go on with what the directory holds now, which is made anew if it is gone. The store must be closed.

        Raises:
            StoreError: the directory cannot be used now.
        """
        try:
            self.database = Database.open(self.database.directory, _TABLES, SCHEMA_VERSION)
        except ConfigError as error:
            raise StoreError(error.reason) from error

    def close(self) -> None:
        """Let the file go."""
        self.database.close()

    def check(self) -> None:
        """See :meth:`Database.check`."""
        self.database.check()

    def empty_log(self) -> None:
        """See :meth:`Database.empty_log`."""
        self.database.empty_log()

    @property
    def size(self) -> int:
        """Bytes in use in the file."""
        return self.database.size

    # -- read

    def keys(self) -> set[bytes]:
        """Of all conversations."""
        return {key for (key,) in self.database.ask("SELECT key FROM conversations")}

    def gone(self) -> set[bytes]:
        """Keys of the last conversations that had to go."""
        return {key for (key,) in self.database.ask("SELECT key FROM gone")}

    def last_sent(self) -> int:
        """The greatest count of sent prompts that a turn has."""
        return int(self.database.ask("SELECT coalesce(max(sent), 0) FROM turns")[0][0])

    def load(self, key: bytes, now: float) -> list[Turn]:
        """The turns of a conversation, parents before their children; none if it is not kept or has expired.

        For a thread of its own.
        """
        rows = self.database.read(
            "SELECT t.id, t.identity, t.parent, t.sent, t.data, t.replies, t.pieces FROM turns t"
            " JOIN conversations c ON c.id = t.conversation WHERE c.key = ? AND c.used >= ? ORDER BY t.id",
            key,
            now - self._ttl,
        )
        turns: dict[int, Turn] = {}
        try:
            for number, identity, parent, sent, data, replies, pieces in rows:
                above = None if parent is None else turns[parent]
                name = None if above is None else above.identity
                row = KeptTurn(identity, name, data, replies, sent, tuple(self._pieces(pieces)))
                turns[number] = read(row, above)
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(f"a kept conversation cannot be read ({type(error).__name__}: {error})") from error
        spread_sent(turns.values())
        return list(turns.values())

    def _pieces(self, pieces: str) -> Iterator[Piece]:
        for piece in json.loads(pieces):
            if isinstance(piece, str):
                yield Piece(piece)
            else:
                found = self.database.read("SELECT text FROM texts WHERE id = ?", piece)
                yield Piece(found[0][0].decode("utf-8", "surrogatepass"))

    # -- write

    def apply(self, changes: Iterable[Save | Erase]) -> None:
        """All changes in one transaction: none of them if one fails."""
        with self.database.transaction():
            for change in changes:
                if isinstance(change, Save):
                    self._save(change)
                else:
                    self._erase([change.key])

    def trim(self, now: float) -> list[bytes]:
        """Let conversations go that have expired, or are too many bytes; the keys of those that went."""
        went = self._let_go("WHERE used < ?", now - self._ttl, at=now)
        if self.database.size > self._max_bytes:
            while self.database.size > self._max_bytes * LOW_WATER:
                oldest = self._let_go("ORDER BY used, id LIMIT ?", _AT_A_TIME, at=now)
                if not oldest:
                    break
                went += oldest
        return went

    def _let_go(self, which: str, *values: Any, at: float) -> list[bytes]:
        keys = [key for (key,) in self.database.ask(f"SELECT key FROM conversations {which}", *values)]
        if keys:
            with self.database.transaction():
                self._erase(keys)
                self.database.change_each("INSERT OR REPLACE INTO gone VALUES (?, ?)", ((key, at) for key in keys))
                last = "SELECT key FROM gone ORDER BY at DESC, key LIMIT ?"
                self.database.change(f"DELETE FROM gone WHERE key NOT IN ({last})", MAX_GONE)
        return keys

    def _save(self, change: Save) -> None:
        conversation = self._conversation(change.key, change.used)
        known = self._known(conversation, change.turn)
        path = change.turn.path()
        parent: int | None = None
        for turn in path:
            number = known.get(turn.identity)
            parent = self._insert(conversation, turn, parent) if number is None else number
        if path[-1].identity in known:
            self.database.change(
                "UPDATE turns SET replies = ?, sent = max(sent, ?) WHERE id = ?",
                replies_of(change.turn),
                change.turn.last_sent,
                parent,
            )
        else:
            self._prune(conversation, path)

    def _conversation(self, key: bytes, used: float) -> int:
        """The number of a conversation that is used now; one that had expired before begins anew."""
        found = self.database.ask("SELECT id, used FROM conversations WHERE key = ?", key)
        if found and found[0][1] >= used - self._ttl:
            number, before = found[0]
            if before < used:
                self.database.change("UPDATE conversations SET used = ? WHERE id = ?", used, number)
            return int(number)
        if found:
            self._erase([key])
        self.database.change("DELETE FROM gone WHERE key = ?", key)
        return self.database.change("INSERT INTO conversations (key, used) VALUES (?, ?)", key, used)

    def _known(self, conversation: int, turn: Turn) -> dict[bytes, int]:
        """The numbers of the turns of a branch that are kept. O(1) if they are all but the last, as nearly always."""
        which = "SELECT identity, id FROM turns WHERE conversation = ?"
        if turn.parent is None:
            return dict(self.database.ask(f"{which} AND identity = ?", conversation, turn.identity))
        names = turn.identity, turn.parent.identity
        known: dict[bytes, int] = dict(self.database.ask(f"{which} AND identity IN (?, ?)", conversation, *names))
        if turn.parent.identity in known:  # then its ancestors are; their numbers are not asked for
            return dict.fromkeys((above.identity for above in turn.parent.path()), 0) | known
        return dict(self.database.ask(which, conversation))

    def _insert(self, conversation: int, turn: Turn, parent: int | None) -> int:
        row = kept(turn)
        number = self._share([piece for piece in row.pieces if piece.shared])
        pieces = dumped([number[piece.name] if piece.shared else piece.text for piece in row.pieces])
        return self.database.change(
            "INSERT INTO turns (conversation, identity, parent, sent, data, replies, pieces)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(conversation, row.identity, parent, row.sent, row.data, row.replies, pieces),
        )

    def _share(self, pieces: Sequence[Piece]) -> dict[bytes, int]:
        """The number of each text, by name; those that are not kept yet are kept now."""
        shown = Counter(piece.name for piece in pieces)
        number = self._numbers(list(shown))
        known = [(shown[name], at) for name, at in number.items()]
        self.database.change_each("UPDATE texts SET refs = refs + ? WHERE id = ?", known)
        new = {piece.name: piece.text for piece in pieces if piece.name not in number}
        if new:
            first = 1 + self.database.ask("SELECT coalesce(max(id), 0) FROM texts")[0][0]
            number |= dict(zip(new, count(first)))
            rows = ((number[name], name, _bytes(text), shown[name]) for name, text in new.items())
            self.database.change_each("INSERT INTO texts (id, hash, text, refs) VALUES (?, ?, ?, ?)", rows)
        return number

    def _numbers(self, names: Sequence[bytes]) -> dict[bytes, int]:
        """Of those texts that are kept."""
        number: dict[bytes, int] = {}
        for at in range(0, len(names), _NAMES_AT_A_TIME):
            asked = names[at : at + _NAMES_AT_A_TIME]
            marks = ", ".join("?" * len(asked))
            number |= dict(self.database.ask(f"SELECT hash, id FROM texts WHERE hash IN ({marks})", *asked))
        return number

    def _prune(self, conversation: int, path: Sequence[Turn]) -> None:
        """Forget the branches sent longest ago of a conversation that has too many turns."""
        count = self.database.ask("SELECT count(*) FROM turns WHERE conversation = ?", conversation)[0][0]
        while count > self._max_turns:
            leaves = self.database.ask(
                "SELECT id, pieces, identity FROM turns t WHERE conversation = ?"
                " AND NOT EXISTS (SELECT 1 FROM turns c WHERE c.parent = t.id) ORDER BY sent, id LIMIT 2",
                conversation,
            )
            spare = next(((number, pieces) for number, pieces, name in leaves if name != path[-1].identity), None)
            if spare is None:
                return
            self._remove([spare])
            count -= 1

    def _erase(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            found = self.database.ask("SELECT id FROM conversations WHERE key = ?", key)
            self.database.change("DELETE FROM gone WHERE key = ?", key)
            for (conversation,) in found:
                self._remove(self.database.ask("SELECT id, pieces FROM turns WHERE conversation = ?", conversation))
                self.database.change("DELETE FROM conversations WHERE id = ?", conversation)

    def _remove(self, turns: Iterable[tuple[Any, ...]]) -> None:
        for number, pieces in turns:
            shared = [(piece,) for piece in json.loads(pieces) if not isinstance(piece, str)]
            self.database.change_each("UPDATE texts SET refs = refs - 1 WHERE id = ?", shared)
            self.database.change_each("DELETE FROM texts WHERE id = ? AND refs < 1", shared)
            self.database.change("DELETE FROM turns WHERE id = ?", number)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the file is damaged, a parent is missing, or a text is miscounted."""
        if self.database.damage is not None:
            raise InvariantError(self.database.damage)
        turns = self.database.ask("SELECT id, parent, conversation, pieces FROM turns")
        of = {number: conversation for number, _, conversation, _ in turns}
        if any(parent is not None and of.get(parent) != conversation for _, parent, conversation, _ in turns):
            raise InvariantError("a turn without its parent")
        if set(of.values()) != {number for (number,) in self.database.ask("SELECT id FROM conversations")}:
            raise InvariantError("conversations and turns do not fit")
        counted: dict[int, int] = {}
        for piece in (piece for *_, pieces in turns for piece in json.loads(pieces) if not isinstance(piece, str)):
            counted[piece] = counted.get(piece, 0) + 1
        if counted != dict(self.database.ask("SELECT id, refs FROM texts")):
            raise InvariantError("a text is miscounted")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def spread_sent(turns: Iterable[Turn]) -> None:
    """An ancestor was sent when its descendants were; kept is only when each turn was the last of its branch."""
    for turn in reversed(list(turns)):
        if turn.parent is not None:
            turn.parent.last_sent = max(turn.parent.last_sent, turn.last_sent)
