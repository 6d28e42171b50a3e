"""Proxies that share one Redis: what one of them has told is known to all, whichever ends, and also when Redis does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.testing import SimulatedEngine

from .redis_server import RedisServer
from .support import Messages, assistant, chat, fetch, metric, post_chat, user
from .test_kept_conversations import DOCUMENTS, WHO, plan, reply, sent
from .watched import until

SERVE = """
import sys
from prefixpilot.proxy import ProxySettings, serve
from prefixpilot.proxy.memory.settings import StoreSettings
settings = ProxySettings(sys.argv[1], port=0, drain_timeout=2, store=StoreSettings(redis_url=sys.argv[2]))
serve(settings, on_listening=lambda url: print(url, flush=True))
"""
HISTORY = [user("Q?"), assistant(), user("And?")]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield running
    running.kill()


@contextmanager
def proxy(engine: SimulatedEngine, server: RedisServer, **settings: Any) -> Iterator[RunningProxy]:
    store = StoreSettings(redis_url=server.url, **settings.pop("store", {}))
    with serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, store=store, **settings)) as running:
        yield running


@contextmanager
def process(engine: SimulatedEngine, server: RedisServer) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A proxy in a process of its own; killed at the end, if it was not before."""
    command = [sys.executable, "-c", SERVE, engine.base_url, server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        watchdog = threading.Timer(60, running.kill)
        watchdog.start()
        try:
            yield running.stdout.readline().strip(), running
        finally:
            watchdog.cancel()
            running.kill()


def healthy(running: RunningProxy) -> bool:
    return metric(fetch(running.url, "GET", "/metrics").body.decode(), "prefixpilot_store_healthy") == 1


def test_turns_of_one_conversation_may_go_to_any_proxy(engine: SimulatedEngine, server: RedisServer) -> None:
    messages: Messages = []
    prompts = []
    with proxy(engine, server) as one, proxy(engine, server) as two:
        for n, running in enumerate((one, two, two, one, two)):
            messages.append(user(f"Question {n}?"))
            answer = post_chat(running.url, chat(messages, DOCUMENTS[n % 4 : n % 4 + 2]), **WHO)
            assert (plan(answer)["restored"], plan(answer)["recorded"]) == (n, True)
            prompts.append(sent(engine))
            messages.append(reply(answer))
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before, "each prompt goes on from the one before, whoever sent that"
    assert "Please refer to" in prompts[-1][-1]


def test_what_was_told_survives_kill_9_of_a_proxy(engine: SimulatedEngine, server: RedisServer) -> None:
    with proxy(engine, server) as other:
        with process(engine, server) as (url, running):
            first = post_chat(url, chat([user("Q?")], DOCUMENTS[:2], stream=True), **WHO)
            os.kill(running.pid, signal.SIGKILL)
            running.wait(10)
        assert plan(first)["recorded"] is True
        before = sent(engine)
        second = post_chat(other.url, chat(HISTORY, DOCUMENTS[:1]), **WHO)
        assert plan(second)["restored"] == 1
        assert sent(engine)[: len(before)] == before
        assert "Please refer to [Doc 1]" in sent(engine)[2]


def test_what_one_deletes_no_other_uses(engine: SimulatedEngine, server: RedisServer) -> None:
    with proxy(engine, server) as one, proxy(engine, server) as two:
        for running, n in ((one, 0), (two, 1)):
            post_chat(running.url, chat([user(f"Q {n}?")], DOCUMENTS[:1]), **WHO)
        post_chat(one.url, chat(HISTORY[:1], DOCUMENTS[:1]), **WHO)
        path, bearer = "/conversations/c%201", {"Authorization": WHO["Authorization"]}
        assert fetch(two.url, "DELETE", path, headers=bearer).status == 204
        assert fetch(one.url, "DELETE", path, headers=bearer).status == 404
        after = post_chat(one.url, chat(HISTORY, DOCUMENTS[1:2]), **WHO)
        assert plan(after)["restored"] == 0
        assert DOCUMENTS[0] not in "".join(sent(engine))


def test_a_reset_forgets_those_of_all(engine: SimulatedEngine, server: RedisServer) -> None:
    with proxy(engine, server) as one, proxy(engine, server) as two:
        post_chat(one.url, chat(HISTORY[:1], DOCUMENTS[:1]), **WHO)
        assert fetch(two.url, "POST", "/reset").status == 200
        after = post_chat(one.url, chat(HISTORY, DOCUMENTS[1:2]), **WHO)
        assert plan(after)["restored"] == 0


def test_one_user_gets_nothing_of_another(engine: SimulatedEngine, server: RedisServer) -> None:
    with proxy(engine, server) as one, proxy(engine, server) as two:
        post_chat(one.url, chat(HISTORY[:1], DOCUMENTS[:1]), **WHO)
        other = post_chat(two.url, chat(HISTORY, DOCUMENTS[1:2]), **{**WHO, "Authorization": "Bearer you"})
        assert plan(other)["restored"] == 0
        assert sent(engine)[0] == "Q?"


def test_a_lost_store_costs_hits_and_refers_to_nothing(engine: SimulatedEngine, server: RedisServer) -> None:
    """It comes back empty. What is in memory goes on, and is kept again; what is nowhere else is told to be gone."""
    named = {**WHO, "X_PrefixPilot_Conversation": "in memory"}
    with proxy(engine, server, max_conversations=1) as running:
        post_chat(running.url, chat(HISTORY[:1], DOCUMENTS[:1]), **WHO)
        post_chat(running.url, chat(HISTORY[:1], DOCUMENTS[:1]), **named)
        server.kill()
        server.start()
        assert until(lambda: healthy(running))
        kept = post_chat(running.url, chat(HISTORY, DOCUMENTS[:1]), **named)
        assert (plan(kept)["restored"], plan(kept)["gone"], plan(kept)["recorded"]) == (1, False, True)
        assert "Please refer to [Doc 1]" in sent(engine)[2]
        gone = post_chat(running.url, chat(HISTORY, DOCUMENTS[:1]), **WHO)
        assert (plan(gone)["restored"], plan(gone)["gone"]) == (0, True)
        assert sent(engine)[0] == "Q?" and DOCUMENTS[0] in sent(engine)[2], "in full: nothing refers to what is gone"
    with proxy(engine, server) as fresh:
        again = post_chat(fresh.url, chat([*HISTORY, reply(kept), user("More?")], DOCUMENTS[:1]), **named)
        assert plan(again)["restored"] == 2


def test_while_the_store_is_away_requests_are_served(engine: SimulatedEngine, server: RedisServer) -> None:
    with proxy(engine, server, store={"disk_timeout": 0.5}) as running:
        post_chat(running.url, chat(HISTORY[:1], DOCUMENTS[:1]), **WHO)
        server.kill()
        assert until(lambda: not healthy(running))
        away = post_chat(running.url, chat(HISTORY, DOCUMENTS[:1]), **WHO)
        assert (away.status, plan(away)["restored"], plan(away)["recorded"]) == (200, 1, False)
        strange = post_chat(running.url, chat(HISTORY, DOCUMENTS[:1]), **{**WHO, "X_PrefixPilot_Conversation": "c 2"})
        assert (plan(strange)["restored"], plan(strange)["gone"]) == (0, True)
        assert DOCUMENTS[0] in sent(engine)[2]
        bearer = {"Authorization": WHO["Authorization"]}
        assert fetch(running.url, "DELETE", "/conversations/c%203", headers=bearer).status == 503
        server.start()
        assert until(lambda: healthy(running))
        third = [*HISTORY, reply(away), user("Third?")]
        back = post_chat(running.url, chat(third, DOCUMENTS[1:2]), **WHO)
        assert (plan(back)["restored"], plan(back)["recorded"]) == (2, True)
    with proxy(engine, server) as fresh:
        fourth = post_chat(fresh.url, chat([*third, reply(back), user("Fourth?")]), **WHO)
        assert plan(fourth)["restored"] == 3, "what could not be kept came with what could"


def test_a_store_that_is_not_there_is_told_at_the_start(engine: SimulatedEngine, server: RedisServer) -> None:
    server.kill()
    with pytest.raises(ConfigError, match=r"redis_url: .*cannot be used"):
        ProxyApp(ProxySettings(engine.base_url, store=StoreSettings(redis_url=server.url)))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"redis_url": "http://127.0.0.1:6379"}, "write redis://"),
        ({"redis_url": "redis://"}, "write redis://"),
        ({"redis_url": "redis://h:none/0"}, "is no URL"),
        ({"redis_url": "redis://h:1/abc"}, "names a database 'abc'; databases have numbers"),
        ({"redis_url": "redis://:secret@h:1/0"}, "holds a password"),
    ],
)
def test_bad_settings(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        StoreSettings(**settings)
    assert "secret" not in str(refused.value)
