"""Slots of llama.cpp in the proxy: which requests get one, that nothing else changes, and what is believed of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread

from .raw_engine import RawEngine, RawRequest, plain
from .support import assistant, chat, fetch, post_chat, user

SERVER = b"Server: llama.cpp"
JSON = b"content-type: application/json"
LONG = "The ferry to the island leaves at nine. " * 20


class LlamaCpp:
    """Answers as llama.cpp does, as far as slots go.

    Attributes:
        cached: what it says of each chat.
        held: what it says that slots hold, in tokens.
    """

    def __init__(self, slots: int = 2, server: bytes = SERVER, cached: int | None = None) -> None:
        self.slots = slots
        self.server = server
        self.cached = cached
        self.status = b"200 OK"
        self.held: list[int | None] = [300] * slots
        self.props: Any = {"total_slots": slots, "endpoint_slots": True, "model_alias": "m"}

    def __call__(self, request: RawRequest) -> bytes:
        path = request.lines[0].split()[1]
        if path == b"/props":
            return plain(b"200 OK", json.dumps(self.props).encode(), self.server, JSON)
        if path == b"/slots":
            held = [{} if tokens is None else {"n_prompt_tokens": tokens} for tokens in self.held]
            rows = [{"id": slot, "is_processing": False, **each} for slot, each in enumerate(held)]
            return plain(b"200 OK", json.dumps(rows).encode(), self.server, JSON)
        if request.lines[0].startswith(b"GET"):
            return plain(b"200 OK", b"{}", self.server, JSON)
        timings = {} if self.cached is None else {"timings": {"cache_n": self.cached, "prompt_n": 400 - self.cached}}
        answer = {"choices": [{"index": 0, "message": assistant("yes"), "finish_reason": "stop"}], **timings}
        return plain(self.status, json.dumps(answer).encode(), self.server, JSON)


@contextmanager
def running(llama: LlamaCpp, **settings: Any) -> Iterator[tuple[RawEngine, RunningProxy]]:
    with (
        RawEngine(llama) as engine,
        serve_in_thread(ProxySettings(engine.url, port=0, drain_timeout=2, **settings)) as proxy,
    ):
        assert fetch(proxy.url, "GET", "/readyz").status == 200
        yield engine, proxy


@contextmanager
def watched(llama: LlamaCpp) -> Iterator[tuple[RawEngine, RunningProxy]]:
    """Once it has seen a request, and what became of the slots."""
    with running(llama) as (engine, proxy):
        post_chat(proxy.url, chat([user("The first. " * 30)]), X_PrefixPilot_Mode="off")
        while stats(proxy)["state"] == "watching":
            post_chat(proxy.url, chat([user("The first. " * 30)]), X_PrefixPilot_Mode="off")
        engine.requests.clear()
        yield engine, proxy


def posts(engine: RawEngine) -> list[RawRequest]:
    return [request for request in engine.requests if request.lines[0].startswith(b"POST")]


def slots_of(engine: RawEngine) -> list[Any]:
    return [json.loads(request.body).get("id_slot") for request in posts(engine)]


def stats(proxy: RunningProxy) -> dict[str, Any]:
    document: dict[str, Any] = fetch(proxy.url, "GET", "/stats").json()["slots"]
    return document


def test_a_conversation_keeps_its_slot_and_others_go_elsewhere() -> None:
    first = [user(LONG + "When does it leave?")]
    with watched(LlamaCpp()) as (engine, proxy):
        post_chat(proxy.url, chat(first))
        post_chat(proxy.url, chat([*first, assistant("at nine"), user("And back?")]))
        post_chat(proxy.url, chat([user("Something else. " * 40)]))
        post_chat(proxy.url, chat([*first, assistant("at nine"), user("And back?"), assistant("at ten"), user("Why?")]))
        used = slots_of(engine)
        assert stats(proxy) == {"state": "on", "slots": 2, "named": 4}
    assert used[0] == used[1] == used[3] != used[2]


def test_every_other_character_of_the_body_stays() -> None:
    body = b'{ "model":"m",\n "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9 1"}], "seed": 1e0}'
    with watched(LlamaCpp()) as (engine, proxy):
        fetch(proxy.url, "POST", "/v1/chat/completions", body, {"Content-Type": "application/json", "X-Mine": "1"})
        sent = posts(engine)[0]
        slot = json.loads(sent.body)["id_slot"]
    assert sent.body == body[:-1] + b', "id_slot": %d}' % slot
    assert sent.header(b"content-length") == [b"%d" % len(sent.body)]
    assert sent.header(b"x-mine") == [b"1"] and sent.header(b"x-request-id") == []


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/chat/completions", {"messages": [user(LONG)], "id_slot": 1}),
        ("/v1/chat/completions", {"messages": [user(LONG)], "n": 2}),
        ("/v1/chat/completions", {"messages": [user(LONG)], "cache_prompt": False}),
        ("/v1/messages", {"messages": [user(LONG)], "max_tokens": 2}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/v1/chat/completions", ["no object"]),
    ],
)
def test_what_is_not_ours_to_place_goes_as_it_came(target: str, body: Any) -> None:
    with watched(LlamaCpp()) as (engine, proxy):
        data = json.dumps(body).encode()
        fetch(proxy.url, "POST", target, data, {"Content-Type": "application/json"})
        assert [request.body for request in posts(engine)] == [data]
        assert stats(proxy) == {"state": "on", "slots": 2, "named": 0}


@pytest.mark.parametrize("target", ["/v1/completions", "/v1/responses"])
def test_other_apis_that_read_it_get_it_too(target: str) -> None:
    with watched(LlamaCpp()) as (engine, proxy):
        fetch(proxy.url, "POST", target, {"prompt": LONG, "input": LONG}, {"Content-Type": "application/json"})
        assert slots_of(engine) != [None]


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_only_mode_on_names_slots(mode: str) -> None:
    with watched(LlamaCpp()) as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]), X_PrefixPilot_Mode=mode)
        assert slots_of(engine) == [None]


def test_the_setting_turns_it_off() -> None:
    with running(LlamaCpp(), slots="off") as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]))
        assert slots_of(engine) == [None] and stats(proxy)["state"] == "off"


def test_another_engine_is_not_even_asked() -> None:
    with running(LlamaCpp(server=b"Server: other")) as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]))
        assert [r.lines[0].split()[1] for r in engine.requests] == [b"/health", b"/v1/chat/completions"]
        assert stats(proxy) == {"state": "unknown", "slots": None, "named": 0}


def test_a_server_that_does_not_say_how_many_slots_it_has_gets_none() -> None:
    llama = LlamaCpp()
    llama.props = {"role": "router"}
    with running(llama) as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]))
        assert slots_of(engine) == [None]


def test_a_slot_is_named_together_with_what_is_planned() -> None:
    with watched(LlamaCpp()) as (engine, proxy):
        answer = post_chat(proxy.url, chat([user("Which?")], [LONG + "a", LONG + "b"]))
        sent = json.loads(posts(engine)[0].body)
    assert answer.header("X-PrefixPilot-Plan") is not None
    assert "context_blocks" not in sent and LONG + "a" in sent["messages"][0]["content"] and "id_slot" in sent


def test_an_engines_error_leaves_the_slot_free_and_empty() -> None:
    llama = LlamaCpp()
    with watched(llama) as (engine, proxy):
        llama.status = b"500 Internal Server Error"
        for _ in range(3):
            post_chat(proxy.url, chat([user(LONG)]))
        assert None not in slots_of(engine)


def test_answers_that_belie_the_picture_end_it_for_a_while() -> None:
    with watched(LlamaCpp(cached=0)) as (engine, proxy):
        for turn in range(12):
            post_chat(proxy.url, chat([user(LONG + f"question {turn}")]))
        assert stats(proxy)["state"] == "paused"
        assert slots_of(engine)[-1] is None
        fetch(proxy.url, "POST", "/reset", b"")
        assert stats(proxy)["state"] == "watching"


def test_answers_that_agree_with_the_picture_keep_it() -> None:
    with watched(LlamaCpp(cached=390)) as (_, proxy):
        for turn in range(12):
            post_chat(proxy.url, chat([user(LONG + f"question {turn}")]))
        assert stats(proxy) == {"state": "on", "slots": 2, "named": 12}


def test_until_it_is_seen_what_becomes_of_idle_slots_none_is_named() -> None:
    llama = LlamaCpp()
    llama.held = [None, 300]
    with running(llama) as (engine, proxy):
        for turn in range(4):
            post_chat(proxy.url, chat([user(LONG + f"question {turn}")]))
        assert stats(proxy) == {"state": "watching", "slots": 2, "named": 0}
        assert slots_of(engine) == [None] * 4


def test_a_server_that_uses_one_slot_only_is_asked_for_another_once() -> None:
    llama = LlamaCpp()
    llama.held = [None, 300]
    with running(llama) as (engine, proxy):
        for turn in range(12):
            post_chat(proxy.url, chat([user(LONG + f"question {turn}")]))
        assert [slot for slot in slots_of(engine) if slot is not None] == [0]
        llama.held = [300, 300]
        post_chat(proxy.url, chat([user(LONG)]))
        while stats(proxy)["state"] == "watching":
            post_chat(proxy.url, chat([user(LONG)]))
        assert stats(proxy)["state"] == "on"


def test_where_idle_slots_are_cleared_the_choice_is_left_to_llamacpp() -> None:
    llama = LlamaCpp()
    llama.held = [300, 0]
    with watched(llama) as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]))
        assert stats(proxy) == {"state": "left", "slots": 2, "named": 0}
        assert slots_of(engine) == [None]


def test_one_slot_is_no_choice() -> None:
    with running(LlamaCpp(slots=1)) as (engine, proxy):
        post_chat(proxy.url, chat([user(LONG)]))
        assert stats(proxy) == {"state": "one", "slots": 1, "named": 0} and slots_of(engine) == [None]


SHORT = [f"Rule {n}: " + f"the warden of gate {n} keeps key {n * 7} in box {n * 3}. " * 12 for n in range(9)]
"""Some 300 tokens each."""


def sent_order(request: RawRequest) -> list[int]:
    text = json.loads(request.body)["messages"][0]["content"]
    return sorted((n for n, block in enumerate(SHORT) if block in text), key=lambda n: text.index(SHORT[n]))


def ask_about(proxy: RunningProxy, *numbers: int, **headers: str) -> None:
    post_chat(proxy.url, chat([user("Which?")], [SHORT[n] for n in numbers]), **headers)


def test_no_order_follows_what_is_used_up() -> None:
    """2 and 3 behind 1 are gone with the prompt that went on with 1 otherwise; off, the index believes in them."""
    orders = {}
    for slots in ("auto", "off"):
        with running(LlamaCpp(slots=1), slots=slots) as (engine, proxy):
            for numbers in ((1, 2, 3), (7, 8), (1, 4, 5), (8, 7), (3, 4, 2, 1)):
                ask_about(proxy, *numbers)
            orders[slots] = [sent_order(request) for request in posts(engine)]
    assert orders["auto"] == [[1, 2, 3], [7, 8], [1, 4, 5], [7, 8], [1, 4, 3, 2]]
    assert orders["off"][-1] == [1, 2, 3, 4]


def test_the_index_of_shadow_is_of_prompts_that_were_not_sent() -> None:
    with running(LlamaCpp(slots=1)) as (_, proxy):
        for numbers in ((1, 2, 3), (7, 8), (1, 4, 5)):
            ask_about(proxy, *numbers, X_PrefixPilot_Mode="shadow")
        body = chat([user("Which?")], [SHORT[n] for n in (3, 2, 1)])
        plan = post_chat(proxy.url, body, X_PrefixPilot_Mode="shadow").header("X-PrefixPilot-Plan")
    assert plan is not None and json.loads(plan)["prefix_len"] == 3


def test_a_request_that_failed_used_nothing_up() -> None:
    llama = LlamaCpp(slots=1)
    with running(llama) as (engine, proxy):
        ask_about(proxy, 1, 2, 3)
        ask_about(proxy, 7, 8)
        llama.status = b"400 Bad Request"
        ask_about(proxy, 1, 4, 5)
        llama.status = b"200 OK"
        ask_about(proxy, 3, 4, 2, 1)
        assert sent_order(posts(engine)[-1]) == [1, 2, 3, 4]


@pytest.mark.engine
def test_with_one_slot_llamacpp_reuses_more(tiny_model: Path) -> None:
    """The fifth request: 1 and 4, which it holds, where 1, 2 and 3 are thought to be there only 1 is."""
    cached = {}
    for slots in ("auto", "off"):
        with (
            EmbeddedEngine(tiny_model, parallel=1) as engine,
            serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, slots=slots)) as proxy,
        ):
            assert fetch(proxy.url, "GET", "/readyz").status == 200
            for numbers in ((1, 2, 3), (7, 8), (1, 4, 5), (8, 7), (3, 4, 2, 1)):
                body = chat([user("Which?")], [SHORT[n] for n in numbers], max_tokens=1)
                usage = post_chat(proxy.url, body).json()["usage"]
            cached[slots] = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached["auto"] > 1.5 * cached["off"] > 100


@pytest.mark.engine
def test_llamacpp_itself_reuses_what_was_expected(tiny_model: Path) -> None:
    """Conversations between requests that share their documents: with named slots the engine reports more."""
    documents = [f"Rule {n}: " + f"the warden of gate {n} keeps key {n * 7} in box {n * 3}. " * 12 for n in range(6)]

    def tokens(slots: str) -> int:
        cached = 0
        with (
            EmbeddedEngine(tiny_model, parallel=3) as engine,
            serve_in_thread(ProxySettings(engine.base_url, port=0, drain_timeout=2, slots=slots)) as proxy,  # type: ignore[arg-type]
        ):
            assert fetch(proxy.url, "GET", "/readyz").status == 200
            history: list[dict[str, Any]] = []
            for turn in range(4):
                history.append(user(f"{documents[0]} {documents[1]} Question {turn}?"))
                order = [history, [user(documents[0] + documents[2 + turn])], [user(documents[0] + "What is in it?")]]
                for messages in order:
                    answer = post_chat(proxy.url, chat(messages, max_tokens=1)).json()
                    cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                    if messages is history:
                        reply = answer["choices"][0]["message"]["content"]
                history.append(assistant(reply))
            assert stats(proxy)["state"] == ("on" if slots == "auto" else "off")
        return cached

    assert tokens("auto") > tokens("off")
