"""Passes over a log: one reads it as it came, the others as the proxy would send it. Each may have its own process."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from prefixpilot.bench.analysis.arms import Arm
from prefixpilot.bench.analysis.fronts import Finding, Findings
from prefixpilot.bench.analysis.histories import Histories
from prefixpilot.bench.analysis.report import ArmResult
from prefixpilot.bench.analysis.sender import NO_RULES, Sender
from prefixpilot.bench.analysis.unproved import Unproved, UnprovedTexts
from prefixpilot.bench.analysis.workers import OnBytes
from prefixpilot.blocks import estimate_tokens, text_digest
from prefixpilot.core import ContextBlock
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.volatile.base import VolatileRules
from prefixpilot.workloads.request_log import BadLine, LoggedRequest, RequestLog, open_log

BAD_EXAMPLES: Final = 20


class Line(NamedTuple):
    """Where a request stands in the log: number and offset of its line."""

    number: int
    offset: int


class Way(NamedTuple):
    """How an arm sends: its name, and what the proxy does in it."""

    name: str
    dedupe: bool = True
    rules: VolatileRules = NO_RULES


class AsItCame(NamedTuple):
    """What the log holds, and the arm ``arrival``.

    Attributes:
        size: of the log, in bytes.
        lines: of the requests, in the order of the log.
        openers: in parallel: index of the request that opened the conversation; its own where it goes on from none.
        models: in parallel.
        bad, refused: lines that hold no request, and requests that the proxy refuses; the first of the former.
    """

    size: int
    lines: list[Line]
    openers: list[int]
    models: list[str]
    apis: Counter[str]
    bad: int
    bad_examples: list[BadLine]
    refused: int
    result: ArmResult


class AsTreated(NamedTuple):
    """An arm in which the proxy treats the requests.

    Attributes:
        blocks: of each request that it took, in the order in which it took them; ids are digests of the texts, which
            are not kept.
        touched, replaced: requests that are not sent as they came; texts that became references.
        findings: what changes in front of the documents as they are sent.
        unproved: formats whose words were seen where no document was found; looked for in one arm only.
    """

    blocks: list[tuple[ContextBlock, ...]]
    touched: int
    replaced: int
    findings: list[Finding]
    unproved: list[Unproved]
    result: ArmResult


@dataclass(slots=True)
class _Found:
    """:class:`AsItCame`, so far."""

    lines: list[Line] = field(default_factory=list)
    openers: list[int] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    apis: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    bad_examples: list[BadLine] = field(default_factory=list)
    refused: int = 0

    def is_bad(self, line: BadLine) -> None:
        self.bad += 1
        if len(self.bad_examples) < BAD_EXAMPLES:
            self.bad_examples.append(line)

    def whole(self, size: int, result: ArmResult) -> AsItCame:
        counted = self.lines, self.openers, self.models, self.apis, self.bad, self.bad_examples, self.refused
        return AsItCame(size, *counted, result)


@dataclass(frozen=True, slots=True)
class AsItCamePass:
    """Reads the log as it came: blocks in the given order. Raises as :func:`open_log`."""

    path: str
    cache_tokens: int | None

    def __call__(self, on_bytes: OnBytes) -> AsItCame:
        """Read it, telling how many bytes were read."""
        arm, found = Arm("arrival", self.cache_tokens), _Found()
        plain = Sender(self.cache_tokens, mode="off")
        histories = Histories()
        with open_log(self.path) as log:
            for request in _all(log, found.is_bad, on_bytes):
                prompt = request.api.read(request.body)
                if prompt is None:
                    found.is_bad(BadLine(request.number, "holds no prompt that can be read"))
                    continue
                sent = plain.send(request, _body(request), prompt) if FIELD in request.body else None
                if FIELD in request.body and sent is None:
                    found.refused += 1
                    continue
                arm.take(prompt if sent is None else sent.prompt)
                found.lines.append(Line(request.number, request.offset))
                found.openers.append(histories.place(len(found.openers), prompt).opener)
                found.models.append(str(request.body.get("model")))
                found.apis[request.api.name] += 1
            size = log.size
        return found.whole(size, arm.result())


@dataclass(frozen=True, slots=True)
class TreatedPass:
    """Reads the log as the proxy would send it, in its own order or in that of ``schedule``. Raises as
    :func:`open_log`."""

    path: str
    cache_tokens: int | None
    way: Way
    schedule: Sequence[Line] | None = None
    explains: bool = False

    def __call__(self, on_bytes: OnBytes) -> AsTreated:
        """Read it, telling how many bytes were read."""
        sender = Sender(self.cache_tokens, dedupe=self.way.dedupe, rules=self.way.rules)
        arm = Arm(self.way.name, self.cache_tokens)
        blocks: list[tuple[ContextBlock, ...]] = []
        touched = replaced = 0
        findings, unproved = Findings(), UnprovedTexts()
        with open_log(self.path) as log:
            for request in self._requests(log, on_bytes):
                prompt, body = request.api.read(request.body), _body(request)
                sent = None if prompt is None else sender.send(request, body, prompt)
                if prompt is None or sent is None:
                    continue
                if self.explains and not sent.blocks:
                    unproved.add(request.number, prompt, partial(sender.explain, request, body))
                arm.take(sent.prompt)
                touched += sent.touched
                replaced += sent.replaced
                blocks.append(tuple(map(_slim, sent.blocks)))
                findings.add(request.number, str(request.body.get("model")), sent.front)
        return AsTreated(blocks, touched, replaced, findings.ranked(), unproved.ranked(), arm.result())

    def _requests(self, log: RequestLog, on_bytes: OnBytes) -> Iterator[LoggedRequest]:
        if self.schedule is None:
            return _all(log, lambda _: None, on_bytes)
        return _in_order(log, self.schedule, on_bytes)


def _all(log: RequestLog, on_bad: Callable[[BadLine], object], on_bytes: OnBytes) -> Iterator[LoggedRequest]:
    reached = 0
    for request in log.requests(on_bad):
        yield request
        on_bytes(request.offset - reached)
        reached = request.offset
    on_bytes(log.size - reached)


def _in_order(log: RequestLog, schedule: Sequence[Line], on_bytes: OnBytes) -> Iterator[LoggedRequest]:
    done = 0
    for count, line in enumerate(schedule, 1):
        yield log.at(line.offset, line.number)
        on_bytes(log.size * count // len(schedule) - done)
        done = log.size * count // len(schedule)


def _body(request: LoggedRequest) -> bytes:
    return json.dumps(request.body).encode()


def _slim(block: ContextBlock) -> ContextBlock:
    return ContextBlock(id=text_digest(block), tokens=estimate_tokens(block.text or ""))
