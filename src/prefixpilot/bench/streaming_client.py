"""Sends one streaming chat request and times it. Standard library only, one connection a request."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prefixpilot.errors import EngineError

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """What came back, and when.

    Attributes:
        text: the reply.
        prompt_tokens, cached_tokens: the engine's own counts, from ``usage``.
        ttft_s: seconds from sending to the first content (to the finish, if there is none).
        total_s: seconds from sending to the end of the stream.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    total_s: float


def stream_chat(
    base_url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    timeout_s: float = 300.0,
    clock: Clock = time.perf_counter,
) -> StreamedAnswer:
    """POST ``body`` as a stream that reports usage.

    Args:
        base_url: without ``/v1``.
        timeout_s: bound of every single wait, in seconds.

    Raises:
        EngineError: no connection, an error status, an error event, or an answer without the counts.
    """
    payload = {**body, "stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=timeout_s)
    try:
        start = clock()
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(payload), {"content-type": "application/json", **headers}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise EngineError(f"{base_url} answered {response.status}: {response.read(500).decode('utf-8', 'replace')}")
        return _read(response, start, clock)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"{base_url} did not answer: {error!r}") from error
    finally:
        connection.close()


def wait_until_ready(base_url: str, *, timeout_s: float = 10.0) -> None:
    """Return once ``GET /readyz`` says so: the proxy has looked at its engine then.

    Raises:
        EngineError: it does not in time.
    """
    deadline = time.monotonic() + timeout_s
    while not _ready(base_url, timeout_s):
        if time.monotonic() > deadline:
            raise EngineError(f"{base_url} was not ready after {timeout_s:g} s")
        time.sleep(0.05)


def _ready(base_url: str, timeout_s: float) -> bool:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, start: float, clock: Clock) -> StreamedAnswer:
    pieces: list[str] = []
    first: float | None = None
    usage: Mapping[str, Any] = {}
    for event in _events(response):
        if "error" in event:
            raise EngineError(f"the engine reported an error in its stream: {event['error']}")
        for choice in event.get("choices", ()):
            pieces.append(choice["delta"].get("content") or "")
            if first is None and (pieces[-1] or choice.get("finish_reason")):
                first = clock()
        usage = event.get("usage") or usage
    end = clock()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        raise EngineError("the engine's stream carries no usage.prompt_tokens_details.cached_tokens")
    return StreamedAnswer("".join(pieces), usage["prompt_tokens"], cached, (first or end) - start, end - start)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    while line := response.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])
