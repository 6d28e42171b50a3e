"""Conversations on disk: what comes back, what is bounded, and which files are refused."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.proxy.memory.codec import kept, read
from prefixpilot.proxy.memory.database import FILE, StoreError
from prefixpilot.proxy.memory.records import Turn
from prefixpilot.proxy.memory.store import Erase, Save, Store

from .support import converse, facts, key, said, turn

ONE, TWO = key("one").digest, key("two").digest
LONG = [f"Report {n}. " + f"{n} apples. " * 200 for n in range(6)]
MIB = 1 << 20


def opened(path: Path, max_bytes: int = 64 * MIB, max_turns: int = 512, ttl: float = 1000) -> Store:
    return Store.open(path, max_bytes, max_turns, ttl)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with_all = opened(tmp_path / "state")
    yield with_all
    with_all.check_invariants()
    with_all.close()


def answered(path: list[Turn]) -> list[Turn]:
    for n, each in enumerate(path):
        each.last_sent = len(path)
        each.add_reply(said(f"Answer {n}."))
    return path


def test_a_branch_comes_back_as_it_was(store: Store) -> None:
    path = answered(converse([LONG[:3], [], [LONG[1], LONG[4], "short"], ["short", "\ud800 alone"]]))
    for n, each in enumerate(path):
        each.last_sent = n + 1  # then its ancestors were sent too
        store.apply([Save(ONE, each, 10)])
    loaded = store.load(ONE, 20)
    assert [facts(a) for a in loaded] == [facts(b) for b in path]
    assert [each.last_sent for each in loaded] == [4] * 4
    assert loaded[-1].path() == loaded
    assert "Please refer to" in loaded[2].text
    assert store.load(TWO, 20) == []


def test_a_text_has_one_name_whether_it_was_known_or_is_hashed_again(store: Store) -> None:
    known, hashed = converse([LONG[:3]])[0], converse([LONG[:3]])[0]
    hashed.names = ()
    assert [piece for piece in kept(known).pieces if piece.shared] != []
    assert kept(known) == kept(hashed)
    store.apply([Save(ONE, known, 10), Save(TWO, hashed, 10)])
    assert store.database.ask("SELECT count(*), min(refs), max(refs) FROM texts") == [(3, 2, 2)]


def test_a_turn_may_show_one_text_twice_and_many_texts(store: Store) -> None:
    texts = [f"{n} " + "apples and pears " * 6 for n in range(150)]
    path = answered(converse([[*texts, texts[0]], [texts[0], *texts[140:]]]))
    store.apply([Save(ONE, path[-1], 10)])
    assert [facts(each) for each in store.load(ONE, 10)] == [facts(each) for each in path]


def test_a_turn_brings_its_ancestors_if_they_are_not_kept(store: Store) -> None:
    path = answered(converse([LONG[:2], LONG[2:4], LONG[4:]]))
    store.apply([Save(ONE, path[2], 10)])
    assert [facts(each) for each in store.load(ONE, 20)] == [facts(each) for each in path]


def test_a_turn_is_kept_once_and_its_replies_grow(store: Store) -> None:
    (first,) = converse([LONG[:2]])
    store.apply([Save(ONE, first, 10)])
    first.add_reply(said("One answer."))
    store.apply([Save(ONE, first, 11), Save(ONE, first, 12)])
    (loaded,) = store.load(ONE, 20)
    assert facts(loaded) == facts(first)
    assert len(loaded.replies) == 1


def test_texts_are_kept_once_for_all_conversations(store: Store) -> None:
    for n in range(50):
        store.apply([Save(key(f"c{n}").digest, converse([LONG])[0], n)])
    rows = store.database.ask("SELECT count(*), sum(length(text)), min(refs) FROM texts")
    assert rows == [(len(LONG), sum(len(text.encode()) for text in LONG) + len(LONG), 50)]
    assert store.database.size < 4 * sum(map(len, LONG)) + 50 * 4096


def test_what_is_erased_leaves_no_text_behind(store: Store, tmp_path: Path) -> None:
    secret = "The code word is cormorant. " * 10
    store.apply([Save(ONE, converse([[secret], LONG[:2]])[1], 10), Save(TWO, converse([LONG[:2]])[0], 10)])
    store.apply([Erase(ONE)])
    store.database.empty_log()
    assert store.load(ONE, 20) == []
    assert len(store.load(TWO, 20)) == 1
    assert store.database.ask("SELECT count(*) FROM texts") == [(2,)]
    for file in (tmp_path / "state").iterdir():
        assert b"cormorant" not in file.read_bytes()


def test_an_erased_conversation_is_not_gone_but_one_that_had_to_go_is(store: Store) -> None:
    store.apply([Save(ONE, converse([["a"]])[0], 10), Save(TWO, converse([["a"]])[0], 500)])
    assert store.trim(1100) == [ONE]
    assert (store.keys(), store.gone()) == ({TWO}, {ONE})
    store.apply([Erase(TWO)])
    assert (store.keys(), store.gone()) == (set(), {ONE})
    store.apply([Save(ONE, converse([["b"]])[0], 1200)])
    assert (store.keys(), store.gone()) == ({ONE}, set())


def test_an_expired_conversation_does_not_come_back_even_before_it_goes(store: Store) -> None:
    store.apply([Save(ONE, converse([["a"]])[0], 10)])
    assert store.load(ONE, 1010)
    assert store.load(ONE, 1011) == []


def test_an_expired_conversation_that_begins_anew_has_nothing_of_the_old_one(store: Store) -> None:
    store.apply([Save(ONE, converse([["a"]])[0], 10)])
    (other,) = converse([["b"]])
    store.apply([Save(ONE, other, 1011)])
    assert [each.identity for each in store.load(ONE, 1011)] == [other.identity]


def test_past_its_bytes_those_used_longest_ago_go(tmp_path: Path) -> None:
    store = opened(tmp_path, max_bytes=1 * MIB)
    went: list[bytes] = []
    for n in range(300):
        unlike = [f"{n} {i} " + f"{n * 7919 + i} " * 1500 for i in range(2)]
        store.apply([Save(key(f"c{n}").digest, converse([unlike])[0], n)])
        went += store.trim(n)
        assert store.database.size <= 1 * MIB
    assert went == [key(f"c{n}").digest for n in range(len(went))]
    assert 0 < len(went) < 300
    assert store.keys() == {key(f"c{n}").digest for n in range(len(went), 300)}
    store.check_invariants()
    store.close()


def test_past_its_turns_the_branches_sent_longest_ago_go(tmp_path: Path) -> None:
    store = opened(tmp_path, max_turns=4)
    root, second, third = converse([["a"], ["b"], ["c"]])
    for each in (root, second, third):
        store.apply([Save(ONE, each, 1)])
    for n in range(6):
        other = turn(["Question 0?", f"Other {n}?"], root, [f"d{n}"])
        other.last_sent = 10 + n
        store.apply([Save(ONE, other, 2 + n)])
    chains = [each.chain for each in store.load(ONE, 10)]
    assert len(chains) == 4
    assert chains[0] == root.chain
    assert third.chain not in chains
    assert other.chain in chains
    store.check_invariants()
    store.close()


def test_a_failed_change_changes_nothing(store: Store) -> None:
    store.apply([Save(ONE, converse([LONG[:1]])[0], 10)])
    pages = store.database.ask("PRAGMA page_count")[0][0]
    store.database.ask(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.apply([Save(TWO, converse([[f"{n} " * 5000 for n in range(9)]])[0], 10)])
    assert store.keys() == {ONE}
    assert len(store.load(ONE, 20)) == 1
    store.database.ask("PRAGMA max_page_count = 1000000")
    store.apply([Save(TWO, converse([LONG])[0], 10)])
    assert store.keys() == {ONE, TWO}


# -- the file


def test_directory_and_files_are_their_owners_only(tmp_path: Path) -> None:
    store = opened(tmp_path / "a" / "state")
    store.apply([Save(ONE, converse([LONG])[0], 10)])
    files = list((tmp_path / "a" / "state").iterdir())
    assert {file.name for file in files} == {FILE, f"{FILE}-wal", f"{FILE}-shm", "lock.db", "lock.db-journal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "a" / "state").stat().st_mode) == 0o700
    store.close()


def test_no_id_and_no_credential_is_in_the_file(store: Store, tmp_path: Path) -> None:
    name = key("a rather long conversation id")
    store.apply([Save(name.digest, converse([LONG])[0], 10)])
    for file in (tmp_path / "state").iterdir():
        data = file.read_bytes()
        assert b"rather long" not in data
        assert b"credential" not in data


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ConfigError, match=r"in use by another proxy.*directory of its own"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


@pytest.mark.parametrize("content", [b"no database at all" * 400, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match="move it away"):
        opened(tmp_path)
    (tmp_path / FILE).unlink()
    opened(tmp_path).close()


def test_damage_behind_an_intact_head_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(20):
        store.apply([Save(key(f"c{n}").digest, converse([[f"{n} {i}" * 500 for i in range(5)]])[0], n)])
    store.close()
    data = bytearray((tmp_path / FILE).read_bytes())
    data[8192:] = b"\xa5" * (len(data) - 8192)
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(ConfigError, match=r"damaged|malformed"):
        opened(tmp_path)


def test_another_programs_file_and_another_version_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("CREATE TABLE notes (text)")
    other.close()
    with pytest.raises(ConfigError, match="not made by this program"):
        opened(tmp_path)
    (tmp_path / FILE).unlink()
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as ours:
        ours.execute("PRAGMA user_version = 7")
    ours.close()
    with pytest.raises(ConfigError, match="has the schema 7, and this version knows 1"):
        opened(tmp_path)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="--state-dir"):
        opened(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            opened(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_kept_turn_that_was_tampered_with_is_not_taken(store: Store) -> None:
    store.apply([Save(ONE, converse([LONG[:1]])[0], 10)])
    store.database.change("UPDATE texts SET text = ?", b"\nSomething else.")
    with pytest.raises(StoreError, match="not what its name says"):
        store.load(ONE, 20)


def test_the_codec_alone_gives_back_what_it_was_given() -> None:
    above: Turn | None = None
    for each in answered(converse([LONG[:2], LONG[1:3]])):
        again = read(kept(each), above)
        assert facts(again) == facts(each)
        assert "".join(piece.text for piece in kept(each).pieces) == each.text
        above = again
