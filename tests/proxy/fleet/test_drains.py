"""Engines taken out by hand, at one proxy and at all that share a Redis, over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.proxy.settings import AdminSettings

from ..redis_server import RedisServer
from ..support import Answer, assistant, chat, fetch, metric, post_chat, user
from ..watched import until
from .test_fleet import DOCUMENTS, QUICK, SLOW, ask, engine_of, engines, proxy, standing, text, urls_of


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield running
    running.kill()


def stand(running: RunningProxy, engine: int, what: str, **headers: str) -> Answer:
    return fetch(running.url, "POST", f"/engines/{engine}/{what}", b"", headers)


def test_an_engine_is_taken_out_by_hand_and_in_again() -> None:
    """What is under way there goes on to its end; nothing new comes, also not of a conversation of its own."""
    with engines(2) as fleet, proxy(urls_of(fleet), QUICK) as running:
        talk = [user("One? " * 200)]
        home = engine_of(post_chat(running.url, chat(talk)))
        away = 1 - home
        fleet[home].chunk_delay_s = 0.3
        connection = http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=20)
        talk += [assistant("This is a simulated answer."), user("Two?")]
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(talk, stream=True)))
        answer = connection.getresponse()
        assert answer.headers["X-PrefixPilot-Engine"] == str(home)
        drained = stand(running, home, "drain")
        assert drained.status == 200
        told = {"engine": home, "url": urls_of(fleet)[home], "fit": True, "drained": True}
        assert drained.json().items() >= told.items()
        assert stand(running, home, "drain").json()["drained"] is True, "a second time nothing is done"
        assert {engine_of(ask(running, n)) for n in range(6)} == {away}
        assert engine_of(post_chat(running.url, chat([*talk, assistant("So."), user("Three?")]))) == away
        assert b"[DONE]" in answer.read()
        connection.close()
        assert until(lambda: stand(running, home, "drain").json()["in_flight"] == 0)
        ready = fetch(running.url, "GET", "/readyz")
        assert ready.status == 200
        assert [each["drained"] for each in ready.json()["engines"]] == [home == 0, home == 1]
        assert ready.json()["degraded"] == [f"the engine at {urls_of(fleet)[home]} is drained"]
        shown = text(running)
        assert metric(shown, "prefixpilot_fleet_drained", engine=str(home)) == 1
        assert metric(shown, "prefixpilot_fleet_up", engine=str(home)) == 0
        assert standing(running) == [True, True], "it is well: looks go on, and do not bring it back"
        assert stand(running, home, "resume").json()["drained"] is False
        assert {engine_of(ask(running, 100 + n, DOCUMENTS[n : n + 1])) for n in range(6)} == {0, 1}
        assert metric(text(running), "prefixpilot_fleet_drained", engine=str(home)) == 0


def test_the_last_engine_is_not_drained_and_what_is_no_engine_is_told() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        assert stand(running, 2, "drain").status == 404
        assert stand(running, 0, "drain").status == 200
        refused = stand(running, 1, "drain")
        assert (refused.status, refused.json()["error"]["code"]) == (409, "last_engine")
        assert ask(running, 0).status == 200
        fleet[1].stop()
        ready = fetch(running.url, "GET", "/readyz")
        assert ready.status == 503, "the engine that is well is drained"
        assert stand(running, 0, "resume").status == 200
        assert fetch(running.url, "GET", "/readyz").status == 200
    with engines(1) as fleet, serve_in_thread(ProxySettings(fleet[0].base_url, port=0)) as running:
        assert stand(running, 0, "drain").status == 409
        assert ask(running, 0).status == 200


def test_an_engine_that_comes_back_is_taken_to_hold_nothing() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as running:
        first = engine_of(ask(running, 0, DOCUMENTS[:4]))
        for what in ("drain", "resume"):
            assert stand(running, first, what).status == 200
        assert engine_of(ask(running, 1, DOCUMENTS[4:8])) == 1 - first, "it has computed less"
        assert stand(running, 1 - first, "drain").status == 200
        assert engine_of(ask(running, 2, DOCUMENTS[:4])) == first
        served = fetch(running.url, "GET", "/stats").json()["engines"]
        assert [each["requests"] for each in served] == [2 - first, 1 + first]
        assert served[first]["hit_rate"] > 0.3, "its cache is the same, whatever is believed"


def test_draining_asks_for_the_admin_token() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet), admin=AdminSettings(Secret("a token that is long"))) as running:
        assert stand(running, 0, "drain").status == 401
        assert stand(running, 0, "drain", Authorization="Bearer a token that is long").status == 200


# -- several proxies


def drained(running: RunningProxy) -> list[bool]:
    return [each["drained"] for each in fetch(running.url, "GET", "/stats").json()["engines"]]


def store(server: RedisServer) -> StoreSettings:
    return StoreSettings(redis_url=server.url, disk_timeout=0.5)


def test_without_a_shared_store_the_answer_says_whose_it_is() -> None:
    with engines(2) as fleet, proxy(urls_of(fleet)) as one, proxy(urls_of(fleet), QUICK) as other:
        assert stand(one, 0, "drain").json()["holds_for"].startswith("this proxy alone")
        assert (drained(one), drained(other)) == ([True, False], [False, False])


def test_with_one_all_proxies_leave_an_engine_out_also_those_that_start_later(server: RedisServer) -> None:
    with engines(2) as fleet:
        urls, kept = urls_of(fleet), store(server)
        with proxy(urls, QUICK, store=kept) as one, proxy(urls[::-1], QUICK, store=kept) as other:
            assert stand(one, 0, "drain").json()["holds_for"].startswith("all proxies that share")
            assert until(lambda: drained(other) == [False, True]), "it has them in another order"
            assert {engine_of(ask(other, n, DOCUMENTS[n : n + 1])) for n in range(4)} == {0}
            with proxy(urls, SLOW, store=kept) as later:
                assert drained(later) == [True, False], "from its beginning"
            assert stand(other, 1, "resume").status == 200
            assert until(lambda: drained(one) == [False, False])


def test_two_proxies_do_not_take_out_the_last_engine_together(server: RedisServer) -> None:
    """Neither looks within this test but when it is asked."""
    with engines(2) as fleet:
        urls, kept = urls_of(fleet), store(server)
        with proxy(urls, SLOW, store=kept) as one, proxy(urls, SLOW, store=kept) as other:
            assert stand(one, 0, "drain").status == 200
            assert stand(other, 1, "drain").status == 409
            assert drained(other) == [True, False]


def test_what_others_take_out_may_be_all_that_one_has(server: RedisServer) -> None:
    with engines(3) as fleet:
        (a, b, c), kept = urls_of(fleet), store(server)
        with (
            proxy((a, b), QUICK, store=kept) as one,
            proxy((a, c), store=kept) as two,
            proxy((b, c), store=kept) as three,
        ):
            assert [stand(each, 0, "drain").status for each in (two, three)] == [200, 200]
            assert until(lambda: drained(one) == [True, True])
            assert ask(one, 0).status == 503
            ready = fetch(one.url, "GET", "/readyz")
            assert (ready.status, ready.json()["missing"]) == (503, ["none of 2 engines is fit: all are drained"])


def test_while_the_store_is_away_nothing_changes_and_one_that_begins_anew_is_told(server: RedisServer) -> None:
    with engines(3) as fleet, proxy(urls_of(fleet), QUICK, store=store(server)) as running:
        assert stand(running, 0, "drain").status == 200
        server.kill()
        refused = stand(running, 1, "drain")
        assert (refused.status, refused.json()["error"]["code"]) == (503, "not_shared")
        assert "nothing was done" in refused.json()["error"]["message"]
        assert drained(running) == [True, False, False]
        assert ask(running, 0).status == 200
        server.start()
        with proxy(urls_of(fleet), QUICK, store=store(server)) as later:
            assert until(lambda: drained(later) == [True, False, False])
        assert drained(running) == [True, False, False]
