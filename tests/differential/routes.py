"""Two ways to an engine that notes what it gets: the pipeline in this process, and real sockets on loopback."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from tests.proxy.raw_engine import RawEngine, plain

from prefixpilot import ContextPilot
from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call, RefusedError
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.turns import Draft

from .clients import PATHS, ApiName
from .reading import Violation

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

        def planned(draft: Draft | Forward) -> Callable[[Call], Forward]:
            return lambda _: pipeline.complete(draft, plans.get(id(draft)))

        return [self._attempted(request, planned(draft)) for request, draft in zip(requests, drafts, strict=True)]

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


class Wire:
    """A proxy on loopback before an engine of raw sockets: what arrives is what stood on the wire, headers too.

    Args:
        engine: answers with what the request in hand says.
    """

    def __init__(self, proxy_url: str, engine: RawEngine) -> None:
        self._netloc = urlsplit(proxy_url).netloc
        self._engine = engine
        self._answer: bytes | None = None
        engine.answer = lambda request: self._said()

    def _said(self) -> bytes:
        if self._answer is None:
            return plain(b"500 Internal Server Error", b'{"error": {"message": "no"}}', JSON)
        return plain(b"200 OK", self._answer, JSON)

    def send(self, request: Request) -> Arrived:
        """Raises AssertionError if the client did not get the engine's own bytes."""
        self._answer = request.answer
        before = len(self._engine.requests)
        connection = http.client.HTTPConnection(self._netloc, timeout=10)
        try:
            connection.request("POST", PATHS[request.api], request.body, dict(request.headers))
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        arrived = [request for request in self._engine.requests[before:] if request.lines[0].startswith(b"POST")]
        if not arrived:
            return Arrived(b"", refused=response.status)
        assert len(arrived) == 1
        assert body == self._said().partition(b"\r\n\r\n")[2]
        header = response.getheader("X-PrefixPilot-Plan")
        pairs = [line.partition(b": ") for line in arrived[0].lines[1:]]
        headers = tuple((name, value) for name, _, value in pairs)
        check_headers(request, arrived[0].lines[0], headers)
        return Arrived(arrived[0].body, told(None if header is None else header.encode()), headers=headers)

    def send_together(self, requests: Sequence[Request]) -> list[Arrived]:
        """One after the other: which of several answers is whose cannot be told by an engine that is one program."""
        return [self.send(request) for request in requests]


JSON: Final = b"content-type: application/json"


def check_headers(request: Request, line: bytes, arrived: Sequence[tuple[bytes, bytes]]) -> None:
    """Request line and headers are the client's, but for the length of the body, ``Host`` and a request id."""
    if line != f"POST {PATHS[request.api]} HTTP/1.1".encode():
        raise Violation("changed", f"the request line is {line!r}")
    ours = (b"content-length", b"host", b"x-request-id", b"accept-encoding")
    kept = [(name.lower(), value) for name, value in arrived if name.lower() not in ours]
    given = [(name.lower().encode(), value.encode()) for name, value in request.headers]
    if kept != given:
        raise Violation("changed", f"the client's headers {given} arrived as {kept}")
