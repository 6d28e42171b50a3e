"""OpenAI Batch files: ``{"custom_id", "method", "url", "body"}`` a line, chat bodies with ``context_blocks``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from prefixpilot.core import Request, RequestId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import BlocksRequest, parse_request
from prefixpilot.workloads.base import BatchLine, Workload, WorkloadRequest
from prefixpilot.workloads.records import Record, shown

CHAT_PATH = "/chat/completions"


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
    if record.text("method") != "POST":
        raise record.error("method", f"is {shown(record.values['method'])}", "a Batch line has the method POST")
    url, body = record.text("url"), record.values.get("body")
    if not isinstance(body, dict):
        raise record.error("body", f"is {shown(body)}" if "body" in record.values else "is missing", "give an object")
    if FIELD in body and not url.endswith(CHAT_PATH):
        raise record.error("url", f"is {shown(url)}", f"{FIELD} go with a url that ends with {CHAT_PATH}")
    chat = _chat(record, body)
    request = Request((), RequestId(custom_id))
    if chat is not None:
        request = replace(request, blocks=chat.blocks, scope=chat.scope(), constraints=chat.constraints)
    return WorkloadRequest(request, custom_id, 0, record.where, BatchLine(record.values, chat))


def _chat(record: Record, body: Mapping[str, Any]) -> BlocksRequest | None:
    try:
        return parse_request(body)
    except InvalidRequestError as error:
        raise record.error(f"body.{error.field}", error.reason, error.remedy) from None
