"""A proxy with rules and an engine that answers at once: what it was sent, by API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prefixpilot.apis import API_OF_NAME
from prefixpilot.apis.base import Prompt
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.settings import ProxySettings

from .dialects import answer
from .support import metric


class Relay:
    """The pipeline of a proxy, without sockets."""

    def __init__(
        self, engine: str = "http://127.0.0.1:9", clock: Any = lambda: 0.0, steps: Any = None, **settings: Any
    ) -> None:
        self.app = ProxyApp(ProxySettings(engine, **settings), clock=clock, **(steps or {}))

    def ask(self, api: str, body: Mapping[str, Any], key: str = "k", **headers: str) -> Forward:
        """Send a request; header names without ``x-prefixpilot-``."""
        return self._ask(api, body, key, headers)

    def refused(self, api: str, body: Mapping[str, Any]) -> Forward:
        """Send a request; the engine fails."""
        return self._ask(api, body, "k", {}, reply=False)

    def _ask(
        self, api: str, body: Mapping[str, Any], key: str, headers: Mapping[str, str], reply: bool = True
    ) -> Forward:
        named = [(f"x-prefixpilot-{name}".encode(), value.encode()) for name, value in headers.items()]
        pipeline = self.app.pipeline
        call = Call([(b"authorization", key.encode()), *named], json.dumps(body).encode(), API_OF_NAME[api])
        forward = pipeline.prepare(call)
        if forward.observed and not forward.explain:
            observation = pipeline.observe(forward, 200 if reply else 500, "application/json", "")
            observation.feed(json.dumps(answer(api, "ok") if reply else {"error": "no"}).encode())
            observation.finish()
        return forward

    def sent(self, api: str, body: Mapping[str, Any], key: str = "k", **headers: str) -> dict[str, Any]:
        """The body that goes to the engine."""
        value: dict[str, Any] = json.loads(self.ask(api, body, key, **headers).body)
        return value

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.app.metrics.text().decode(), name, **labels)


def read(api: str, body: Mapping[str, Any]) -> Prompt:
    """A body, read."""
    prompt = API_OF_NAME[api].read(body)
    assert prompt is not None
    return prompt


def texts(api: str, body: Mapping[str, Any]) -> list[str]:
    """All strings, in reading order."""
    return [segment.text for segment in read(api, body).segments()]
