"""Blocks where nobody reads them are refused by name; what is the client's own may be called as they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from prefixpilot.apis import API_OF_NAME
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.configuration import Secret
from prefixpilot.proxy.settings import TenantSettings

from .dialects import body
from .raw_engine import RawEngine
from .support import fetch

BATCHES = "/v1/messages/batches"
BLOCKS = {"context_blocks": ["evidence"]}
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RawEngine, RunningProxy]]:
    with RawEngine() as engine:
        settings = ProxySettings(engine.url, port=0, drain_timeout=1, max_body_bytes=MAX_BODY)
        with serve_in_thread(settings) as proxy:
            yield engine, proxy


@pytest.fixture
def raw(pair: tuple[RawEngine, RunningProxy]) -> RawEngine:
    pair[0].requests.clear()
    return pair[0]


@pytest.fixture
def before(pair: tuple[RawEngine, RunningProxy]) -> RunningProxy:
    return pair[1]


def path_of(api: str) -> str:
    return API_OF_NAME[api].paths[0].decode()


HEADERS: tuple[Mapping[str, str], ...] = (
    {},
    {"X-PrefixPilot-Mode": "off"},
    {"X-PrefixPilot-Mode": "shadow"},
    {"X-PrefixPilot-Conversation": "c"},
    {"Content-Encoding": "gzip"},
)


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("beside", [None, ["A"]])
@pytest.mark.parametrize(
    ("api", "member", "field"),
    [
        *((api, "extra_body", "extra_body.context_blocks") for api in sorted(API_OF_NAME)),
        ("chat", "messages", "messages[1].context_blocks"),
        ("messages", "messages", "messages[1].context_blocks"),
        ("responses", "input", "input[1].context_blocks"),
    ],
)
def test_blocks_in_a_place_that_nobody_reads_are_refused(
    raw: RawEngine,
    before: RunningProxy,
    api: str,
    member: str,
    field: str,
    beside: list[str] | None,
    headers: Mapping[str, str],
) -> None:
    given = body(api, ["Q?", "ok", "And?"], beside)
    if member == "extra_body":
        given["extra_body"] = BLOCKS
    else:
        given[member][1] |= BLOCKS
    data = json.dumps(given).encode()
    answer = fetch(
        before.url, "POST", path_of(api), gzip.compress(data) if "Content-Encoding" in headers else data, headers
    )
    error = answer.json()["error"]
    assert (answer.status, raw.requests) == (400, [])
    assert error["message"].startswith(f"{field}: is not read there; put context_blocks beside ")
    assert error.get("param", field) == field


@pytest.mark.parametrize(("api", "member"), [("chat", "messages"), ("messages", "messages"), ("responses", "input")])
def test_so_are_those_in_a_part_of_a_message(raw: RawEngine, before: RunningProxy, api: str, member: str) -> None:
    given = body(api, ["Q?"], ["A"])
    given[member][0]["content"] = [{"type": "text", "text": "Q?"}, {"type": "text", "text": "!", **BLOCKS}]
    answer = fetch(before.url, "POST", path_of(api), given)
    assert (answer.status, raw.requests) == (400, [])
    assert answer.json()["error"]["message"].startswith(f"{member}[0].content[1].context_blocks: is not read there")


@pytest.mark.parametrize("nothing", [None, []])
@pytest.mark.parametrize("place", ["extra_body", "message", "part", "batch"])
def test_none_is_refused_nowhere(raw: RawEngine, before: RunningProxy, place: str, nothing: Any) -> None:
    """Clients that write all of their optional members."""
    none = {"context_blocks": nothing}
    part = {"type": "text", "text": "Q?", **(none if place == "part" else {})}
    given: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    if place == "extra_body":
        given["extra_body"] = none
    elif place == "message":
        given["messages"][0] |= none
    elif place == "batch":
        given = {"requests": [{"custom_id": "1", "params": {**given, **none}}]}
    answer = fetch(before.url, "POST", BATCHES if place == "batch" else path_of("messages"), given)
    assert (answer.status, len(raw.requests)) == (200, 1)


TOOL = {"type": "object", "properties": {"context_blocks": {"type": "array"}, "extra_body": BLOCKS}}
OWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat", {"metadata": {"context_blocks": "3"}}),
    ("chat", {"extra_body": "context_blocks"}),
    ("chat", {"extra_body": {"messages": [{"content": "context_blocks"}]}}),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}]}),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": TOOL}}}),
    ("chat", {"messages": [{"role": "user", "content": '{"context_blocks": ["A"], "extra_body": 1}'}]}),
    (
        "chat",
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": json.dumps(BLOCKS)}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": json.dumps(BLOCKS)},
            ]
        },
    ),
    (
        "messages",
        {
            "messages": [
                {"role": "user", "content": "Q?"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": BLOCKS}]},
            ]
        },
    ),
    ("responses", {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": json.dumps(BLOCKS)}]}),
    ("completions", {"prompt": ["context_blocks", "context_blocks"]}),
)


@pytest.mark.parametrize(("api", "members"), OWN)
def test_what_is_the_clients_own_passes_as_it_came(
    raw: RawEngine, before: RunningProxy, api: str, members: dict[str, Any]
) -> None:
    data = json.dumps({**body(api, ["Q?"]), **members}).encode()
    assert fetch(before.url, "POST", path_of(api), data).status == 200
    assert [request.body for request in raw.requests] == [data]


@pytest.mark.parametrize(
    "path", [BATCHES, "/v1/Messages/batches/", "/v1/messages%2Fbatches?beta=true", "/claude" + BATCHES]
)
@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"params": {**body("messages", ["Q?"]), **BLOCKS}}, "requests[1].params.context_blocks"),
        ({"params": {"extra_body": BLOCKS}}, "requests[1].params.extra_body.context_blocks"),
        ({"params": {"messages": ["", BLOCKS]}}, "requests[1].params.messages[1].context_blocks"),
        ({"params": {}, **BLOCKS}, "requests[1].context_blocks"),
    ],
)
def test_blocks_in_a_batch_are_refused(
    raw: RawEngine, before: RunningProxy, path: str, coding: str, request_: dict[str, Any], field: str
) -> None:
    batch = {"requests": [{"custom_id": "1", "params": body("messages", ["Q?"])}, {"custom_id": "2", **request_}]}
    data = json.dumps(batch).encode()
    data = gzip.compress(data) if coding == "gzip" else data
    answer = fetch(before.url, "POST", path, data, {"Content-Encoding": coding})
    assert (answer.status, raw.requests) == (400, [])
    message = f"{field}: is not read on this path; send the request to /v1/messages"
    assert answer.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"requests": [{"custom_id": "1", "params": {**body("messages", ["Q?"]), **own}}]}).encode()
        for own in ({}, OWN[7][1], {"metadata": {"user_id": "context_blocks"}}, {"tools": [{"input_schema": TOOL}]})
    ]
    + [
        b'{"requests": "context_blocks"}',
        b'{"requests": ["context_blocks", {"params": "context_blocks"}]}',
        b'["context_blocks"]',
        b'{"n": NaN}',
        b"",
        b'{"requests": [], "x": 1.0 }' + b" " * MAX_BODY,
    ],
)
def test_a_batch_without_blocks_passes_as_it_came(raw: RawEngine, before: RunningProxy, data: bytes) -> None:
    assert fetch(before.url, "POST", BATCHES + "?beta=true", data).status == 200
    (request,) = raw.requests
    assert (request.lines[0], request.body) == (f"POST {BATCHES}?beta=true HTTP/1.1".encode(), data)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b'{"requests": [{"params": {"context_blocks": ["A"], "n": NaN}}]}', 400),
        (b'{"requests": [{"params": {"context_blocks": ["A"]}}], "x": "' + b"x" * MAX_BODY + b'"}', 413),
    ],
)
def test_a_batch_that_may_hold_blocks_and_is_not_read_is_refused(
    raw: RawEngine, before: RunningProxy, data: bytes, status: int
) -> None:
    answer = fetch(before.url, "POST", BATCHES, data)
    assert (answer.status, answer.json()["type"], raw.requests) == (status, "error", [])


def test_a_batch_gets_no_salt_and_is_read_on_the_way_in_only(raw: RawEngine) -> None:
    tenants = TenantSettings(cache_salt_secret=Secret("a secret of some length, for tests"))
    data = json.dumps({"requests": [{"custom_id": "1", "params": body("messages", ["Q?"])}]}).encode()
    with serve_in_thread(ProxySettings(raw.url, port=0, tenants=tenants)) as proxy:
        assert fetch(proxy.url, "POST", BATCHES, data).status == 200
        assert fetch(proxy.url, "GET", f"{BATCHES}/b_1/results").status == 200
        assert fetch(proxy.url, "POST", f"{BATCHES}/b_1/cancel").status == 200
    assert [request.body for request in raw.requests] == [data, b"", b""]
