"""Volatile text and the order of tools, through the pipeline and over sockets: each switch, and what is remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from prefixpilot.apis.base import Prompt
from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.call import Call, Options
from prefixpilot.proxy.control.controller import ControlSettings, Route, Trial
from prefixpilot.proxy.control.trials import Trials
from prefixpilot.proxy.hosted_settings import ProviderSettings
from prefixpilot.proxy.ordinary.settings import OrdinarySettings
from prefixpilot.proxy.steady import Conversations
from prefixpilot.testing import SimulatedEngine
from prefixpilot.volatile.base import VolatileRules

from .steadying import Relay, texts
from .support import assistant, chat, fetch, post_chat, user

ROUND = VolatileRules(clock="round")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b", "c")]
BILLING = "x-anthropic-billing-header: cc_version=9.9.9; cch=77f1;\n"


def system(minute: int, more: str = "") -> dict[str, Any]:
    return {"role": "system", "content": f"You help.\nCurrent time: 2026-11-30 14:{minute:02d}\nBe kind.{more}"}


def call_of(name: str) -> list[dict[str, Any]]:
    made = {"id": name, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": name, "content": f"result {name}"},
    ]


def test_nothing_is_done_unless_it_is_switched_on() -> None:
    body = chat([system(3), user("Hi?")], tools=TOOLS[::-1])
    assert Relay().ask("chat", body).body == json.dumps(body).encode()


def test_a_time_is_rounded_told_at_the_end_and_sent_again_where_it_was_told() -> None:
    relay = Relay(volatile=ROUND)
    one = texts("chat", relay.sent("chat", chat([system(3), user("Hi?")])))
    assert one == ["You help.\nCurrent time: 2026-11-30\nBe kind.", "Hi?\n\n[Current time: 2026-11-30 14:03]"]
    loop = texts("chat", relay.sent("chat", chat([system(4), user("Hi?"), *call_of("1")])))
    assert loop == [*one, "result 1"]
    two = texts("chat", relay.sent("chat", chat([system(5), user("Hi?"), *call_of("1"), assistant(), user("And?")])))
    assert two == [*loop, "ok", "And?\n\n[Current time: 2026-11-30 14:05]"]
    assert relay.metric("prefixpilot_fail_opens_total") == 0
    relay.app._ordinary.clear()  # type: ignore[union-attr]
    for minute in (6, 7):
        lost = texts("chat", relay.sent("chat", chat([system(minute), user("Hi?"), *call_of("1")])))
        assert lost == [one[0], "Hi?\n\n[Current time: 2026-11-30 14:06]", "result 1"], "told once more, and once only"


def test_a_time_belongs_to_its_sender_and_to_its_system_text() -> None:
    relay = Relay(volatile=ROUND)
    relay.sent("chat", chat([system(3), user("Hi?")]), key="one")
    for key, front in (("two", system(4)), ("one", system(4, " Be brief."))):
        loop = chat([front, user("Hi?"), *call_of("1")])
        told = front["content"].partition("\n")[2].partition("\n")[0]
        assert texts("chat", relay.sent("chat", loop, key=key))[1] == f"Hi?\n\n[{told}]"


def test_what_is_asked_again_tells_the_time_of_the_newest_request() -> None:
    relay = Relay(volatile=ROUND)
    for minute in (3, 9):
        sent = texts("chat", relay.sent("chat", chat([system(minute), user("Hi?")])))
        assert sent[1] == f"Hi?\n\n[Current time: 2026-11-30 14:{minute:02d}]"
    later = texts("chat", relay.sent("chat", chat([system(10), user("Hi?"), assistant(), user("And?")])))
    assert later[1] == "Hi?\n\n[Current time: 2026-11-30 14:09]"
    quiet = {"role": "system", "content": "You help.\nCurrent time: 2026-11-30\nBe kind."}
    assert texts("chat", relay.sent("chat", chat([quiet, user("Hi?")])))[1] == "Hi?", "it tells no time itself"


def test_what_the_engine_refused_was_not_told() -> None:
    relay = Relay(volatile=ROUND)
    relay.refused("chat", chat([system(3), user("Hi?")]))
    loop = chat([system(4), user("Hi?"), *call_of("1")])
    assert texts("chat", relay.sent("chat", loop))[1] == "Hi?\n\n[Current time: 2026-11-30 14:04]"


@pytest.mark.parametrize("headers", [{"mode": "off"}, {"mode": "shadow"}])
def test_modes_in_which_every_byte_stays(headers: dict[str, str]) -> None:
    relay = Relay(volatile=VolatileRules(clock="round", tool_order=True))
    body = chat([system(3), user("Hi?")], tools=TOOLS[::-1])
    relay.ask("chat", chat([system(3), user("Hi?")], tools=TOOLS))
    assert relay.ask("chat", body, **headers).body == json.dumps(body).encode()


def test_requests_that_are_held_out_stay_as_they_are() -> None:
    relay = Relay(volatile=ROUND, control=ControlSettings(hold_out=0.05))
    bodies = [chat([system(3), user(f"Hi {i}?")]) for i in range(300)]
    stayed = [relay.ask("chat", body).body == json.dumps(body).encode() for body in bodies]
    assert 3 <= sum(stayed) <= 40


class Switch(Trials):
    """Holds every request out once it is told to, as on a route that goes to bypass."""

    held_out = False

    def entered(self, options: Options, call: Call, prompt: Prompt) -> Options:
        return replace(options, trial=Trial(Route("", "", ""), "held_out" if self.held_out else "treated", 1))


def test_a_front_that_was_steady_stays_so_when_its_route_is_switched() -> None:
    switch = Switch(ControlSettings())
    rules = VolatileRules(clock="round", ids=True, tool_order=True)
    openai = ProviderSettings("openai", cache_key=True)
    relay = Relay(steps={"trials": switch}, volatile=rules, providers=openai)
    one = relay.sent("chat", chat([system(3), user("Hi?")], tools=TOOLS))
    switch.held_out = True
    two = relay.sent("chat", chat([system(4), user("Hi?"), assistant(), user("And?")], tools=TOOLS[::-1]))
    assert (two["tools"], two["messages"][:2]) == (TOOLS, one["messages"])
    assert "prompt_cache_key" in one and "prompt_cache_key" not in two
    new = chat([system(4), user("Other?")], tools=TOOLS[::-1])
    for body in (new, {**new, "context_blocks": []}):
        assert relay.sent("chat", body) == new


def test_rules_work_without_recognisers_and_with_them_switched_off() -> None:
    relay = Relay(volatile=ROUND, ordinary=OrdinarySettings(recognise=()))
    for headers in ({}, {"recognise": "off"}):
        sent = texts("chat", relay.sent("chat", chat([system(3), user("Hi?")]), **headers))
        assert sent[1].endswith("[Current time: 2026-11-30 14:03]")
    loop = relay.sent("chat", chat([system(4), user("Hi?"), *call_of("1")]))
    assert texts("chat", loop)[1].endswith("[Current time: 2026-11-30 14:03]")


def memories(*names: str) -> str:
    return "\nUser Memories:\n" + "\n".join(
        f"- The {name} likes {name}s, and has told us so at length." for name in names
    )


def test_one_string_gets_the_work_of_rules_and_of_recognisers() -> None:
    """The time goes, the memories move to the end, and among them those that the engine had come first."""
    relay = Relay(volatile=VolatileRules(clock="round", memory=True))
    names = ["fox", "owl", "bee", "cat", "dog", "emu"]

    def ask(minute: int, *given: str) -> list[str]:
        front = f"You help.\nCurrent time: 2026-11-30 14:{minute:02d}{memories(*given)}\nBe kind."
        body = chat([{"role": "system", "content": front}, user(f"Hi {minute}?")])
        return texts("chat", relay.sent("chat", body))

    first, second = ask(3, *names)[0], ask(9, *names[::-1])[0]
    assert first == f"You help.\nCurrent time: 2026-11-30\nBe kind.{memories(*names)}"
    assert second == first


def test_documents_are_not_read() -> None:
    relay = Relay(volatile=VolatileRules(clock="move"))
    node = "file_path: a.md\n\nCurrent time: 2026-11-30 14:03\nIt is said here."
    dashes = "-" * 21
    front = f"Context information is below.\n{dashes}\n{node}\n\n{node.replace('a.md', 'b.md')}\n{dashes}\nAnswer it."
    body = chat([{"role": "system", "content": front}, user("Hi?")])
    assert relay.sent("chat", body) == body
    line = chat([{"role": "system", "content": "Current time: 2026-11-30 14:03\nIt is said here."}, user("Hi?")])
    assert relay.sent("chat", line) != line, "the test can see"


def test_blocks_come_with_a_front_that_is_steady() -> None:
    rules = VolatileRules(clock="round", ids=True, billing_header=True, tool_order=True)
    relay = Relay(volatile=rules)
    front = {"role": "system", "content": f"{BILLING}Request ID: 5f0c77aa\nCurrent time: 2026-11-30 14:03\nBe kind."}
    for conversation in ({}, {"conversation": "c"}):
        relay.ask("chat", chat([front, user("Hi?")], ["A", "B"], tools=TOOLS), **conversation)
        forward = relay.ask("chat", chat([front, user("Hi?")], ["B", "A"], tools=TOOLS[::-1]), **conversation)
        sent = json.loads(forward.body)
        steady = "Current time: 2026-11-30\nBe kind.\nRequest ID: 5f0c77aa"
        assert sent["messages"][0]["content"] == steady
        assert sent["tools"] == TOOLS and "context_blocks" not in sent
        assert {change.rule for change in forward.changes} == {"billing-header", "clock", "ids", "tool-order"}
    assert forward.report is not None and forward.report.plan is not None
    assert relay.metric("prefixpilot_fail_opens_total") == 0


def test_the_scope_of_blocks_is_that_of_the_steady_front() -> None:
    relay = Relay(volatile=VolatileRules(billing_header=True, tool_order=True))

    def ask(values: str, tools: list[Any], blocks: list[str]) -> str:
        front = {"role": "system", "content": f"x-anthropic-billing-header: {values}\nBe kind."}
        sent = relay.sent("chat", chat([front, user("Hi?")], blocks, tools=tools))
        content: str = sent["messages"][1]["content"]
        return content

    ask("1", TOOLS, ["A", "B"])
    assert ask("2", TOOLS[::-1], ["B", "A"]).startswith("[Doc 1]\nA")


def test_a_conversation_without_blocks_gets_a_steady_front_too() -> None:
    relay = Relay(volatile=VolatileRules(tool_order=True))
    relay.ask("chat", chat([user("Hi?")], tools=TOOLS), conversation="c")
    forward = relay.ask("chat", chat([user("Hi?")], tools=TOOLS[::-1]), conversation="c")
    assert json.loads(forward.body)["tools"] == TOOLS
    assert (forward.outcome, forward.touched) == ("planned", True)
    other = chat([user("Hi?")], tools=TOOLS[::-1])
    assert relay.sent("chat", other, conversation="d") == other


def test_new_tools_come_last_in_each_conversation() -> None:
    relay = Relay(volatile=VolatileRules(tool_order=True))
    relay.sent("chat", chat([user("Hi?")], tools=TOOLS[:2]))
    grown = chat([user("Hi?"), assistant(), user("And?")], tools=[TOOLS[2], TOOLS[1], TOOLS[0]])
    assert relay.sent("chat", grown)["tools"] == TOOLS


@pytest.mark.parametrize(
    ("engine", "upstream", "stays"),
    [
        ("http://127.0.0.1:9", "auto", False),
        ("https://api.anthropic.com", "auto", True),
        ("http://gw", "anthropic", True),
    ],
)
def test_the_billing_header_goes_only_where_nobody_reads_it(engine: str, upstream: str, stays: bool) -> None:
    relay = Relay(engine, volatile=VolatileRules(billing_header=True), providers=ProviderSettings(upstream))  # type: ignore[arg-type]
    body = {"model": "m", "max_tokens": 9, "system": f"{BILLING}Be kind.", "messages": [user("Hi?")]}
    assert relay.sent("messages", body)["system"] == (body["system"] if stays else "Be kind.")


def test_a_dry_run_lists_the_changes_and_changes_nothing() -> None:
    with SimulatedEngine() as engine:
        settings = ProxySettings(engine.base_url, port=0, volatile=VolatileRules(clock="round", tool_order=True))
        with serve_in_thread(settings) as proxy:
            body = chat([system(3), user("Hi?")], tools=TOOLS)
            post_chat(proxy.url, body)
            again = chat([system(7), user("Hi?")], tools=TOOLS[::-1])
            dry = post_chat(proxy.url, again, X_PrefixPilot_Mode="explain", X_Request_Id="x").json()
            assert [change["rule"] for change in dry["changes"]] == ["clock", "clock", "tool-order"]
            assert "14:07" not in json.dumps(dry["changes"]) and "14:07" in json.dumps(dry["body"])
            sent = post_chat(proxy.url, again, X_Request_Id="x")
            assert json.loads(sent.header("X-PrefixPilot-Plan") or "")["changed"] == 3
            assert engine.requests[-1].json() == dry["body"]
            plan = fetch(proxy.url, "GET", "/plans/x").json()
            assert (plan["changed"], plan["changes"]) == (3, dry["changes"])
            stats = fetch(proxy.url, "GET", "/stats").json()
            assert stats["volatile_changes"]["clock"] == 4 and stats["volatile_changes"]["tool-order"] == 1
            assert stats["sizes"]["forms"] == 2 and stats["sizes"]["forms_bytes"] > 0
            assert fetch(proxy.url, "POST", "/reset").json()["forms"] == 2
            assert post_chat(proxy.url, again).status == 200
            assert engine.requests[-1].json()["tools"] == TOOLS[::-1], "its own order is the first again"


def test_a_failing_rule_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(volatile=VolatileRules(ids=True))
    broken = relay.app._preface
    broken._steady = None  # type: ignore[assignment]
    for body in (chat([system(3), user("Hi?")]), chat([system(3), user("Hi?")], ["A"])):
        forward = relay.ask("chat", body)
        assert json.loads(forward.body)["messages"][0] == system(3)
    assert relay.metric("prefixpilot_fail_opens_total", step="front") == 1
    assert relay.metric("prefixpilot_fail_opens_total", step="treat") == 1


def test_conversations_are_bounded() -> None:
    known = Conversations(2)
    for name in (b"a", b"b", b"a", b"c"):
        known.add(name)
    assert [name in known for name in (b"a", b"b", b"c")] == [True, False, True]
    known.clear()
    assert len(known) == 0


def test_settings_name_their_table() -> None:
    with pytest.raises(ConfigError, match="clock"):
        VolatileRules(clock="day")  # type: ignore[arg-type]
