"""Requests without blocks through the whole proxy: formats of real applications, headers, and what is learnt when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.proxy.support import assistant, chat, user

from prefixpilot.apis.base import Segment
from prefixpilot.errors import ConfigError
from prefixpilot.formats.base import Edges, Region, Unit
from prefixpilot.pieces import Span
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call, RefusedError
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.ordinary.settings import OrdinarySettings

ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]}


def text(seed: str) -> str:
    return " ".join(f"{seed} fact {i * 37 % 101}," for i in range(60))


def context(*named: tuple[str, str]) -> str:
    """Retrieved nodes as LlamaIndex puts them into a prompt."""
    dashes = "-" * 21
    nodes = "\n\n".join(f"file_path: {name}\n\n{body}" for name, body in named)
    return (
        f"Context information is below.\n{dashes}\n{nodes}\n{dashes}\n"
        "Given the context information and not prior knowledge, answer the query.\nQuery: why?\nAnswer: "
    )


A, B, C = (("a.md", text("A")), ("b.md", text("B")), ("c.md", text("C")))


class Relay:
    """The pipeline of a proxy, and an engine that answers at once, or fails."""

    def __init__(self, ordinary: OrdinarySettings | None = None, **steps: Any) -> None:
        settings = ProxySettings("http://127.0.0.1:9", ordinary=ordinary or OrdinarySettings())
        self.app = ProxyApp(settings, **steps)

    def ask(self, body: dict[str, Any], headers: Mapping[str, str] | None = None, status: int = 200) -> Forward:
        pairs = [(f"x-prefixpilot-{name}".encode(), value.encode()) for name, value in (headers or {}).items()]
        forward = self.app.pipeline.prepare(Call(pairs, json.dumps(body).encode()))
        observation = self.app.pipeline.observe(forward, status, "application/json", "")
        observation.feed(json.dumps(ANSWER if status == 200 else {"error": "no"}).encode())
        observation.finish()
        return forward

    def sent(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.ask(body, headers).body)
        return value


def test_nodes_that_another_request_had_come_first_and_the_client_is_told() -> None:
    relay = Relay()
    first = chat([user(context(A, B))])
    assert relay.ask(first).body == json.dumps(first).encode()
    forward = relay.ask(chat([user(context(C, B, A))]))
    sent = json.loads(forward.body)["messages"][0]["content"]
    assert sent.index("a.md") < sent.index("b.md") < sent.index("c.md")
    assert forward.plan_header is not None
    told = json.loads(forward.plan_header)
    assert (told["moved"], told["replaced"], told["restored"]) == (1, 0, 0)


def test_what_the_engine_refused_is_not_learnt() -> None:
    relay = Relay()
    relay.ask(chat([user(context(A, B))]), status=500)
    body = chat([user(context(B, A))])
    assert relay.sent(body) == body


def test_turns_are_sent_again_as_they_were() -> None:
    relay = Relay()
    relay.ask(chat([user(context(A, B))]))
    one = relay.sent(chat([user(context(B, A))]))
    two = relay.sent(chat([user(context(B, A)), assistant(), user("And?")]))
    assert two["messages"][0] == one["messages"][0] != user(context(B, A))


@pytest.mark.parametrize("headers", [{"recognise": "off"}, {"recognise": "ragflow"}, {"mode": "off"}])
def test_headers_that_switch_it_off(headers: dict[str, str]) -> None:
    relay = Relay()
    relay.ask(chat([user(context(A, B))]))
    body = chat([user(context(B, A))])
    assert relay.ask(body, headers).body == json.dumps(body).encode()


def read(call: str) -> list[dict[str, Any]]:
    function = {"name": "read_file", "arguments": '{"path": "a.md"}'}
    made = {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]}
    return [made, {"role": "tool", "tool_call_id": call, "content": A[1]}]


def test_the_header_for_repeats() -> None:
    body = chat([user("go"), *read("1"), *read("2")])
    assert Relay().sent(body, {"dedupe": "off"}) == body
    assert Relay().sent(body)["messages"][-1]["content"].startswith("[Unchanged: same text as the latest result of")


@pytest.mark.parametrize(("name", "value"), [("recognise", "a b"), ("recognise", ""), ("dedupe", "maybe")])
def test_headers_that_cannot_be_used(name: str, value: str) -> None:
    with pytest.raises(RefusedError) as refused:
        Relay().ask(chat([user("hi")]), {name: value})
    assert refused.value.status == 400


def test_without_recognisers_a_body_is_not_even_read() -> None:
    relay = Relay(OrdinarySettings(recognise=()))
    relay.ask(chat([user(context(A, B))]))
    body = chat([user(context(B, A))])
    assert relay.ask(body).body == json.dumps(body).encode()


def test_a_failure_of_ours_sends_the_clients_bytes() -> None:
    body = chat([user(context(A, B))])
    relay = Relay(OrdinarySettings(recognise=("broken",), recognisers=(f"{__name__}:BROKEN",)))
    forward = relay.ask(body)
    assert (forward.body, forward.outcome) == (json.dumps(body).encode(), "fallback")


@dataclass(frozen=True)
class Cards:
    """A user's own format: cards, one a line, each behind an asterisk and its name."""

    name: str = "cards"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        units = []
        at = 0
        for line in segment.text.splitlines(keepends=True):
            bare = line.rstrip("\n")
            if bare.startswith("* "):
                label, _, body = bare[2:].partition(": ")
                span = Span(at, at + len(bare))
                units.append(Unit(span, Span(span.end - len(body), span.end), body, label))
            at += len(line)
        return (Region(self.name, tuple(units), True, True, "keep-label"),) if len(units) > 1 else ()


class Broken:
    name = "broken"

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        raise RuntimeError("of a user")


CARDS = Cards()
BROKEN = Broken()


def test_a_users_own_recogniser() -> None:
    def cards(*names: str) -> dict[str, Any]:
        return chat([user("\n".join(f"* {name}: {text(name)}" for name in names) + "\nPick one.")])

    relay = Relay(OrdinarySettings(recognise=("cards",), recognisers=(f"{__name__}:CARDS",)))
    relay.ask(cards("x", "y"))
    assert relay.sent(cards("z", "y", "x")) == cards("x", "y", "z")


@pytest.mark.parametrize("path", ["no.such.module:X", f"{__name__}:NOTHING", f"{__name__}:ANSWER"])
def test_a_recogniser_that_cannot_be_used(path: str) -> None:
    with pytest.raises(ConfigError, match="recognisers"):
        Relay(OrdinarySettings(recognisers=(path,)))


def test_a_name_that_no_recogniser_has() -> None:
    with pytest.raises(ConfigError):
        Relay(OrdinarySettings(recognise=("ragflo",)))


def test_what_was_done_is_counted_and_kept() -> None:
    relay = Relay()
    relay.ask(chat([user(context(A, B))]))
    relay.ask(chat([user(context(C, B, A))]))
    relay.ask(chat([user(context(C, B, A)), *read("1"), *read("2")]))
    stats = relay.app.metrics.stats()["treated"]
    assert (stats["moved"], stats["replaced"], stats["restored"]) == (1, 1, 1)
    assert stats["saved_tokens"] > 16
    relay.ask(chat([user(context(B, C, A))]), {"mode": "shadow"})
    relay.ask(chat([user(context(B, C, A))]), status=500)
    assert relay.app.metrics.stats()["treated"] == stats, "only what the engine has counts"
