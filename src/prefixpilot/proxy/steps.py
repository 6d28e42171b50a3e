"""What the pipeline needs from others, and what a failed step is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from prefixpilot.conversation import ConversationRecord
from prefixpilot.core import Plan, PlannedRequest, Request
from prefixpilot.prompts.chat import ChatRequest
from prefixpilot.prompts.source import ChatSource


class Planner(Protocol):
    """What the pipeline asks of a :class:`~prefixpilot.ContextPilot`."""

    def propose(self, request: Request, record: ConversationRecord = ...) -> Plan: ...
    def as_given(self, request: Request, record: ConversationRecord = ...) -> Plan: ...
    def propose_batch(self, requests: Sequence[Request]) -> list[PlannedRequest]: ...
    def learn(self, plan: Plan) -> None: ...
    def evict(self, request_ids: Iterable[str]) -> int: ...
    def reset(self) -> int: ...
    @property
    def live_requests(self) -> int: ...


class Parse(Protocol):
    """:func:`prefixpilot.prompts.chat.parse_chat`."""

    def __call__(self, body: Mapping[str, Any], *, history: bool = ...) -> ChatRequest | None: ...


class ReadChat(NamedTuple):
    """A chat body, and the text that it came in."""

    chat: ChatRequest
    source: ChatSource


@dataclass(frozen=True, slots=True)
class Failed:
    """A step of ours that raised."""

    step: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.step}: {type(self.error).__name__}"
