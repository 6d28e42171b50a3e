"""What hosted providers are told: only theirs, only if it is on, and on what is really sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.providers.breakpoints import BreakpointSettings, census
from prefixpilot.providers.limits import builtin_limits
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.hosted import provider_of
from prefixpilot.proxy.hosted_settings import ProviderSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.volatile.base import VolatileRules

from .dialects import body as said_in
from .steadying import Relay, texts
from .support import assistant, fetch, user

ANTHROPIC = ProviderSettings("anthropic", cache_marks=True)
OPENAI = ProviderSettings("openai", cache_key=True)
LONG = " ".join(f"Rule {i * 37 % 1009} is to be kept." for i in range(2500))
TOOLS = [{"name": name, "input_schema": {"title": LONG}} for name in ("a", "b")]
MARK = {"type": "ephemeral"}


def messages(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "claude-opus-4-1", "max_tokens": 9, "system": LONG, "messages": list(turns), **more}


def marks(body: dict[str, Any]) -> list[tuple[str | int, ...]]:
    return [mark.pointer for mark in census(body).marks]


@pytest.mark.parametrize(
    ("engine", "upstream", "provider"),
    [
        ("https://api.anthropic.com/v1", "auto", "anthropic"),
        ("https://eu.api.openai.com", "auto", None),
        ("https://api.openai.com", "auto", "openai"),
        ("https://mine.openai.azure.com:443", "auto", "openai"),
        ("http://127.0.0.1:8000", "auto", None),
        ("http://127.0.0.1:8000", "anthropic", "anthropic"),
        ("https://api.openai.com", "other", None),
    ],
)
def test_whose_the_upstream_is(engine: str, upstream: Any, provider: str | None) -> None:
    assert provider_of(ProviderSettings(upstream), engine, builtin_limits()) == provider


@pytest.mark.parametrize(
    ("name", "value"), [("upstream", "x"), ("cache_marks", 1), ("cache_key", "on"), ("key_rate", 0)]
)
def test_settings_validate_themselves(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        ProviderSettings(**{name: value})


@pytest.mark.parametrize("providers", [ProviderSettings("anthropic"), ProviderSettings("other", True), OPENAI])
def test_no_mark_unless_it_is_on_and_anthropic_reads_it(providers: ProviderSettings) -> None:
    body = messages(user("Hi?"), assistant(), user("And?"))
    assert Relay(providers=providers).ask("messages", body).body == json.dumps(body).encode()


@pytest.mark.parametrize("headers", [{"mode": "off"}, {"mode": "shadow"}])
def test_no_mark_in_modes_that_change_nothing(headers: dict[str, str]) -> None:
    body = messages(user("Hi?"), assistant(), user("And?"))
    assert Relay(providers=ANTHROPIC).ask("messages", body, **headers).body == json.dumps(body).encode()


def test_marks_move_on_and_the_prompt_stays() -> None:
    relay = Relay(providers=ANTHROPIC)
    turns = [user("Hi?"), assistant(), user("And?")]
    one = relay.sent("messages", messages(*turns))
    assert marks(one) == [("system", 0), ("messages", 2, "content", 0)]
    two = relay.sent("messages", messages(*turns, assistant(), user("Then?")))
    assert marks(two) == [("system", 0), ("messages", 4, "content", 0)]
    assert texts("messages", two)[:4] == texts("messages", one)
    assert two["messages"][2] == user("And?")


def test_marks_stand_on_what_is_sent_after_all_that_was_done_to_it() -> None:
    """Tools in another order, a time that is told, nodes in another order: marks are set in the result."""
    rules = VolatileRules(clock="round", tool_order=True)
    relay = Relay(providers=ANTHROPIC, volatile=rules)
    front = f"{LONG}\nCurrent time: 2026-11-30 14:0%d"
    turns = [user("Hi?"), assistant(), user("And?")]
    relay.ask("messages", messages(*turns, system=front % 3, tools=TOOLS))
    forward = relay.ask("messages", messages(*turns, system=front % 4, tools=TOOLS[::-1]))
    sent = json.loads(forward.body)
    assert sent["tools"] == [TOOLS[0], {**TOOLS[1], "cache_control": MARK}]
    assert sent["system"] == [{"type": "text", "text": f"{LONG}\nCurrent time: 2026-11-30", "cache_control": MARK}]
    last = "And?\n\n[Current time: 2026-11-30 14:04]"
    assert sent["messages"][2]["content"] == [{"type": "text", "text": last, "cache_control": MARK}]
    assert relay.metric("prefixpilot_fail_opens_total") == 0


def test_the_clients_own_marks_are_the_only_ones() -> None:
    part = {"type": "text", "text": "Hi?", "cache_control": MARK}
    body = messages({"role": "user", "content": [part]}, assistant(), user("And?"))
    assert Relay(providers=ANTHROPIC).ask("messages", body).body == json.dumps(body).encode()


def test_blocks_get_marks_on_what_is_sent_again() -> None:
    turns = [user("Hi?"), assistant(), user("And?")]
    body = messages(*turns, context_blocks=[{"text": "A"}])
    alone = Relay(providers=ANTHROPIC).sent("messages", body)
    assert marks(alone) == [("system", 0), ("messages", 0, "content", 0)], "the blocks will not come again"
    named = Relay(providers=ANTHROPIC).sent("messages", body, conversation="c")
    assert marks(named) == [("system", 0), ("messages", 2, "content", 0)]
    assert named["messages"][2]["content"][0]["text"].startswith("[Doc 1]\nA")


def test_where_marks_stand_is_a_setting() -> None:
    only = ProviderSettings("anthropic", True, breakpoints=BreakpointSettings(messages=False, stable_ttl="1h"))
    sent = Relay(providers=only).sent("messages", messages(user("Hi?"), assistant(), user("And?")))
    assert marks(sent) == [("system", 0)]
    assert sent["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_cache_key_is_one_for_all_conversations_of_an_application(api: str) -> None:
    relay = Relay(providers=OPENAI)
    keys = {relay.sent(api, said_in(api, [f"Hi {i}?"])).get("prompt_cache_key") for i in range(5)}
    assert len(keys) == 1 and None not in keys
    blocks = relay.sent(api, said_in(api, ["Hi?"], ["A"]))
    assert {blocks["prompt_cache_key"]} == keys
    own = said_in(api, ["Hi?"], prompt_cache_key="mine")
    assert relay.ask(api, own).body == json.dumps(own).encode()
    other = {**said_in(api, ["Hi?"]), "model": "n"}
    assert relay.sent(api, other)["prompt_cache_key"] not in keys


@pytest.mark.parametrize("api", ["completions", "messages"])
def test_no_cache_key_where_the_api_has_none(api: str) -> None:
    body = said_in(api, ["Hi?"])
    assert Relay(providers=OPENAI).ask(api, body).body == json.dumps(body).encode()


@pytest.mark.parametrize("headers", [{"mode": "off"}, {"mode": "shadow"}])
def test_no_cache_key_in_modes_that_change_nothing(headers: dict[str, str]) -> None:
    body = said_in("chat", ["Hi?"])
    assert Relay(providers=OPENAI).ask("chat", body, **headers).body == json.dumps(body).encode()


@pytest.mark.parametrize(
    "rules", [VolatileRules(), VolatileRules(clock="round"), VolatileRules(clock="move", ids=True)]
)
def test_volatile_text_and_documents_make_no_key_of_their_own(rules: VolatileRules) -> None:
    relay = Relay(providers=OPENAI, volatile=rules)

    def key(minute: int, names: str) -> Any:
        nodes = "\n\n".join(f"file_path: {name}.md\n\nAll about {name}, at length." for name in names)
        dashes = "-" * 21
        context = f"Context information is below.\n{dashes}\n{nodes}\n{dashes}\nAnswer it."
        front = f"Request ID: 5f0c{minute:02d}77\nYou help.\nCurrent time: 2026-11-30 14:{minute:02d}\n{context}"
        return relay.sent("chat", {"model": "m", "messages": [{"role": "system", "content": front}, user("Hi?")]})

    assert key(3, "ab")["prompt_cache_key"] == key(4, "ac")["prompt_cache_key"]


def test_a_busy_key_is_split_by_conversation_and_by_the_clock() -> None:
    now = [0.0]
    relay = Relay(clock=lambda: now[0], providers=ProviderSettings("openai", cache_key=True, key_rate=5))

    def keys() -> set[str]:
        return {relay.sent("chat", said_in("chat", [f"Hi {i}?"]))["prompt_cache_key"] for i in range(20)}

    assert len(keys()) > 1
    now[0] = 3600.0
    assert relay.sent("chat", said_in("chat", ["Hi 1?"]))["prompt_cache_key"].count("-") == 1
    relay.app._preface.clear()
    for _ in range(30):
        relay.ask("chat", said_in("chat", ["Hi?"]), mode="explain")
    assert relay.sent("chat", said_in("chat", ["Hi?"]))["prompt_cache_key"].count("-") == 1, "a dry run counts nothing"


def test_over_sockets() -> None:
    with SimulatedEngine() as engine:
        settings = ProxySettings(engine.base_url, port=0, providers=ANTHROPIC)
        with serve_in_thread(settings) as proxy:
            turns = [user("Hi?"), assistant(), user("And?")]
            answer = fetch(proxy.url, "POST", "/v1/messages", messages(*turns), {"Content-Type": "application/json"})
            assert answer.status == 200
            assert marks(engine.requests[-1].json()) == [("system", 0), ("messages", 2, "content", 0)]
        settings = ProxySettings(engine.base_url, port=0, providers=OPENAI)
        with serve_in_thread(settings) as proxy:
            fetch(
                proxy.url, "POST", "/v1/responses", said_in("responses", ["Hi?"]), {"Content-Type": "application/json"}
            )
            assert engine.requests[-1].json()["prompt_cache_key"].startswith("pp-")


def test_a_failure_of_marks_costs_nothing() -> None:
    relay = Relay(providers=ANTHROPIC)
    relay.app._preface.hosted._limits = None  # type: ignore[assignment]
    body = messages(user("Hi?"), assistant(), user("And?"))
    assert relay.ask("messages", body).body == json.dumps(body).encode()
    assert relay.metric("prefixpilot_fail_opens_total", step="marks") == 1
