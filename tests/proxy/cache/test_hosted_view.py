"""A proxy before a provider that charges, caches and counts as its documents say, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.proxy.hosted_settings import ProviderSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond
from prefixpilot.testing.hosted_provider import Dialect, HostedProvider

from ..support import Answer, fetch, metric, user
from .support import WORDS, until

RULES = " ".join(f"Rule {n}: {WORDS[n % 12]} before {WORDS[n % 7]}." for n in range(900))
"""About four thousand tokens."""
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
MARK = {"type": "ephemeral"}
OPENAI: Mapping[str, Any] = {"minimum": 1024, "increment": 128, "lifetime_s": 400.0}
"""Gone after 400 s: between the five minutes and the hour that the provider names."""


@dataclass
class Hosted:
    """A provider, a proxy before it, and the time that both go by."""

    engine: SimulatedEngine
    provider: HostedProvider
    proxy: RunningProxy
    clock: list[float]
    asked: int = field(default=0)

    def ask(self, api: str, body: Mapping[str, Any], key: str = "k", **headers: str) -> Answer:
        """One request; its figures are there."""
        named = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        answer = fetch(self.proxy.url, "POST", PATHS[api], body, named)
        self.asked += 1
        if answer.status == 200:
            self.settled()
        return answer

    def stats(self) -> dict[str, Any]:
        return dict(fetch(self.proxy.url, "GET", "/stats").json()["engine_cache"])

    def settled(self) -> dict[str, Any]:
        return until(self.stats, lambda stats: sum(route["requests"] for route in stats["routes"]) >= self.asked)

    def compared(self) -> dict[str, Any]:
        return dict(self.stats()["predictions"]["hosted"])

    def finding(self, api: str, body: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        """What came of one request with blocks."""
        name = f"r{self.asked}"
        assert self.ask(api, body, X_Request_Id=name, **headers).status == 200
        return dict(fetch(self.proxy.url, "GET", f"/plans/{name}").json()["engine"])


@contextmanager
def hosted(dialect: Dialect, provider: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[Hosted]:
    clock = [1000.0]
    double = HostedProvider(dialect, lambda: clock[0], **(provider or {}))
    with SimulatedEngine(provider=double) as engine:
        made = {"providers": ProviderSettings(dialect), "drain_timeout": 2, **settings}
        app = ProxyApp(ProxySettings(engine.base_url, port=0, **made), clock=lambda: clock[0])
        with serve_in_thread(app.settings, app=app) as proxy:
            yield Hosted(engine, double, proxy, clock)


def prompt(api: str, question: str, blocks: Any = None, rules: str = RULES, **more: Any) -> dict[str, Any]:
    """One turn behind a long system text, marked where the API has marks."""
    model = {"chat": "gpt-4o", "responses": "gpt-5.1", "messages": "claude-opus-4-1"}[api]
    system = [{"type": "text", "text": rules, "cache_control": MARK}]
    said: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "system", "content": rules}, user(question)]},
        "responses": {"instructions": rules, "input": [user(question)]},
        "messages": {"system": system, "messages": [user(question)], "max_tokens": 9},
    }
    body = {"model": model, **said[api], **more}
    return body if blocks is None else {**body, "context_blocks": blocks}


DIALECTS = [
    ("openai", "chat", OPENAI),
    ("openai", "responses", OPENAI),
    ("anthropic", "messages", {"minimum": 1024}),
    ("deepseek", "chat", {"minimum": 1, "lifetime_s": 400.0}),
]


@pytest.mark.parametrize(("dialect", "api", "provider"), DIALECTS, ids=lambda value: str(value)[:10])
def test_what_is_read_is_predicted_in_the_words_of_each_provider(
    dialect: Dialect, api: str, provider: Mapping[str, Any]
) -> None:
    with hosted(dialect, provider) as setup:
        for number in range(8):
            setup.clock[0] += 100.0
            assert setup.ask(api, prompt(api, f"Question {number}: which of them?")).status == 200
        stats = setup.settled()
        figures = stats["predictions"]["hosted"]
        assert (figures["compared"], stats["provider"], stats["state"]) == (8, dialect, "UNKNOWN")
        assert figures["reported_tokens"] > 15_000, "the provider did read"
        assert figures["verdicts"].get("off", 0) <= 1
        assert figures["predicted_tokens"] == pytest.approx(figures["reported_tokens"], rel=0.05)


def test_marks_are_exact_once_the_provider_has_counted() -> None:
    with hosted("anthropic") as setup:
        for number in range(6):
            setup.ask("messages", prompt("messages", f"Question {number}?"))
        assert setup.compared()["verdicts"] == {"exact": 6}


@pytest.mark.parametrize(("dialect", "api", "provider"), DIALECTS[:3], ids=lambda value: str(value)[:10])
def test_a_lifetime_that_is_over_is_the_cause(dialect: Dialect, api: str, provider: Mapping[str, Any]) -> None:
    with hosted(dialect, provider) as setup:
        setup.ask(api, prompt(api, "First?", ["A document."]))
        setup.clock[0] += 299.0
        assert setup.finding(api, prompt(api, "Second?", ["A document."]))["cause"] == "none"
        setup.clock[0] += 500.0
        found = setup.finding(api, prompt(api, "Third?", ["A document."]))
        assert (found["reported"], found["cause"]) == (0, "ttl")
        assert found["missed_tokens"] > 3000
        assert setup.finding(api, prompt(api, "Fourth?", ["A document."]))["cause"] == "none"
        assert setup.stats()["causes"] == {"ttl": 1}
        text = fetch(setup.proxy.url, "GET", "/metrics").body.decode()
        assert metric(text, "prefixpilot_engine_misses_total", cause="ttl") == 1
        assert (
            sum(metric(text, "prefixpilot_engine_predictions_total", basis="hosted", verdict=v) for v in VERDICTS) == 4
        )


VERDICTS = ("exact", "within_page", "off")


def test_the_plan_header_tells_what_is_expected() -> None:
    with hosted("anthropic") as setup:
        setup.engine.delay_s = 0.3
        setup.ask("messages", prompt("messages", "First?", ["A document."]))
        header = setup.ask("messages", prompt("messages", "Second?", ["A document."])).header("x-prefixpilot-plan")
        assert header is not None
        expected = json.loads(header)["expected"]
        assert expected["cached_tokens"] > 3000
        assert (expected["basis"], expected["state"]) == ("hosted", "cached")


def test_a_prefix_that_is_too_short_is_below_the_minimum() -> None:
    with hosted("openai", OPENAI) as setup:
        short = "Answer from the documents, and name the one that you used. " * 20
        for number in range(3):
            found = setup.finding("chat", prompt("chat", f"{number}?", ["A document."], rules=short))
        assert (found["reported"], found["cause"]) == (0, "below-page-size")


def test_what_the_provider_said_to_hold_and_does_not_is_evicted() -> None:
    with hosted("anthropic") as setup:
        body = [prompt("messages", f"{n}?", ["A document."]) for n in range(3)]
        setup.ask("messages", body[0])
        setup.ask("messages", body[1])
        setup.provider.clear()
        found = setup.finding("messages", body[2])
        assert (found["reported"], found["cause"]) == (0, "evicted")


def test_a_key_that_is_asked_for_too_often_is_served_elsewhere() -> None:
    with hosted("openai", OPENAI) as setup:
        for number in range(16):
            setup.clock[0] += 1.0
            setup.ask("chat", prompt("chat", f"{number}?", ["A document."]))
        setup.provider.away = True
        found = setup.finding("chat", prompt("chat", "Again?", ["A document."]))
        assert (found["reported"], found["cause"]) == (0, "routed-elsewhere")


def test_another_account_has_it() -> None:
    with hosted("anthropic") as setup:
        body = prompt("messages", "Where?", ["A document."])
        setup.ask("messages", body, key="one")
        setup.ask("messages", body, key="one")
        setup.provider.away = True
        name = "other"
        setup.ask("messages", body, key="two", X_Request_Id=name)
        found = fetch(setup.proxy.url, "GET", f"/plans/{name}").json()["engine"]
        assert (found["predicted"], found["reported"], found["cause"]) == (0, 0, "salt-or-adapter")


@pytest.mark.parametrize(("dialect", "api", "provider"), DIALECTS, ids=lambda value: str(value)[:10])
def test_a_clock_in_front_is_the_cause_and_its_place_is_told(
    dialect: Dialect, api: str, provider: Mapping[str, Any]
) -> None:
    with hosted(dialect, provider) as setup:
        for minute in range(4):
            dated = f"You help.\nCurrent time: 2026-11-30 14:0{minute}:30\n{RULES}"
            found = setup.finding(api, prompt(api, f"{minute}?", ["A document."], rules=dated))
        assert (found["reported"] or 0) < 100
        assert (found["cause"], found["parting"]["kind"], found["parting"]["volatile"]) == (
            "volatile-text",
            "clock",
            True,
        )
        sent = setup.engine.requests[-1].json()
        text: Any = sent
        for key in found["parting"]["pointer"]:
            text = text[key]
        assert text[: found["parting"]["offset"]].endswith("14:0")
        assert found["missed_tokens"] > 3000


def test_another_application_on_the_route_is_no_volatile_text() -> None:
    with hosted("openai", OPENAI) as setup:
        other = " ".join(f"Clause {n}: {WORDS[n % 5]} after {WORDS[n % 11]}." for n in range(900))
        for rules in (RULES, other):
            found = setup.finding("chat", prompt("chat", "Hm?", ["A document."], rules=rules))
        assert (found["reported"], found["cause"], found["parting"]["volatile"]) == (0, "none", False)


def test_a_request_that_fails_has_written_nothing() -> None:
    with hosted("anthropic") as setup:
        setup.engine.fault = Respond(529, b'{"type": "error"}')
        assert setup.ask("messages", prompt("messages", "First?")).status == 529
        setup.engine.fault, setup.asked = None, 0
        setup.ask("messages", prompt("messages", "First?"))
        assert setup.compared()["verdicts"] == {"exact": 1}


def test_nothing_of_it_is_sent() -> None:
    """Unlike an engine that is followed, a provider gets no id of ours."""
    with hosted("anthropic") as setup:
        body = json.dumps(prompt("messages", "First?")).encode()
        fetch(setup.proxy.url, "POST", "/v1/messages", body, {"Content-Type": "application/json"})
        (received,) = setup.engine.requests
        assert received.body == body
        assert received.header("x-request-id") is None


def test_it_can_be_switched_off() -> None:
    with hosted("anthropic", cache=CacheSettings(hosted=False)) as setup:
        body = prompt("messages", "First?")
        fetch(setup.proxy.url, "POST", "/v1/messages", body, {"Content-Type": "application/json"})
        assert setup.stats() == {"state": "UNKNOWN", "followed": False}
