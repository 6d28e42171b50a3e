"""Conversations in Redis: what comes back, what is bounded, and what two proxies see of each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.memory.database import StoreError
from prefixpilot.proxy.memory.records import Turn
from prefixpilot.proxy.memory.redis_store import BYTES, EVERYTHING, STORE, RedisStore
from prefixpilot.proxy.memory.store import Erase, Save

from ..redis_server import RedisServer
from .support import converse, facts, key, said, turn

ONE, TWO = key("one").digest, key("two").digest
LONG = [f"Report {n}. " + f"{n} apples. " * 200 for n in range(6)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2) as connected:
        connected.flushall()
        yield connected


def opened(server: RedisServer, max_bytes: int = 64 * MIB, max_turns: int = 512, ttl: float = 1000) -> RedisStore:
    return RedisStore.open(server.url, None, max_bytes, max_turns, ttl, 5.0)


@pytest.fixture
def store(server: RedisServer, client: redis.Redis) -> Iterator[RedisStore]:
    made = opened(server)
    yield made
    made.check_invariants()
    made.close()


def names_of(client: redis.Redis, digest: bytes) -> list[bytes]:
    """The fields of a conversation."""
    fields: dict[Any, Any] = client.hgetall("{prefixpilot:1}:c:" + digest.hex())
    return list(fields)


def answered(path: list[Turn]) -> list[Turn]:
    for each in path:
        each.last_sent = len(path)
        each.add_reply(said(f"Answer to {each.chain.hex()}."))
    return path


def test_a_branch_comes_back_as_it_was(store: RedisStore, server: RedisServer) -> None:
    path = answered(converse([LONG[:3], [], [LONG[1], LONG[4], "short"], ["short", "\ud800 alone"]]))
    for each in path:
        store.apply([Save(ONE, each, 10)])
    other = opened(server)
    loaded = other.load(ONE, 20)
    assert [facts(a) for a in loaded] == [facts(b) for b in path]
    assert loaded[-1].path() == loaded
    assert other.load(TWO, 20) == []
    assert other.last_sent() == 4
    assert (store.keys(), store.gone()) == ({ONE}, set())


def test_a_turn_brings_its_ancestors_and_a_text_stands_there_once(store: RedisStore, client: redis.Redis) -> None:
    path = answered(converse([LONG[:3], LONG[:3], LONG[2:5]]))
    store.apply([Save(ONE, path[-1], 10)])
    assert [facts(each) for each in store.load(ONE, 11)] == [facts(each) for each in path]
    assert sum(name.startswith(b"x:") for name in names_of(client, ONE)) == 5


def test_another_proxy_sees_what_is_new_and_only_that(store: RedisStore, server: RedisServer) -> None:
    other = opened(server)
    path = answered(converse([LONG[:2], LONG[2:4]]))
    assert not other.look(ONE, 10, here=False).kept
    store.apply([Save(ONE, path[0], 10)])
    first = other.look(ONE, 11, here=False)
    assert first.turns is not None and len(first.turns) == 1
    assert other.look(ONE, 11, here=True).turns is None, "it has not changed"
    store.apply([Save(ONE, path[1], 12)])
    assert store.look(ONE, 12, here=True).turns is None, "it is its own change"
    second = other.look(ONE, 12, here=True)
    assert second.turns is not None and len(second.turns) == 2 and not second.deleted


def test_a_deleted_conversation_does_not_come_back_by_a_proxy_that_has_it(
    store: RedisStore, server: RedisServer
) -> None:
    other = opened(server)
    path = answered(converse([LONG[:2], LONG[2:4], LONG[4:]]))
    store.apply([Save(ONE, path[0], 10)])
    other.look(ONE, 11, here=False)
    store.apply([Erase(ONE)])
    other.apply([Save(ONE, path[1], 12)])
    assert store.load(ONE, 13) == []
    look = other.look(ONE, 13, here=True)
    assert (look.kept, look.deleted) == (False, True)
    store.apply([Save(ONE, path[2], 14)])  # begun anew under its name
    assert len(other.load(ONE, 15)) == 3


def test_a_conversation_of_another_generation_goes_before_what_is_here(store: RedisStore, server: RedisServer) -> None:
    other = opened(server)
    path = answered(converse([LONG[:2], LONG[2:4]]))
    store.apply([Save(ONE, path[1], 10)])
    other.look(ONE, 11, here=False)
    store.apply([Erase(ONE), Save(ONE, path[0], 12)])
    look = other.look(ONE, 13, here=True)
    assert look.deleted and look.turns is not None and len(look.turns) == 1


def test_all_are_forgotten_whoever_wrote_them(store: RedisStore, server: RedisServer) -> None:
    other = opened(server)
    for n in range(40):
        other.apply([Save(key(str(n)).digest, answered(converse([LONG[:1]]))[0], n)])
    store.apply([Erase(EVERYTHING)])
    assert (store.keys(), store.size) == (set(), 0)


def test_what_is_old_goes_and_is_told(store: RedisStore) -> None:
    path = answered(converse([LONG[:2]]))
    store.apply([Save(ONE, path[0], 10), Save(TWO, path[0], 500)])
    assert store.load(ONE, 1500) == []
    assert store.trim(1400) == [ONE]
    assert (store.keys(), store.gone()) == ({TWO}, {ONE})
    store.apply([Save(ONE, path[0], 1401)])
    assert (store.keys(), store.gone()) == ({ONE, TWO}, set())


def test_what_is_too_much_goes_oldest_first(server: RedisServer, client: redis.Redis) -> None:
    store = opened(server, max_bytes=60_000)
    for n in range(40):
        store.apply([Save(key(str(n)).digest, answered(converse([LONG[:1]]))[0], n)])
    went = store.trim(50)
    assert 0 < store.size <= 60_000
    left = store.keys()
    assert key("0").digest in went and key("39").digest in left and len(went) + len(left) == 40
    store.check_invariants()


def test_a_conversation_keeps_the_branches_sent_last(server: RedisServer, client: redis.Redis) -> None:
    store = opened(server, max_turns=4)
    first = converse([LONG[:1]])[0]
    for n in range(8):
        leaf = turn(["Question 0?", f"other {n}?"], first, [LONG[n % 6] + str(n)])
        leaf.last_sent = n + 1
        store.apply([Save(ONE, leaf, 10)])
    loaded = store.load(ONE, 11)
    assert [each.last_sent for each in loaded] == [8, 6, 7, 8]
    store.check_invariants()


def test_replies_grow(store: RedisStore) -> None:
    (only,) = converse([LONG[:1]])
    store.apply([Save(ONE, only, 10)])
    only.add_reply(said("An answer."))
    only.last_sent = 7
    store.apply([Save(ONE, only, 11)])
    (loaded,) = store.load(ONE, 12)
    assert facts(loaded) == facts(only) and loaded.last_sent == 7


def test_a_store_that_began_anew_is_noticed(store: RedisStore, client: redis.Redis) -> None:
    path = answered(converse([LONG[:1]]))
    client.flushall()
    with pytest.raises(StoreError, match="begun anew"):
        store.check()
    with pytest.raises(StoreError, match="another store"):
        store.apply([Save(ONE, path[0], 10)])
    store.reopen()
    store.check()
    store.apply([Save(ONE, path[0], 10)])
    assert client.get(STORE) is not None and client.get(BYTES) is not None


def test_what_cannot_be_read_is_an_error_and_no_turn(store: RedisStore, client: redis.Redis) -> None:
    store.apply([Save(ONE, answered(converse([LONG[:1]]))[0], 10)])
    name = "{prefixpilot:1}:c:" + ONE.hex()
    field = next(field for field in names_of(client, ONE) if field.startswith(b"t:"))
    client.hset(name, field, "[1")
    with pytest.raises(StoreError, match="cannot be read"):
        store.load(ONE, 11)
    store.apply([Erase(ONE)])


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/x", "redis://h:1/0?a=b"])
def test_a_store_that_cannot_be_used_is_named(url: str, server: RedisServer) -> None:
    with pytest.raises(ConfigError, match=r"store\.redis_url: .* cannot be used .*redis-server"):
        RedisStore.open(url, None, MIB, 10, 10, 1.0)
