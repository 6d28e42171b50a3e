"""Two ways to an engine that notes what it gets: the pipeline in this process, and real sockets on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from prefixpilot import ContextPilot
from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call, RefusedError
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.turns import Draft

from .clients import ApiName

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """A request as its client sends it. ``answer`` is what the engine will say; ``None``: it answers with an error."""

    api: ApiName
    body: bytes
    headers: Headers
    answer: bytes | None


class Arrived(NamedTuple):
    """What came of a request.

    Attributes:
        body: as the engine got it; empty if it got none.
        told: ``X-PrefixPilot-Plan``.
        refused: status of an answer of the proxy's own.
        headers: as the engine got them, where a route shows them.
    """

    body: bytes
    told: Mapping[str, Any] | None = None
    refused: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Route(Protocol):
    """A way to the engine."""

    def send(self, request: Request) -> Arrived: ...

    def send_together(self, requests: Sequence[Request]) -> list[Arrived]:
        """Requests that come within one admission window. The i-th result is that of the i-th request."""
        ...


class Direct:
    """The pipeline of a proxy app, with an engine that answers at once. No sockets, no loop.

    Args:
        window: requests that are sent together are planned together.
        steps: collaborators of the app, to put in the place of the ordinary ones.
    """

    def __init__(self, *, window: bool = False, pilot: ContextPilot | None = None, **steps: Any) -> None:
        settings = ProxySettings("http://127.0.0.1:9", admission_window_ms=5.0 if window else 0.0)
        self.app = ProxyApp(settings, pilot, **steps)

    def send(self, request: Request) -> Arrived:
        return self._attempted(request, lambda call: self.app.pipeline.prepare(call))

    def send_together(self, requests: Sequence[Request]) -> list[Arrived]:
        pipeline = self.app.pipeline
        calls = [_call(request) for request in requests]
        drafts = [pipeline.draft(call) for call in calls]
        held = [draft for draft in drafts if isinstance(draft, Draft) and draft.request is not None]
        plans = {id(draft): plan for draft, plan in pipeline.plan_together(held)} if held else {}
        return [
            self._attempted(request, lambda _, draft=draft: pipeline.complete(draft, plans.get(id(draft))))
            for request, draft in zip(requests, drafts, strict=True)
        ]

    def _attempted(self, request: Request, prepare: Callable[[Call], Forward]) -> Arrived:
        try:
            forward = prepare(_call(request))
        except RefusedError as refusal:
            return Arrived(b"", refused=refusal.status)
        if forward.observed:
            status = 500 if request.answer is None else 200
            observation = self.app.pipeline.observe(forward, status, "application/json", "")
            observation.feed(request.answer or b'{"error": {"message": "no"}}')
            observation.finish()
        return Arrived(forward.body, told(forward.plan_header))

    def fail_opens(self) -> float:
        """How many errors of our own there were."""
        families = self.app.metrics.fail_opens.collect()
        return sum(s.value for family in families for s in family.samples if s.name.endswith("_total"))


def told(header: bytes | None) -> Mapping[str, Any] | None:
    """The plan header, read."""
    if header is None:
        return None
    document: Mapping[str, Any] = json.loads(header)
    return document


def _call(request: Request) -> Call:
    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers]
    return Call(headers, request.body, API_OF_NAME[request.api])
