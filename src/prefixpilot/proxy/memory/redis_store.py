"""Conversations in Redis or Valkey, shared by several proxies. The only file that imports ``redis``.

::

    {prefixpilot:1}:c:DIGEST   hash: g generation, v version, n turns ever; of each turn o: order, t: parent, data and
                               pieces, r: replies, s: sent; x: texts that turns of it share
    {prefixpilot:1}:used       unix seconds by conversation      :sizes, :bytes   what each holds, and all of them
    {prefixpilot:1}:gone       those that had to go              :deleted         those that a client deleted
    {prefixpilot:1}:store      random: tells this store from one that began anew
    {prefixpilot:1}:sent       greatest count of sent prompts
    {prefixpilot:1}:drained    set of URLs of engines that are out, and "", so that it stays when none is

A generation tells a conversation from one of the same name that was deleted; a version tells whether another proxy has
written to it. What is acknowledged is as safe as the server's own persistence makes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from secrets import token_hex
from threading import Lock
from typing import Any, Final, NamedTuple

from prefixpilot.errors import ConfigError, InvariantError, MissingExtraError
from prefixpilot.proxy.memory.codec import kept, replies_of
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.records import Turn
from prefixpilot.proxy.memory.redis_fields import data_of, pieces_of, row_of, turns_of
from prefixpilot.proxy.memory.redis_scripts import FORGET, INCOMPLETE, SAVE, SAVED
from prefixpilot.proxy.memory.store import LOW_WATER, MAX_GONE, Erase, Save

try:
    import redis
except ImportError:
    raise MissingExtraError("redis", 'pip install "prefixpilot[redis]"') from None

PREFIX: Final = b"{prefixpilot:1}:"
SHARED_KEYS: Final = tuple(
    PREFIX + name for name in (b"used", b"sizes", b"bytes", b"gone", b"store", b"deleted", b"sent")
)
USED, SIZES, BYTES, GONE, STORE, DELETED, SENT = SHARED_KEYS
DRAINED: Final = PREFIX + b"drained"
EVERYTHING: Final = b""
"""Key of an :class:`Erase` that forgets all conversations, of whichever proxy."""
MAX_KNOWN: Final = 100_000
DAY_S: Final = 86_400
ALWAYS: Final = 1e18
"""Past any time of use."""
_AT_A_TIME: Final = 16


class Known(NamedTuple):
    """Of which state of a conversation this proxy knows."""

    generation: bytes
    version: int


class Look(NamedTuple):
    """What the store says of a conversation.

    Attributes:
        kept: turns of it are kept.
        turns: parents before their children; ``None``: as this proxy has them.
        deleted: what this proxy has was deleted by another one.
        gone: turns of it were kept, and had to go.
    """

    kept: bool
    turns: list[Turn] | None = None
    deleted: bool = False
    gone: bool = False


class RedisStore:
    """What ledgers told, in Redis. All calls block, within ``timeout_s``; one thread writes, another looks.

    Args:
        max_bytes: of all conversations, as they are counted here. Past it those used longest ago go, as a whole.
        max_turns: of one conversation; past it the branches sent longest ago go.
        ttl: seconds after its last use in which a conversation is kept.

    Every method raises StoreError for what the server does not do.
    """

    def __init__(
        self, url: str, password: str | None, max_bytes: int, max_turns: int, ttl: float, timeout_s: float
    ) -> None:
        self._client: redis.Redis = redis.Redis.from_url(
            url, password=password, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, protocol=2
        )
        self._save_script = self._client.register_script(SAVE)
        self._forget_script = self._client.register_script(FORGET)
        self._max_bytes = max_bytes
        self._max_turns = max_turns
        self._ttl = ttl
        self._store = b""
        self._lock = Lock()
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    @classmethod
    def open(
        cls, url: str, password: str | None, max_bytes: int, max_turns: int, ttl: float, timeout_s: float
    ) -> RedisStore:
        """The store at a URL. Raises ConfigError: it cannot be reached, or refuses."""
        try:
            store = cls(url, password, max_bytes, max_turns, ttl, timeout_s)
            store.reopen()
        except (StoreError, ValueError, TypeError) as error:
            remedy = "start it (redis-server), or leave --store out to keep conversations in memory only"
            raise ConfigError("store.redis_url", f"{url} cannot be used ({error})", remedy) from error
        return store

    def reopen(self) -> None:
        """Go on with what the server holds now."""
        with _told():
            self._client.set(STORE, token_hex(8), nx=True)
            self._store = _bytes(self._client.get(STORE))

    def close(self) -> None:
        """Let the connections go."""
        with _told():
            self._client.close()

    def check(self) -> None:
        """Whether it is still the store that was opened."""
        with _told():
            if self._client.get(STORE) != self._store:
                raise StoreError("the store has begun anew")

    def empty_log(self) -> None:
        """Redis keeps no log that we could empty."""

    # -- read

    @property
    def size(self) -> int:
        """Bytes of all conversations, as counted."""
        with _told():
            return int(_bytes(self._client.get(BYTES)) or 0)

    def keys(self) -> set[bytes]:
        """Of all conversations. O(conversations)."""
        with _told():
            return set(_list(self._client.zrange(USED, 0, -1)))

    def gone(self) -> set[bytes]:
        """Keys of the last conversations that had to go."""
        with _told():
            return set(_list(self._client.zrange(GONE, 0, -1)))

    def last_sent(self) -> int:
        """The greatest count of sent prompts that a turn has."""
        with _told():
            return int(_bytes(self._client.get(SENT)) or 0)

    def load(self, key: bytes, now: float) -> list[Turn]:
        """The turns of a conversation, parents before their children; none if it is not kept or has expired."""
        return self.look(key, now, here=False).turns or []

    def look(self, key: bytes, now: float, *, here: bool) -> Look:
        """Whether a conversation has changed; and its turns if it has, or if they are not ``here``."""
        with _told():
            pipe = self._client.pipeline(transaction=False)
            pipe.hmget(_conversation(key), "g", "v")
            pipe.zscore(USED, key)
            pipe.zscore(DELETED, key)
            pipe.zscore(GONE, key)
            (generation, version), used, deleted, gone = pipe.execute()
        known = self._known.get(key)
        if generation is None or used is None or used < now - self._ttl:
            self._known.pop(key, None)
            return Look(kept=False, deleted=deleted is not None, gone=gone is not None or used is not None)
        if here and known == Known(generation, int(version)):
            return Look(kept=True)
        fields = self._fields(key)
        if b"g" not in fields:
            return Look(kept=False, gone=True)
        turns = turns_of(fields)
        self._note(key, Known(fields[b"g"], int(fields[b"v"])))
        return Look(kept=True, turns=turns, deleted=known is not None and known.generation != fields[b"g"])

    def _fields(self, key: bytes) -> Mapping[bytes, bytes]:
        with _told():
            return dict(_pairs(self._client.hgetall(_conversation(key))))

    def _note(self, key: bytes, known: Known) -> None:
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    # -- write

    def apply(self, changes: Iterable[Save | Erase]) -> None:
        """One after the other; each as a whole."""
        for change in changes:
            if isinstance(change, Save):
                self._save(change)
            elif change.key == EVERYTHING:
                self._forget_all()
            else:
                self._known.pop(change.key, None)
                self._forget(change.key, "deleted")

    def trim(self, now: float) -> list[bytes]:
        """Let conversations go that have expired, or are too many bytes; the keys of those that went."""
        horizon = now - self._ttl
        went = self._let_go(lambda: _list(self._client.zrangebyscore(USED, "-inf", f"({horizon}")), horizon)
        if self.size > self._max_bytes:
            while self.size > self._max_bytes * LOW_WATER:
                oldest = self._let_go(self._some, ALWAYS)
                if not oldest:
                    break
                went += oldest
        return went

    def _let_go(self, which: Callable[[], Sequence[bytes]], horizon: float) -> list[bytes]:
        """Those that were not used since another proxy, or this one, was asked which they are."""
        with _told():
            keys = which()
        return [key for key in keys if self._forget(key, "gone", horizon)]

    def _forget(self, key: bytes, why: str, horizon: float = ALWAYS) -> bool:
        with _told():
            now = self._client.time()[0]
            return bool(self._forget_script(_keys(key), (self._store, key, why, now, MAX_GONE, horizon, "")))

    def _forget_all(self) -> None:
        while keys := self._some():
            for key in keys:
                self._forget(key, "deleted")
        with _told():
            self._client.delete(GONE)
        self._known.clear()

    def _some(self) -> Sequence[bytes]:
        with _told():
            return _list(self._client.zrange(USED, 0, _AT_A_TIME - 1))

    def _save(self, change: Save) -> None:
        """With all ancestors that are not kept; one that vanishes at this moment makes a second attempt."""
        path = change.turn.path()
        missing = self._missing(change.key, path)
        answer = self._saved(change, path[len(path) - missing :])
        if answer[0] == INCOMPLETE:
            answer = self._saved(change, path)
        if answer[0] != SAVED:
            return
        known = self._known.get(change.key)
        generation, before, after, turns = answer[1], int(answer[2]), int(answer[3]), int(answer[4])
        if before == 0 or known == Known(generation, before):
            self._note(change.key, Known(generation, after))
        if missing and turns > self._max_turns:
            self._prune(change.key, path)

    def _missing(self, key: bytes, path: Sequence[Turn]) -> int:
        """How many turns at the end of a branch are not kept: mostly none or one."""
        with _told():
            asked = [b"o:" + turn.identity for turn in path[-2:]]
            there = _list(self._client.hmget(_conversation(key), asked))
        if there[-1] is not None:
            return 0
        return 1 if len(path) > 1 and there[0] is not None else len(path)

    def _saved(self, change: Save, turns: Sequence[Turn]) -> Sequence[Any]:
        last = change.turn
        rows = [kept(turn) for turn in turns]
        texts = {piece.name: piece.text for row in rows for piece in row.pieces if piece.shared}
        known = self._known.get(change.key)
        args: list[Any] = [
            *(self._store, change.key, change.used, change.used - self._ttl, round(self._ttl) + DAY_S),
            *(b"" if known is None else known.generation, token_hex(8), last.last_sent, data_of(replies_of(last))),
            *(last.identity, (rows[0].parent or b"") if rows else b"", len(rows), len(texts)),
        ]
        for row in rows:
            args += [row.identity, row_of(row), data_of(row.replies), row.sent]
        for name, text in texts.items():
            args += [name, data_of(text)]
        with _told():
            answer: Sequence[Any] = self._save_script(_keys(change.key), args)
        return answer

    def _prune(self, key: bytes, path: Sequence[Turn]) -> None:
        """Forget the branches sent longest ago of a conversation that has too many turns. O(turns)."""
        fields = self._fields(key)
        turns = {turn.identity: turn for turn in turns_of(fields)}
        held = {turn.identity for turn in path}
        went: list[bytes] = []
        while len(turns) > self._max_turns:
            parents = {turn.parent.identity for turn in turns.values() if turn.parent is not None}
            leaves = [turn for name, turn in turns.items() if name not in parents and name not in held]
            if not leaves:
                break
            spare = min(leaves, key=lambda turn: turn.last_sent)
            del turns[spare.identity]
            went.append(spare.identity)
        shown = {piece.name for name in turns for piece in pieces_of(fields, name) if piece.shared}
        drop = [letter + name for name in went for letter in (b"o:", b"t:", b"r:", b"s:")]
        drop += [name for name in fields if name.startswith(b"x:") and name[2:] not in shown]
        if went:
            with _told():
                version = fields[b"v"]
                self._forget_script(_keys(key), (self._store, key, "pruned", 0, 0, 0, version, *drop))

    # -- engines

    def drained(self, here: Set[str]) -> set[str]:
        """URLs of engines that are taken out; a store that began anew takes them from those that are out ``here``."""
        with _told():
            if here and not self._client.exists(DRAINED):
                self._client.sadd(DRAINED, "", *sorted(here))
            return {url.decode("utf-8", "replace") for url in _list(self._client.smembers(DRAINED)) if url}

    def stand(self, url: str, *, out: bool) -> None:
        """Take an engine out, or in again."""
        with _told():
            self._client.sadd(DRAINED, "", *([url] if out else []))
            if not out:
                self._client.srem(DRAINED, url)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a parent or a text is missing, or a count is wrong."""
        sizes = dict(_pairs(self._client.hgetall(SIZES)))
        if set(sizes) != self.keys() or sum(map(int, sizes.values())) != self.size:
            raise InvariantError("conversations and their sizes do not fit")
        for key in sizes:
            fields = self._fields(key)
            turns = turns_of(fields)
            shown = {piece.name for turn in turns for piece in pieces_of(fields, turn.identity) if piece.shared}
            if not turns or shown != {name[2:] for name in fields if name.startswith(b"x:")}:
                raise InvariantError("texts and turns do not fit")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error


def _conversation(key: bytes) -> bytes:
    return PREFIX + b"c:" + key.hex().encode("ascii")


def _keys(key: bytes) -> tuple[bytes, ...]:
    return (_conversation(key), *SHARED_KEYS)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b""


def _list(value: Any) -> list[Any]:
    return list(value)


def _pairs(value: Any) -> Iterable[tuple[bytes, bytes]]:
    pairs: Iterable[tuple[bytes, bytes]] = value.items()
    return pairs
