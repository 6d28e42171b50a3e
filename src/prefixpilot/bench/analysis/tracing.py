"""A trace from a log: which documents each request held, as :mod:`prefixpilot.workloads.traces` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prefixpilot.bench.analysis.histories import Histories
from prefixpilot.bench.analysis.sender import Sender
from prefixpilot.blocks import estimate_tokens, text_digest
from prefixpilot.core import ContextBlock
from prefixpilot.workloads.request_log import BadLine, LoggedRequest, RequestLog


@dataclass(slots=True)
class LogTrace:
    """The requests of a log that hold documents, as lines of a trace.

    Attributes:
        requests: one object a line; ``blocks`` are numbers, by first appearance.
        tokens: length of each block, estimated.
        without_blocks: requests in which no document was found.
        bad: lines that hold no request, and requests that the proxy refuses.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    without_blocks: int = 0
    bad: list[BadLine] = field(default_factory=list)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The file of ids: no word of the log stands in it."""
        yield {"trace": name, "tokens": self.tokens}
        yield from self.requests


def trace_log(
    log: RequestLog,
    on_block: Callable[[dict[str, Any]], object] = lambda _: None,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> LogTrace:
    """Read a log once. O(bytes) time; some 100 bytes a block and a request are kept.

    Args:
        on_block: given each new block with its text, as a line of ``blocks.jsonl``.
        on_bytes: told of progress.
    """
    trace = LogTrace()
    sender, histories = Sender(None), Histories()
    numbers: dict[bytes, int] = {}
    turns: dict[int, int] = {}
    reached = 0
    for count, request in enumerate(log.requests(trace.bad.append)):
        blocks = _blocks(request, sender, trace)
        on_bytes(request.offset - reached)
        reached = request.offset
        prompt = request.api.read(request.body)
        if blocks is None or prompt is None:
            continue
        opener = histories.place(count, prompt).opener
        turns[opener] = turn = turns.get(opener, -1) + 1
        if not blocks:
            trace.without_blocks += 1
            continue
        ids = []
        for block in blocks:
            key = text_digest(block)
            if key not in numbers:
                numbers[key] = len(numbers)
                trace.tokens.append(estimate_tokens(block.text or ""))
                on_block({"block_id": numbers[key], "text": block.text, "tokens": trace.tokens[-1]})
            ids.append(numbers[key])
        name = {"request_id": f"line-{request.number}", "session_id": f"session-{opener}", "turn": turn}
        trace.requests.append({**name, "blocks": ids})
    on_bytes(log.size - reached)
    return trace


def _blocks(request: LoggedRequest, sender: Sender, trace: LogTrace) -> tuple[ContextBlock, ...] | None:
    """Those of the newest turn, in the given order; ``None`` if the request cannot be read."""
    prompt = request.api.read(request.body)
    sent = None if prompt is None else sender.send(request, json.dumps(request.body).encode(), prompt)
    if sent is None:
        trace.bad.append(BadLine(request.number, "holds context_blocks that cannot be used"))
        return None
    return sent.blocks
