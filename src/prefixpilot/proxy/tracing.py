"""Spans of OpenTelemetry, one for each request to one of the four APIs, by the GenAI conventions (extra ``otel``).

The span is made when the request is over, with the times that it had: nothing waits for it. Its parent is the one that
the client names in ``traceparent``; that header is passed on as it came, so that the engine's spans stand beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from prefixpilot import __version__
from prefixpilot.errors import MissingExtraError
from prefixpilot.proxy.account import Account
from prefixpilot.proxy.wire.headers import RawHeaders

try:
    from opentelemetry import trace
    from opentelemetry.propagate import extract
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError:
    raise MissingExtraError("opentelemetry-sdk", 'pip install "prefixpilot[otel]"') from None

_OPERATIONS: Final[Mapping[str, str]] = {"completions": "text_completion"}
"""``gen_ai.operation.name`` by API; the others are ``chat``."""
_PROVIDERS: Final[Mapping[str, str]] = {"messages": "anthropic"}
"""``gen_ai.provider.name`` by API: whose API it is, whoever serves it; the others are ``openai``."""


class Spans:
    """Makes spans of accounts.

    Args:
        engine: base URL of the engine.
        provider: where spans go; the global one if ``None``.
    """

    def __init__(self, engine: str, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("prefixpilot.proxy", __version__, tracer_provider=provider)
        url = urlsplit(engine)
        port = url.port or (443 if url.scheme == "https" else 80)
        self._server: dict[str, Any] = {"server.address": url.hostname or "", "server.port": port}

    def export(self, account: Account, headers: RawHeaders) -> None:
        """Make the span of a request that is over."""
        operation = _OPERATIONS.get(account.api, "chat")
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        span = self._tracer.start_span(
            f"{operation} {account.model}" if account.model else operation,
            context=extract(carrier),
            kind=trace.SpanKind.CLIENT,
            attributes={**self._server, **_attributes(account, operation)},
            start_time=account.started_ns,
        )
        if account.status >= 400 or not account.status:
            span.set_status(trace.StatusCode.ERROR)
        span.end(account.started_ns + round(account.seconds * 1e9))


def _attributes(account: Account, operation: str) -> dict[str, Any]:
    """What is unknown is left out."""
    usage = account.usage
    error = (account.code or str(account.status)) if account.status >= 400 else None
    known = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(account.api, "openai"),
        "gen_ai.request.model": account.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.response.time_to_first_chunk": account.ttft,
        "http.response.status_code": account.status or None,
        "error.type": error if account.status else "client_gone",
        "prefixpilot.request_id": account.request_id,
        "prefixpilot.outcome": account.outcome,
        "prefixpilot.treated": account.treated,
    }
    return {name: value for name, value in known.items() if value is not None}


@contextmanager
def exporting() -> Iterator[None]:
    """Within it spans go, by OTLP over HTTP, to where the variables of OpenTelemetry say; flushed at the end.

    Raises:
        MissingExtraError: the exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise MissingExtraError("opentelemetry-exporter-otlp-proto-http", 'pip install "prefixpilot[otel]"') from None
    provider = TracerProvider(resource=Resource.create({"service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
