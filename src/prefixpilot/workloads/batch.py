"""Batch files, a request a line, with ``context_blocks`` in its body.

OpenAI: ``{"custom_id", "method", "url", "body"}``, to Chat Completions, Completions or Responses. Anthropic's Message
Batches: ``{"custom_id", "params"}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from prefixpilot.apis import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from prefixpilot.core import Request, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import BlocksRequest, parse_request
from prefixpilot.workloads.base import BatchLine, Workload, WorkloadRequest
from prefixpilot.workloads.records import Record, shown

_ENDINGS: Final[Mapping[str, Api]] = {
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
}
"""What a url ends with, the longest first."""

PARAMS: Final = "params"
"""The body of a line of Anthropic's."""


def is_batch_line(record: Record) -> bool:
    """Whether a first line says that the file is a Batch file."""
    return "custom_id" in record.values


def parse_batch(name: str, records: Iterable[Record]) -> Workload:
    """A workload from the lines of a Batch file; at least one. Lines without ``context_blocks`` have no blocks.

    Raises:
        TraceError: a line cannot be used.
    """
    seen: set[str] = set()
    requests = []
    for record in records:
        custom_id = record.text("custom_id")
        if custom_id in seen:
            raise record.error("custom_id", f"{shown(custom_id)} stands twice in the file", "make ids unique")
        seen.add(custom_id)
        requests.append(_request(record, custom_id))
    return Workload(name, tuple(requests))


def _request(record: Record, custom_id: str) -> WorkloadRequest:
    member = PARAMS if PARAMS in record.values and "body" not in record.values else "body"
    api = MESSAGES if member == PARAMS else _api(record)
    body = record.values.get(member)
    if not isinstance(body, dict):
        raise record.error(member, f"is {shown(body)}" if member in record.values else "is missing", "give an object")
    if api is None and FIELD in body:
        paths = ", ".join(_ENDINGS)
        raise record.error("url", f"is {shown(record.text('url'))}", f"{FIELD} go with a url that ends with {paths}")
    asked = None if api is None else _asked(record, member, body, api)
    request = Request((), RequestId(custom_id))
    if asked is not None:
        request = replace(request, blocks=asked.blocks, scope=asked.scope(), constraints=asked.constraints)
    return WorkloadRequest(request, custom_id, 0, record.where, BatchLine(record.values, asked, member))


def _api(record: Record) -> Api | None:
    """That of the line's url; ``None``: one in which nothing is planned."""
    if record.text("method") != "POST":
        raise record.error("method", f"is {shown(record.values['method'])}", "a Batch line has the method POST")
    url = record.text("url")
    return next((api for ending, api in _ENDINGS.items() if url.endswith(ending)), None)


def _asked(record: Record, member: str, body: Mapping[str, Any], api: Api) -> BlocksRequest | None:
    try:
        return parse_request(body, api)
    except InvalidRequestError as error:
        raise record.error(f"{member}.{error.field}", error.reason, error.remedy) from None
