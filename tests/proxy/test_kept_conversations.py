"""Conversations that outlive the process, are deleted, expire, or outgrow the window: through the whole proxy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.memory.store import Store
from prefixpilot.testing import SimulatedEngine

from .support import Answer, Desk, Messages, assistant, chat, fetch, metric, post_chat, user

DOCUMENTS = [f"Report {n}. " + f"{n} apples. " * 60 for n in range(4)]
WHO = {"X_PrefixPilot_Conversation": "c 1", "Authorization": "Bearer me"}

SERVE = """
import sys
from prefixpilot.proxy import ProxySettings, serve
from prefixpilot.proxy.memory.settings import StoreSettings
settings = ProxySettings(sys.argv[1], port=0, drain_timeout=2, store=StoreSettings(state_dir=sys.argv[2]))
serve(settings, on_listening=lambda url: print(url, flush=True))
"""


@contextmanager
def process(engine: SimulatedEngine, state: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A proxy of its own; its URL. Killed at the end, if it was not before."""
    command = [sys.executable, "-c", SERVE, engine.base_url, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        watchdog = threading.Timer(60, running.kill)
        watchdog.start()
        try:
            yield running.stdout.readline().strip(), running
        finally:
            watchdog.cancel()
            running.kill()


@contextmanager
def proxy(engine: SimulatedEngine, state: Path | None, **settings: Any) -> Iterator[RunningProxy]:
    store = StoreSettings(state_dir=None if state is None else str(state), **settings.pop("store", {}))
    with serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, store=store, **settings)) as running:
        yield running


def plan(answer: Answer) -> Any:
    header = answer.header("X-PrefixPilot-Plan")
    assert header is not None
    return json.loads(header)


def sent(engine: SimulatedEngine) -> list[Any]:
    """The messages of the last chat request that the engine got."""
    chats = [request for request in engine.requests if request.path.endswith("/chat/completions")]
    body: dict[str, Any] = json.loads(chats[-1].body)
    return [message["content"] for message in body["messages"]]


def reply(answer: Answer) -> dict[str, Any]:
    return assistant(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_told_survives_kill_9(engine: SimulatedEngine, tmp_path: Path, stream: bool) -> None:
    messages: Messages = []
    prompts = []
    for n in range(3):
        with process(engine, tmp_path) as (url, running):
            messages.append(user(f"Question {n}?"))
            answer = post_chat(url, chat(messages, DOCUMENTS[n : n + 2], stream=stream), **WHO)
            os.kill(running.pid, signal.SIGKILL)
            assert running.wait(10) == -signal.SIGKILL
        assert plan(answer)["recorded"] is True
        assert plan(answer)["restored"] == n
        prompts.append(sent(engine))
        messages.append(assistant() if stream else reply(answer))
    assert "Please refer to [Doc 2] in the previous conversation." in prompts[2][2]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    with process(engine, tmp_path) as (url, _):
        messages.append(user("Question 3?"))
        post_chat(url, chat(messages), **WHO)
        assert sent(engine)[: len(prompts[2])] == prompts[2]


def test_a_proxy_that_ends_by_itself_leaves_no_log_behind(engine: SimulatedEngine, tmp_path: Path) -> None:
    for restored in (0, 0):
        with proxy(engine, tmp_path) as running:
            answer = post_chat(running.url, chat([user("Q?")], DOCUMENTS), **WHO)
            assert plan(answer)["restored"] == restored
        assert sorted(file.name for file in tmp_path.iterdir()) == ["conversations.db", "lock.db"]


def test_one_user_gets_nothing_of_another(engine: SimulatedEngine, tmp_path: Path) -> None:
    history = [user("Q?"), assistant(), user("And?")]
    with proxy(engine, tmp_path) as running:
        post_chat(running.url, chat([user("Q?")], DOCUMENTS[:1]), **WHO)
    with proxy(engine, tmp_path) as running:
        post_chat(running.url, chat(history, DOCUMENTS[1:2]), **{**WHO, "Authorization": "Bearer you"})
        assert sent(engine)[0] == "Q?"
        post_chat(running.url, chat(history, DOCUMENTS[1:2]), **WHO)
        assert DOCUMENTS[0] in sent(engine)[0]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_conversation_is_deleted_for_whoever_has_it(engine: SimulatedEngine, tmp_path: Path, on_disk: bool) -> None:
    state = tmp_path if on_disk else None
    headers = {"Authorization": "Bearer me"}
    with proxy(engine, state) as running:
        for mode in ("on", "off"):
            post_chat(running.url, chat([user("Q?")], DOCUMENTS[:1]), **WHO, X_PrefixPilot_Mode=mode)
        assert fetch(running.url, "DELETE", "/conversations/c%201").status == 404
        other = fetch(running.url, "DELETE", "/conversations/c%201", headers={"Authorization": "Bearer you"})
        assert other.status == 404
        assert other.json()["error"]["code"] == "not_found"
        deleted = fetch(running.url, "DELETE", "/conversations/c%201", headers=headers)
        assert (deleted.status, deleted.body) == (204, b"")
        assert fetch(running.url, "DELETE", "/conversations/c%201", headers=headers).status == 404
        again = post_chat(running.url, chat([user("Q?"), assistant(), user("And?")], ["A"]), **WHO)
        assert (plan(again)["restored"], plan(again)["gone"]) == (0, False)
    if on_disk:
        with proxy(engine, state) as running:
            assert fetch(running.url, "DELETE", "/conversations/c%201", headers=headers).status == 204
        assert not [file for file in tmp_path.iterdir() if b"Report 0." in file.read_bytes()]


def test_a_conversation_that_had_to_go_is_told_and_counted(engine: SimulatedEngine, tmp_path: Path) -> None:
    history = [user("Q?"), assistant(), user("And?")]
    for state in (None, tmp_path):
        store = {"conversation_ttl": 0.2}
        with proxy(engine, state, store=store) as running:
            post_chat(running.url, chat([user("Q?")], DOCUMENTS[:1]), **WHO)
            time.sleep(0.3)
            gone = plan(post_chat(running.url, chat(history, DOCUMENTS[:1]), **WHO))
            assert (gone["gone"], gone["restored"]) == (True, 0)
            assert sent(engine)[0] == "Q?"
            assert DOCUMENTS[0] in sent(engine)[2], "in full: nothing refers to what is gone"
            text = fetch(running.url, "GET", "/metrics").body.decode()
            assert metric(text, "prefixpilot_gone_conversations_total") == 1
            first = plan(post_chat(running.url, chat([user("New?")], ["A"]), **{**WHO, "Authorization": "x"}))
            assert first["gone"] is False


def test_evicted_from_memory_is_not_gone_from_the_disk(engine: SimulatedEngine, tmp_path: Path) -> None:
    with proxy(engine, tmp_path, max_conversations=1) as running:
        for name in "abc":
            who = {**WHO, "X_PrefixPilot_Conversation": name}
            post_chat(running.url, chat([user("Q?")], [f"{name} {DOCUMENTS[0]}"]), **who)
        for name in "abc":
            who = {**WHO, "X_PrefixPilot_Conversation": name}
            answer = post_chat(running.url, chat([user("Q?"), assistant(), user("And?")], ["A"]), **who)
            assert (plan(answer)["restored"], plan(answer)["gone"]) == (1, False)
            assert sent(engine)[0].startswith(f"[Doc 1]\n{name} Report 0.")
        text = fetch(running.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_conversations") == 1
        assert metric(text, "prefixpilot_stored_conversations") == 3
        assert metric(text, "prefixpilot_stored_bytes") > 0


def test_a_full_disk_is_told_and_the_service_goes_on(engine: SimulatedEngine, tmp_path: Path) -> None:
    history = [user("Q?"), assistant(), user("And?")]
    with proxy(engine, tmp_path) as running:
        post_chat(running.url, chat([user("Before?")], ["A"]), **{**WHO, "Authorization": "x"})
        writer = running.app._conversations._writer
        assert writer is not None and isinstance(writer._store, Store)
        database = writer._store.database
        pages = database.ask("PRAGMA page_count")[0][0]
        database.ask(f"PRAGMA max_page_count = {pages}")
        long = ["".join(f"{n} {i} " for i in range(4000)) for n in range(4)]
        post_chat(running.url, chat([user("Q?")], long), **WHO)
        second = post_chat(running.url, chat(history, long[:1]), **WHO)
        assert second.status == 200
        assert (plan(second)["restored"], plan(second)["recorded"]) == (1, False)
        assert "Please refer to [Doc 1]" in sent(engine)[2]
        text = fetch(running.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_unsaved_turns_total") > 0
        database.ask("PRAGMA max_page_count = 1000000")
        third = [*history, reply(second), user("Third?")]
        post_chat(running.url, chat(third, ["B"]), **WHO)
        fourth = post_chat(running.url, chat([*third, assistant(), user("Fourth?")], ["C"]), **WHO)
        assert (plan(fourth)["restored"], plan(fourth)["recorded"]) == (3, True)
        prompt = sent(engine)
    with proxy(engine, tmp_path) as running:  # all turns of the branch came onto the disk with the one that could
        post_chat(running.url, chat([*third, assistant(), user("Fourth?"), assistant(), user("Fifth?")]), **WHO)
        assert sent(engine)[: len(prompt)] == prompt


def remove(state: Path) -> None:
    """The directory goes, and cannot be made again."""
    shutil.rmtree(state)
    state.write_text("in the way")


def replace_file(state: Path) -> None:
    """By one that cannot be opened. SQLite's log goes too: it would put all that it holds into any file."""
    for name in ("-shm", "-wal", ""):
        (state / f"conversations.db{name}").unlink()
    (state / "conversations.db").write_bytes(b"not a database" * 1000)


def remove_log(state: Path) -> None:
    """What SQLite has not yet written into the file goes; the directory cannot be opened again."""
    (state / "conversations.db-wal").unlink()
    (state / "conversations.db").unlink()
    (state / "conversations.db").mkdir()


@pytest.mark.parametrize("break_it", [remove, replace_file, remove_log])
def test_files_that_go_are_noticed_told_and_made_anew(
    engine: SimulatedEngine, tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"
    messages: Messages = []

    def ask(url: str) -> Any:
        messages.append(user(f"Question {len(messages)}?"))
        answer = post_chat(url, chat(messages, DOCUMENTS[:2]), **WHO)
        assert answer.status == 200
        messages.append(reply(answer))
        return plan(answer)

    def degraded(url: str) -> bool:
        ready = fetch(url, "GET", "/readyz")
        assert ready.status == 200
        kept = metric(fetch(url, "GET", "/metrics").body.decode(), "prefixpilot_store_healthy")
        return bool(ready.json()["degraded"]) and kept == 0

    with proxy(engine, state) as running:
        assert ask(running.url)["recorded"] is True
        break_it(state)
        until(lambda: degraded(running.url))
        assert (told := ask(running.url))["recorded"] is False
        assert told["restored"] == 1, "the service goes on from memory"
        shutil.rmtree(state) if state.is_dir() else state.unlink()
        until(lambda: not degraded(running.url))
        assert ask(running.url)["recorded"] is True
        whole = sent(engine)
    with proxy(engine, state) as again:
        assert ask(again.url)["restored"] == 3, "what had been told only in memory came with its child"
        assert sent(engine)[: len(whole)] == whole


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_directory_that_cannot_be_used_ends_the_start(engine: SimulatedEngine, tmp_path: Path) -> None:
    (tmp_path / "conversations.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigError, match="state_dir"):
        ProxyApp(ProxySettings(engine.base_url, store=StoreSettings(state_dir=str(tmp_path))))


def test_many_clients_at_once_lose_nothing(engine: SimulatedEngine, tmp_path: Path) -> None:
    def talk(url: str, name: str) -> None:
        messages: Messages = []
        for n in range(4):
            messages.append(user(f"Question {n}?"))
            who = {**WHO, "X_PrefixPilot_Conversation": name}
            answer = post_chat(url, chat(messages, [f"{name} {n} {DOCUMENTS[0]}"]), **who)
            restored.append(plan(answer)["restored"] == n)
            messages.append(reply(answer))

    restored: list[bool] = []
    with proxy(engine, tmp_path, max_conversations=3) as running:
        threads = [threading.Thread(target=talk, args=(running.url, f"c{n}")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert restored == [True] * 32


# -- the window


def test_turns_that_no_longer_fit_the_window_go_oldest_first() -> None:
    desk = Desk(store=StoreSettings(context_window=1000))
    messages: Messages = []
    overflows, prompts = [], []
    for n in range(12):
        messages.append(user(f"Question {n}?"))
        asked = desk.ask(chat(messages, [f"{n} {DOCUMENTS[0]}"]), "c")
        overflows.append(asked.plan["overflow"])
        prompts.append(asked.texts)
        assert sum(len(text) for text in asked.texts) < 4100
        again = desk.ask(chat(messages, [f"{n} {DOCUMENTS[0]}"]), "c")
        assert again.body == asked.body, "a retry is the same"
        messages.append(assistant())
    assert overflows == sorted(overflows)
    assert overflows[-1] > 0
    cuts = sum(before != after for before, after in pairwise(overflows))
    assert cuts < overflows[-1], "several turns at a time"
    assert desk.metric("prefixpilot_window_overflows_total") == cuts
    for n in range(1, 12):
        if overflows[n] == overflows[n - 1]:
            assert prompts[n][: len(prompts[n - 1])] == prompts[n - 1]


def test_what_went_is_put_where_it_is_referred_to() -> None:
    desk = Desk(store=StoreSettings(context_window=500))
    one = desk.ask(chat([user("1?")], [DOCUMENTS[0], DOCUMENTS[1]]), "c")
    two = desk.ask(chat([user("1?"), assistant(), user("2?")], [DOCUMENTS[0]]), "c")
    assert "Please refer to [Doc 1]" in two.newest
    history = [user("1?"), assistant(), user("2?"), assistant(), user("3?")]
    three = desk.ask(chat(history, ["x" * 180, DOCUMENTS[0]]), "c")
    assert three.plan["overflow"] == 1
    assert three.texts[0] == "1?"
    assert three.texts[2] == f"[Doc 1]\n{DOCUMENTS[0]}\n\n2?"
    assert three.newest.endswith("Please refer to [Doc 1] in the previous conversation.\n\n3?")
    assert one.newest.startswith(f"[Doc 1]\n{DOCUMENTS[0]}")


def test_room_for_the_answer_is_kept() -> None:
    asked = []
    for answer in (None, 500):
        desk = Desk(store=StoreSettings(context_window=1000))
        more = {} if answer is None else {"max_tokens": answer}
        desk.ask(chat([user("1?")], [DOCUMENTS[0] * 4], **more), "c")
        asked.append(desk.ask(chat([user("1?"), assistant(), user("2?")], ["A"], **more), "c").plan["overflow"])
    assert asked == [0, 1]


def test_the_window_is_what_the_engine_says(engine: SimulatedEngine) -> None:
    engine.context_window = 600
    with proxy(engine, None) as running:
        messages: Messages = []
        overflows = []
        for n in range(6):
            messages.append(user(f"Question {n}?"))
            answer = post_chat(running.url, chat(messages, [f"{n} {DOCUMENTS[0]}"]), **WHO)
            overflows.append(plan(answer)["overflow"])
            messages.append(reply(answer))
            if n == 1:  # the first turn that has a past asks for the window, beside the request
                assert engine.wait_for_requests(3)
        assert overflows[-1] > 0
    asked = [request for request in engine.requests if request.path == "/v1/models"]
    assert len(asked) == 1, "once a minute at most"
