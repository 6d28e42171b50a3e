"""What the pipeline needs from others, and what a failed step is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from prefixpilot.apis import Api
from prefixpilot.apis.base import Prompt
from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import Plan, PlannedRequest, Request, RequestId
from prefixpilot.jsontext import Edit, JsonText
from prefixpilot.prompts.request import BlocksRequest
from prefixpilot.proxy.call import Options
from prefixpilot.proxy.ordinary.notes import Note
from prefixpilot.proxy.report import TreatmentReport

T = TypeVar("T")


class Planner(Protocol):
    """What the pipeline asks of a :class:`~prefixpilot.ContextPilot`."""

    def propose(self, request: Request, record: ConversationRecord = ...) -> Plan: ...
    def as_given(self, request: Request, record: ConversationRecord = ...) -> Plan: ...
    def given_cached(self, request: Request) -> int: ...
    def propose_batch(self, requests: Sequence[Request]) -> list[PlannedRequest]: ...
    def learn(self, plan: Plan) -> None: ...
    def evict(self, request_ids: Iterable[str]) -> int: ...
    def evict_all(self) -> int: ...
    def shorten(self, request_id: RequestId, blocks: int) -> object: ...
    def resize(self, cache_tokens: int | None) -> object: ...
    def reset(self) -> int: ...
    @property
    def live_requests(self) -> int: ...


class Parse(Protocol):
    """:func:`prefixpilot.prompts.request.parse_request`."""

    def __call__(self, body: Mapping[str, Any], api: Api = ..., *, history: bool = ...) -> BlocksRequest | None: ...


@dataclass(frozen=True, slots=True)
class Treatment:
    """What is done to a request that carries no blocks.

    Attributes:
        edits: of its body; none leaves every byte as it is.
        learn: called once the engine has begun to answer, so that it holds what was sent.
        plan_header: value of ``X-PrefixPilot-Plan``, ASCII; ``None`` tells the client nothing.
        report: what is kept of it; ``None`` keeps nothing.
        notes: what was found in which string, and why it stays; in mode explain only.
        plans: what ``learn`` gives the index.
    """

    edits: tuple[Edit, ...] = ()
    learn: Callable[[], None] | None = None
    plan_header: bytes | None = None
    report: TreatmentReport | None = None
    notes: Sequence[Note] = ()
    plans: tuple[Plan, ...] = ()


class Treat(Protocol):
    """Treats requests without ``context_blocks`` and without a conversation id (invariant 4a)."""

    def __call__(self, prompt: Prompt, source: JsonText, options: Options) -> Treatment:
        """What to do to a request. An error sends the client's bytes; it is counted as step ``treat``."""
        ...


@dataclass(frozen=True, slots=True)
class Failed:
    """A step of ours that raised."""

    step: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.step}: {type(self.error).__name__}"


class Attempt(Protocol):
    """:meth:`prefixpilot.proxy.pipeline.Pipeline.attempt`."""

    def __call__(self, step: str, action: Callable[[], T]) -> T | Failed: ...
