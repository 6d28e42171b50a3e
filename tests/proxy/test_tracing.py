"""Spans by the GenAI conventions, seen by the SDK's own exporter in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.settings import TracingSettings
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond

from .support import chat, fetch, post_chat, user


class Traced:
    """A proxy whose spans are kept."""

    def __init__(self, proxy: RunningProxy, spans: InMemorySpanExporter) -> None:
        self.url = proxy.url
        self._spans = spans

    def spans(self, count: int) -> list[ReadableSpan]:
        """The spans so far, once there are as many."""
        deadline = time.monotonic() + 10
        while len(self._spans.get_finished_spans()) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return list(self._spans.get_finished_spans())


@pytest.fixture
def traced(engine: SimulatedEngine) -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = ProxySettings(engine.base_url, port=0, drain_timeout=2, tracing=TracingSettings(True))
    with serve_in_thread(settings, app=ProxyApp(settings, tracer_provider=provider)) as proxy:
        yield Traced(proxy, exporter)


def test_a_span_has_what_the_conventions_name(engine: SimulatedEngine, traced: Traced) -> None:
    usage = post_chat(traced.url, chat([user("Q?")], ["A", "B"]), X_Request_Id="r1").json()["usage"]
    (span,) = traced.spans(1)
    assert span.name == "chat m"
    assert span.kind is SpanKind.CLIENT
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    assert attributes["server.address"] == "127.0.0.1"
    assert attributes["server.port"] == int(engine.base_url.rpartition(":")[2])
    assert attributes["prefixpilot.request_id"] == "r1"
    assert attributes["prefixpilot.outcome"] == "planned"
    assert attributes["prefixpilot.treated"] is True
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time is not None and span.end_time is not None
    seconds = (span.end_time - span.start_time) / 1e9
    first = attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first, float) and 0 < first <= seconds < 60


def test_what_is_unknown_is_left_out(traced: Traced) -> None:
    post_chat(traced.url, chat([user("Q?")], stream=True))
    (span,) = traced.spans(1)
    assert not any(name.startswith("gen_ai.usage") for name in span.attributes or {})
    assert (span.attributes or {})["prefixpilot.treated"] is False


def test_no_text_of_a_prompt_and_no_key_is_in_it(traced: Traced) -> None:
    post_chat(traced.url, chat([user("the patient")], ["the patient"]), Authorization="Bearer sk-key")
    text = json.dumps([json.loads(span.to_json()) for span in traced.spans(1)])
    assert "patient" not in text and "sk-key" not in text


def test_its_parent_is_the_clients_and_the_header_goes_on_as_it_came(engine: SimulatedEngine, traced: Traced) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    post_chat(traced.url, chat([user("Q?")]), traceparent=parent)
    (span,) = traced.spans(1)
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == parent[3:35]
    assert f"{span.parent.span_id:016x}" == parent[36:52]
    assert engine.requests[-1].header("traceparent") == parent


def test_errors_are_errors(engine: SimulatedEngine, traced: Traced) -> None:
    engine.fault = Respond(429, b"{}")
    post_chat(traced.url, chat([user("Q?")], ["A"]))
    post_chat(traced.url, chat([user("Q?")], [1]))
    of_engine, of_client = traced.spans(2)
    assert of_engine.status.status_code is StatusCode.ERROR
    assert (of_engine.attributes or {})["error.type"] == "429"
    assert (of_client.attributes or {})["error.type"] == "invalid_value"


def test_other_paths_have_none(traced: Traced) -> None:
    fetch(traced.url, "GET", "/v1/models")
    fetch(traced.url, "GET", "/healthz")
    post_chat(traced.url, chat([user("Q?")]))
    assert [span.name for span in traced.spans(1)] == ["chat m"]
