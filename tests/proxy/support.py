"""Ways to drive a proxy: its pipeline alone, and over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from prefixpilot import ContextPilot, Plan, PlannedRequest, Request
from prefixpilot.apis import CHAT
from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.memory.reply import Said, said_by

Messages = list[dict[str, Any]]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None = "ok") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def said_in(message: Mapping[str, Any]) -> Said:
    """What an assistant message of a chat says."""
    prompt = CHAT.read({"messages": [{"role": "assistant", **message}]})
    assert prompt is not None
    return said_by(prompt.messages)


def chat(messages: Messages, blocks: Any = None, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "messages": messages, **more}
    return body if blocks is None else {**body, "context_blocks": blocks}


@dataclass(frozen=True)
class Sent:
    """One request as the engine got it."""

    forward: Forward
    body: dict[str, Any]

    @property
    def texts(self) -> list[Any]:
        return [m["content"] for m in self.body["messages"]]

    @property
    def newest(self) -> Any:
        return [m["content"] for m in self.body["messages"] if m["role"] == "user"][-1]

    @property
    def plan(self) -> dict[str, Any]:
        assert self.forward.plan_header is not None
        document: dict[str, Any] = json.loads(self.forward.plan_header)
        return document


class Desk:
    """A pipeline with an engine that answers at once, without sockets."""

    def __init__(self, **steps: Any) -> None:
        limits = {
            k: steps.pop(k)
            for k in ("max_turns", "max_conversations", "max_ledger_bytes", "store", "control")
            if k in steps
        }
        self.app = ProxyApp(ProxySettings("http://127.0.0.1:9", **limits), steps.pop("pilot", None), **steps)

    def ask(
        self,
        body: Mapping[str, Any],
        conversation: str | None = None,
        *,
        mode: str | None = None,
        key: str | None = None,
        reply: str | dict[str, Any] | None = "ok",
        request_id: str | None = None,
    ) -> Sent:
        """Send one request; the engine answers ``reply`` (a text or a message), or an error for ``None``."""
        given = {
            b"x-prefixpilot-conversation": conversation,
            b"x-prefixpilot-mode": mode,
            b"authorization": key,
            b"x-request-id": request_id,
        }
        headers = [(name, value.encode()) for name, value in given.items() if value is not None]
        forward = self.app.pipeline.prepare(Call(headers, json.dumps(body).encode()))
        forward.tell()  # as when it is on its way
        if forward.observed:
            observation = self.app.pipeline.observe(forward, 200 if reply is not None else 500, "application/json", "")
            message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            observation.feed(json.dumps({"choices": choices} if reply is not None else {"error": {}}).encode())
            observation.finish()
        return Sent(forward, json.loads(forward.body))

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.app.metrics.text().decode(), name, **labels)


def metric(text: str, name: str, **labels: str) -> float:
    """The value of a sample in Prometheus text; 0 if it is not there."""
    wanted = ",".join(f'{k}="{v}"' for k, v in labels.items())
    head = f"{name}{{{wanted}}} " if labels else f"{name} "
    return next((float(line.removeprefix(head)) for line in text.split("\n") if line.startswith(head)), 0.0)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


def fetch(url: str, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One HTTP request on a connection of its own; a body that is no bytes is sent as JSON."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, target, data, dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def post_chat(url: str, body: Mapping[str, Any], **headers: str) -> Answer:
    """Header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return fetch(url, "POST", "/v1/chat/completions", body, {"Content-Type": "application/json", **named})


class InjectedError(RuntimeError):
    """An error of ours, injected."""


@dataclass
class FailingPilot:
    """A planner of which some methods raise."""

    failing: Iterable[str]
    pilot: ContextPilot = field(default_factory=ContextPilot)

    def _check(self, name: str) -> None:
        if name in self.failing:
            raise InjectedError(name)

    def propose(self, request: Request, record: ConversationRecord = NEW_CONVERSATION) -> Plan:
        self._check("propose")
        return self.pilot.propose(request, record)

    def as_given(self, request: Request, record: ConversationRecord = NEW_CONVERSATION) -> Plan:
        self._check("as_given")
        return self.pilot.as_given(request, record)

    def given_cached(self, request: Request) -> int:
        return self.pilot.given_cached(request)

    def propose_batch(self, requests: Sequence[Request]) -> list[PlannedRequest]:
        self._check("propose_batch")
        return self.pilot.propose_batch(requests)

    def learn(self, plan: Plan) -> None:
        self._check("learn")
        self.pilot.learn(plan)

    def evict(self, request_ids: Iterable[str]) -> int:
        self._check("evict")
        return self.pilot.evict(request_ids)

    def reset(self) -> int:
        self._check("reset")
        return self.pilot.reset()

    @property
    def live_requests(self) -> int:
        return self.pilot.live_requests
