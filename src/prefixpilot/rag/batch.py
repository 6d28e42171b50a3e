"""Many requests that are known together: planned once, run in the planned schedule, answered in the caller's order.

What shares a prefix runs one after the other (paper's offline mode), so a small cache serves it too. Without I/O but
for the journal; :mod:`prefixpilot.rag.run` makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, NamedTuple

from prefixpilot.apis.base import digest
from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock, Plan, Request, RequestId
from prefixpilot.errors import EngineError, InvalidRequestError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.request import BlocksRequest, parse_request
from prefixpilot.rag.answers import Usage
from prefixpilot.rag.client import Reply, call_of, check_options, fields_of, reply_of
from prefixpilot.rag.desk import Blocks, as_given
from prefixpilot.rag.journal import Done, Journal
from prefixpilot.rag.turn import Message

MAX_FAILURES_IN_A_ROW: Final = 20
"""After so many the engine is taken to be gone, and the run ends; what is done is kept."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch; independent of the others.

    Attributes:
        request_id: unique in the batch; names the request in the journal.
        messages: of a chat; the blocks go in front of the newest user message.
        blocks: the most relevant first.
        options: arguments of ``chat.completions.create`` for this request, beyond those of the batch.
    """

    request_id: str
    messages: tuple[Message, ...]
    blocks: tuple[ContextBlock, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    constraints: Constraints = UNCONSTRAINED

    @classmethod
    def asking(
        cls, request_id: str, question: str, blocks: Blocks, system: str | None = None, **options: Any
    ) -> BatchRequest:
        """A question over blocks."""
        head = () if system is None else ({"role": "system", "content": system},)
        given = as_given(blocks)
        messages = (*head, {"role": "user", "content": question})
        return cls(request_id, messages, given.blocks, options, given.constraints)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of one request.

    Attributes:
        text: what the model said; ``None`` if the call failed.
        usage: as the engine counted; unknown if the call failed.
        error: why the call failed; ``None`` if it did not.
        response: the whole completion, as data.
        resumed: it was answered by an earlier run, and not asked for again.
    """

    request_id: str
    text: str | None
    usage: Usage
    error: str | None = None
    response: Mapping[str, Any] | None = None
    resumed: bool = field(default=False, compare=False)


class Job(NamedTuple):
    """A request with its plan. Its prompt is rendered when its turn comes.

    Attributes:
        position: in the batch as given.
        options: all arguments of its call but the messages.
        digest: of the request as given, in hex.
    """

    position: int
    request_id: str
    options: Mapping[str, Any]
    read: BlocksRequest
    request: Request
    digest: str


class Batch:
    """A batch under way. ``record`` may be called from several threads.

    Attributes:
        on_done: called after each call that has ended.

    Args:
        options: arguments of ``chat.completions.create`` for all requests.
        journal: where it says what is done; ``None`` keeps nothing.

    Raises:
        InvalidRequestError: a request that cannot be used, two with one id, or one that is not what it was when the
            journal was written; names it by position.
    """

    def __init__(
        self,
        requests: Sequence[BatchRequest],
        options: Mapping[str, Any],
        pilot: ContextPilot | None,
        journal: Journal | None,
    ) -> None:
        self.on_done: Callable[[], object] = lambda: None
        self._journal = journal
        self._lock = Lock()
        self._jobs = [_job(position, request, options) for position, request in enumerate(requests)]
        self._done: dict[str, Done] = {}
        self._failures = 0
        if journal is not None:
            self._take_over(journal.done)
        self._resumed = frozenset(self._done)
        self._planned = (pilot or ContextPilot()).optimize_batch([job.request for job in self._jobs])

    @property
    def finished(self) -> int:
        """How many need no call any more."""
        return len(self._done)

    @property
    def todo(self) -> list[tuple[Job, Plan]]:
        """What is to be run, in the planned order."""
        jobs = ((self._jobs[planned.position], planned.plan) for planned in self._planned)
        return [(job, plan) for job, plan in jobs if job.request_id not in self._done]

    @staticmethod
    def call(job: Job, plan: Plan) -> dict[str, Any]:
        """Arguments of the client's call."""
        return call_of(job.options, job.read.render(render_blocks(plan))["messages"], job.request_id)

    def record(self, job: Job, outcome: Reply | Exception) -> None:
        """A call has ended, well or not.

        Raises:
            EngineError: it is one of many failures in a row.
            ConfigError: the journal cannot be written.
        """
        with self._lock:
            done = _failed(job, outcome) if isinstance(outcome, Exception) else _answered(job, outcome)
            self._failures = 0 if done.error is None else self._failures + 1
            if self._journal is not None:
                self._journal.write(done)
            self._done[job.request_id] = done
            self.on_done()
            if self._failures >= MAX_FAILURES_IN_A_ROW:
                raise EngineError(f"{self._failures} calls in a row have failed; the last: {done.error}")

    def results(self) -> list[BatchResult]:
        """One for each request, in the order given."""
        return [_result(self._done[job.request_id], job.request_id in self._resumed) for job in self._jobs]

    def _take_over(self, done: Mapping[str, Done]) -> None:
        """What an earlier run has done, failures excepted."""
        for job in self._jobs:
            known = done.get(job.request_id)
            if known is None:
                continue
            if known.digest != job.digest:
                raise InvalidRequestError(
                    f"requests[{job.position}]",
                    f"{job.request_id!r} is not what it was when it was run",
                    "give it as it was, or another id, or another file for what is done",
                )
            if known.error is None:
                self._done[job.request_id] = known


def _job(position: int, request: BatchRequest, common: Mapping[str, Any]) -> Job:
    options = {**common, **request.options}
    fields = fields_of(options)
    try:
        check_options(request.options)
        if any(not block.text for block in request.blocks):
            raise InvalidRequestError("blocks", "hold one without text", "give every block a text")
        read = parse_request({**fields, "messages": list(request.messages)}, history=True)
        if read is None:
            raise InvalidRequestError("messages", "hold no user message", "add one; the blocks go in front of it")
        name = RequestId(request.request_id)
        planned = Request(request.blocks, name, scope=read.scope(), constraints=request.constraints)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"requests[{position}].{error.field}", error.reason, error.remedy) from None
    blocks = [[block.text, block.title] for block in request.blocks]
    given = digest([fields, list(request.messages), blocks]).hex()
    return Job(position, request.request_id, options, read, planned, given)


def _failed(job: Job, error: Exception) -> Done:
    return Done(job.request_id, job.digest, error=f"{type(error).__name__}: {error}")


def _answered(job: Job, reply: Reply) -> Done:
    return Done(job.request_id, job.digest, response=reply.response)


def _result(done: Done, resumed: bool) -> BatchResult:
    if done.response is None:
        return BatchResult(done.request_id, None, Usage(), done.error)
    reply = reply_of(done.response)
    return BatchResult(done.request_id, reply.text, reply.usage, None, done.response, resumed)
