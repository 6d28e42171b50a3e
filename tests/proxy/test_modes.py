"""Modes explain and shadow, the hold-out, and the usage that only we asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from prefixpilot.formats.catalogue import RECOGNISERS
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.control.controller import ControlSettings
from prefixpilot.proxy.explain import explained as answer_of
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond

from .support import Desk, chat, fetch, metric, post_chat, user

TEXTS = [f"Document {i} says that the {i}th bridge is closed on Sundays." for i in range(5)]
MEMORIES = [f"The client has told us of bridge {i} and of the weather there, at length." for i in range(5)]


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(engine: SimulatedEngine) -> Iterator[RunningProxy]:
    with serve_in_thread(ProxySettings(engine.base_url, port=0, control=ControlSettings(ask_usage=True))) as proxy:
        yield proxy


def plain(memories: list[str]) -> dict[str, Any]:
    text = "You help.\n\nUser Memories:\n" + "\n".join(f"- {memory}" for memory in memories)
    return chat([{"role": "system", "content": text}, user("Which bridge?")])


def test_explain_tells_the_plan_and_the_body_and_calls_no_engine(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    post_chat(proxy.url, chat([user("Q?")], TEXTS[:3]), X_Request_Id="a")
    before = len(engine.requests)
    answer = post_chat(proxy.url, chat([user("Q?")], TEXTS[2::-1]), X_PrefixPilot_Mode="explain", X_Request_Id="b")
    explained = answer.json()
    assert (answer.status, len(engine.requests)) == (200, before)
    assert (explained["request_id"], explained["outcome"], explained["changed"]) == ("b", "planned", True)
    assert explained["plan"]["prefix_len"] == 3
    assert explained["body"]["messages"][0]["content"].startswith(f"[Doc 1]\n{TEXTS[0]}")
    assert "context_blocks" not in explained["body"]
    assert fetch(proxy.url, "GET", "/plans/b").status == 404, "a plan that was never carried out is not kept"
    sent = post_chat(proxy.url, chat([user("Q?")], TEXTS[2::-1]), X_Request_Id="b")
    assert sent.status == 200 and engine.requests[-1].json()["messages"] == explained["body"]["messages"]


def test_explain_learns_nothing(proxy: RunningProxy) -> None:
    body = chat([user("Other?")], ["Only here 1.", "Only here 2."])
    for _ in range(2):
        answer = post_chat(proxy.url, body, X_PrefixPilot_Mode="explain", X_PrefixPilot_Conversation="never")
        assert (answer.json()["plan"]["prefix_len"], answer.json()["plan"]["restored"]) == (0, 0)


def test_explain_shows_what_an_ordinary_request_would_get(proxy: RunningProxy) -> None:
    post_chat(proxy.url, plain(MEMORIES))
    answer = post_chat(proxy.url, plain(MEMORIES[::-1]), X_PrefixPilot_Mode="explain").json()
    assert answer["changed"] and answer["plan"]["moved"] == 1
    assert answer["body"]["messages"] == plain(MEMORIES)["messages"]


def explained(desk: Desk, body: dict[str, Any], **asked: Any) -> list[dict[str, Any]]:
    """What mode explain tells of the formats of a body."""
    sent = desk.ask(body, mode="explain", reply=None, **asked)
    told: list[dict[str, Any]] = json.loads(answer_of(sent.forward))["formats"]
    return told


def test_explain_says_which_format_stands_where_and_that_it_moved() -> None:
    desk = Desk()
    desk.ask(plain(MEMORIES))
    (note,) = explained(desk, plain(MEMORIES[::-1]))
    expected = {"pointer": ["messages", 0, "content"], "role": "system", "units": len(MEMORIES)}
    assert note == {**note, **expected, "moved": True, "replaced": 0, "why": ""}
    assert note["format"] in {recogniser.name for recogniser in RECOGNISERS}


LONG = [f"{word} " * 80 for word in ("rye", "oat", "wheat", "spelt")]


def sources(texts: list[str], tag: str = '<source id="{}">{}</source>') -> str:
    return "<context>\n" + "\n".join(tag.format(n, text) for n, text in enumerate(texts, 1)) + "\n</context>"


@pytest.mark.parametrize(
    ("messages", "format", "why"),
    [
        ([user(sources(LONG))], "open_webui_rag", "no gain"),
        ([user(sources(["a", "b"]))], "open_webui_rag", "below the threshold"),
        ([user(sources(LONG[:1]))], "open_webui_rag", "one unit alone"),
        ([user(sources(LONG, "<page index={}>{}</page>"))], "", ""),
        ([user(sources(LONG)), {"role": "assistant", "content": "ok"}, user("?")], "open_webui_rag", "history"),
        ([user("<context>\n" + f'<source id="1">{LONG[0]}')], "open_webui_rag", "edges not proved"),
        (
            [user("\n\n".join(f"Title: mail {n}\nDate: 2026-01-0{n}\n{text}" for n, text in enumerate(LONG, 1)))],
            "headed_blocks",
            "edges not proved",
        ),
    ],
)
def test_explain_says_why_something_stays(messages: list[dict[str, Any]], format: str, why: str) -> None:
    told = explained(Desk(), {"model": "m", "messages": messages})
    of_it = [note for note in told if note["format"] == format]
    assert len(of_it) == bool(format)
    assert all(note["why"].startswith(why) and not note["moved"] for note in of_it)


def test_an_ordinary_request_is_told_what_is_predicted_to_be_cached() -> None:
    desk = Desk()
    desk.ask(plain(MEMORIES))
    sent = desk.ask(plain(MEMORIES[::-1]))
    assert sent.plan["predicted_cached_tokens"] > 0


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_turn_that_the_engine_refused_is_not_called_recorded(status: int) -> None:
    def recorded(url: str) -> Any:
        answer = post_chat(url, chat([user("Q?")], TEXTS), X_PrefixPilot_Conversation="refused")
        return json.loads(answer.header("X-PrefixPilot-Plan") or "")["recorded"]

    with SimulatedEngine() as engine, serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
        engine.fault = Respond(status)
        assert recorded(proxy.url) is False
        engine.fault = None
        assert recorded(proxy.url) is True
        engine.fault = Respond(status)
        assert recorded(proxy.url) is True, "it was before"


def test_explain_elsewhere_is_refused_and_names_the_paths(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    before = len(engine.requests)
    answer = fetch(proxy.url, "POST", "/v1/embeddings", {"input": "x"}, {"X-PrefixPilot-Mode": "explain"})
    assert (answer.status, len(engine.requests)) == (400, before)
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


def test_a_body_that_is_no_json_is_explained_as_unchanged(proxy: RunningProxy) -> None:
    answer = fetch(proxy.url, "POST", "/v1/chat/completions", b"no JSON", {"X-PrefixPilot-Mode": "explain"}).json()
    assert (answer["outcome"], answer["changed"], answer["body"]) == ("passthrough", False, None)


def test_shadow_reports_what_on_would_do_and_sends_what_off_sends() -> None:
    desk = Desk()
    desk.ask(chat([user("Q?")], TEXTS), mode="shadow")
    shadow = desk.ask(chat([user("Q?")], TEXTS[::-1]), mode="shadow")
    off = Desk().ask(chat([user("Q?")], TEXTS[::-1]), mode="off")
    assert shadow.body == off.body
    assert (shadow.plan["mode"], shadow.plan["prefix_len"]) == ("shadow", len(TEXTS))
    assert desk.ask(chat([user("Q?")], TEXTS[::-1])).plan["prefix_len"] == 0, "nothing of it was sent"


def test_a_conversation_in_shadow_keeps_its_bytes() -> None:
    desk = Desk()
    first = desk.ask(chat([user("Q?")], TEXTS[:3]), "c", mode="shadow")
    history = [user("Q?"), {"role": "assistant", "content": "ok"}]
    second = desk.ask(chat([*history, user("And?")], TEXTS[1:4]), "c", mode="shadow")
    assert second.body["messages"][0] == first.body["messages"][0]
    assert all(text in second.newest for text in TEXTS[1:4]), "in mode off nothing is left out"
    assert second.plan["replaced"] == 2


def test_an_ordinary_request_in_shadow_keeps_its_bytes() -> None:
    desk = Desk()
    desk.ask(plain(MEMORIES), mode="shadow")
    shadow = desk.ask(plain(MEMORIES[::-1]), mode="shadow")
    assert shadow.body == plain(MEMORIES[::-1])
    assert shadow.plan["moved"] == 1
    assert desk.ask(plain(MEMORIES[::-1])).body == plain(MEMORIES[::-1]), "no form was learnt that was never sent"


def test_what_shadow_would_do_is_counted_apart() -> None:
    desk = Desk()
    for memories in (MEMORIES, MEMORIES[::-1]):
        desk.ask(plain(memories), mode="shadow")
    assert desk.metric("prefixpilot_shadow_treated_total", what="moved") == 1
    assert desk.metric("prefixpilot_treated_total", what="moved") == 0


def test_a_region_of_system_text_that_is_sent_again_is_told_as_restored() -> None:
    desk = Desk()
    for memories in (MEMORIES, MEMORIES[::-1]):
        desk.ask(plain(memories))
    again = desk.ask(plain(MEMORIES[::-1]))
    assert (again.body, again.plan["moved"], again.plan["restored"]) == (plain(MEMORIES), 0, 1)


def test_without_dedupe_earlier_blocks_stand_in_full_again(proxy: RunningProxy, engine: SimulatedEngine) -> None:
    history = [user("First?"), {"role": "assistant", "content": "ok"}, user("And?")]
    for header, in_full in (("on", False), ("off", True)):
        named = {"X_PrefixPilot_Conversation": f"dedupe-{header}", "X_PrefixPilot_Dedupe": header}
        reply = post_chat(proxy.url, chat(history[:1], TEXTS[:2]), **named).json()["choices"][0]["message"]
        history[1] = reply
        post_chat(proxy.url, chat(history, TEXTS[:2]), **named)
        chats = [request for request in engine.requests if request.path.endswith("/chat/completions")]
        messages = chats[-1].json()["messages"]
        assert all(text in messages[0]["content"] for text in TEXTS[:2])
        assert [text in messages[-1]["content"] for text in TEXTS[:2]] == [in_full] * 2


@pytest.mark.parametrize("path", ["/completion", "/infill", "/generate", "/api/chat"])
def test_blocks_on_an_engine_s_own_path_do_not_vanish(path: str, proxy: RunningProxy, engine: SimulatedEngine) -> None:
    before = len(engine.requests)
    answer = fetch(proxy.url, "POST", path, {"prompt": "Q", "context_blocks": TEXTS})
    assert (answer.status, len(engine.requests)) == (400, before)
    assert "/v1/completions" in answer.json()["error"]["message"]
    fetch(proxy.url, "POST", path, {"prompt": "Q"})
    assert engine.requests[-1].path == path, "without blocks it is the engine's"


@pytest.mark.parametrize(("name", "near"), [("open_web_ui_rag", "open_webui_rag"), ("xyzzy", "off, all")])
def test_the_name_of_a_format_that_there_is_not_is_refused(name: str, near: str, proxy: RunningProxy) -> None:
    answer = post_chat(proxy.url, plain(MEMORIES), X_PrefixPilot_Recognise=f"mem0,{name}")
    assert answer.status == 400
    assert near in answer.json()["error"]["message"]


# -- the hold-out


def held_out(desk: Desk, count: int = 400) -> list[int]:
    """Numbers of the users whose conversations are held out."""
    asked = {i: desk.ask(chat([user(f"User {i}?")], TEXTS), f"c{i}") for i in range(count)}
    return [i for i, sent in asked.items() if (trial := sent.forward.trial) and trial.arm == "held_out"]


def test_a_share_of_the_conversations_is_held_out_and_loses_nothing() -> None:
    desk = Desk(control=ControlSettings(hold_out=0.05))
    names = held_out(desk)
    assert 5 < len(names) < 40
    first = user(f"User {names[0]}?")
    again = desk.ask(chat([first, {"role": "assistant", "content": "ok"}, user("And?")], TEXTS[::-1]), f"c{names[0]}")
    assert again.forward.trial is not None and again.forward.trial.arm == "held_out"
    assert all(text in again.body["messages"][0]["content"] for text in TEXTS), "its history is restored"
    positions = [again.newest.index(text) for text in TEXTS[::-1]]
    assert positions == sorted(positions)
    assert "Please" not in again.newest
    assert again.plan["restored"] == 1


def test_who_names_a_mode_is_not_compared() -> None:
    desk = Desk(control=ControlSettings(hold_out=0.05))
    for mode in ("on", "off", "shadow", "explain"):
        assert desk.ask(chat([user("Q?")], TEXTS), mode=mode).forward.trial is None
    assert Desk().ask(chat([user("Q?")], TEXTS)).forward.trial is None


def test_an_ordinary_request_that_is_held_out_stays_as_it_came_but_for_its_past() -> None:
    desk = Desk(control=ControlSettings(hold_out=0.05))
    desk.ask(plain(MEMORIES), mode="on")
    asked = {}
    for i in range(200):
        body = plain(MEMORIES[::-1])
        body["messages"][1] = user(f"Which bridge, {i}?")
        asked[i] = desk.ask(body)
    held = [sent for sent in asked.values() if sent.forward.trial and sent.forward.trial.arm == "held_out"]
    treated = [sent for sent in asked.values() if sent.forward.trial and sent.forward.trial.arm == "treated"]
    assert held and treated
    assert not any(sent.forward.touched for sent in held)
    assert all(sent.forward.touched for sent in treated)


def test_routes_are_shown() -> None:
    with SimulatedEngine() as engine:
        settings = ProxySettings(engine.base_url, port=0, control=ControlSettings(hold_out=0.05))
        with serve_in_thread(settings) as proxy:
            post_chat(proxy.url, chat([user("Q?")], TEXTS))
            (route,) = fetch(proxy.url, "GET", "/stats").json()["routes"]
    assert (route["api"], route["model"], route["bypassed"], route["cost_gain"]) == ("chat", "m", False, None)
    assert route["treated"] + route["held_out"] == 1


# -- usage


@pytest.mark.parametrize("options", [None, {}, {"include_usage": True}, {"include_usage": False}])
def test_usage_that_only_we_asked_for_is_taken_out_again(
    options: dict[str, bool] | None, engine: SimulatedEngine, proxy: RunningProxy
) -> None:
    body = chat([user("Q?")], TEXTS, stream=True, **({} if options is None else {"stream_options": options}))
    before = cached(proxy)
    answer = post_chat(proxy.url, body)
    asked = options is not None and "include_usage" in options
    wanted = bool(options and options.get("include_usage"))
    sent = engine.requests[-1].json()["stream_options"]["include_usage"]
    assert sent is (wanted if asked else True)
    assert (b'"prompt_tokens"' in answer.body) is wanted
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert (cached(proxy) > before) is sent, "the engine's count was read"


def cached(proxy: RunningProxy) -> float:
    return metric(fetch(proxy.url, "GET", "/metrics").body.decode(), "prefixpilot_prompt_tokens_total", mode="on")


def test_an_untouched_stream_is_not_asked_for_usage(engine: SimulatedEngine, proxy: RunningProxy) -> None:
    body = json.dumps(chat([user("No blocks here.")], stream=True)).encode()
    fetch(proxy.url, "POST", "/v1/chat/completions", body)
    assert "stream_options" not in engine.requests[-1].json()
