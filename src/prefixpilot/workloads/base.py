"""What a workload is: requests in arrival order, and what the file said of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prefixpilot.core import BlockId, ConversationId, Request
from prefixpilot.errors import TraceError
from prefixpilot.prompts.request import BlocksRequest


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line of a Batch file.

    Attributes:
        line: the line as read: ``custom_id``, the body, and whatever else stood there.
        asked: its body, if that has ``context_blocks``; else ``None``, and the line is sent as it is.
        member: of the line, which is its body: ``body`` (OpenAI) or ``params`` (Anthropic).
    """

    line: Mapping[str, Any]
    asked: BlocksRequest | None
    member: str = "body"

    def render(self, text: str) -> dict[str, Any]:
        """The line to send: ``text`` in the place of ``context_blocks``; all else as it was, keys in their order."""
        body = self.line[self.member] if self.asked is None else self.asked.render(text)
        return {**self.line, self.member: body}


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        request: its context blocks. Its conversation is set by :meth:`Workload.as_conversations` only.
        session_id: the session it belongs to; its own id where the file names none.
        turn: its number in the session, as the file counts.
        where: ``FILE:LINE``, for messages.
        batch: the original line, if the file is a Batch file.
        query: what was asked; ``None`` if the file does not say.
        answers: reference answers, likewise, the best first.
        evidence: names of the blocks that hold the answer, likewise; of blocks that were not retrieved, too.
    """

    request: Request
    session_id: str
    turn: int
    where: str
    batch: BatchLine | None = None
    query: str | None = None
    answers: tuple[str, ...] = ()
    evidence: tuple[BlockId, ...] = ()

    def name_of(self, position: int) -> BlockId | None:
        """The caller's id of the block at ``position`` of the request; ``None`` if it has none."""
        return self.request.blocks[position].id


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in arrival order; at least one. Their ids are unique.

    Attributes:
        name: of the trace, or of the file.
        requests: independent of each other, unless :meth:`as_conversations` made them turns.
    """

    name: str
    requests: tuple[WorkloadRequest, ...]

    @property
    def is_batch(self) -> bool:
        """Whether it came from an OpenAI Batch file."""
        return self.requests[0].batch is not None

    def as_conversations(self) -> Workload:
        """The same requests as turns: every session is a conversation. O(requests).

        Raises:
            TraceError: a Batch file, which names no sessions; or a session whose turn numbers go down.
        """
        if self.is_batch:
            raise TraceError(self.requests[0].where, "a Batch line names no session", "leave out --multi-turn")
        last: dict[str, int] = {}
        for entry in self.requests:
            if entry.turn < last.get(entry.session_id, entry.turn):
                reason = f"is {entry.turn}, after turn {last[entry.session_id]} of session {entry.session_id!r}"
                raise TraceError(f"{entry.where}: turn", reason, "write the turns of a session in their order")
            last[entry.session_id] = entry.turn
        return replace(self, requests=tuple(_as_turn(entry) for entry in self.requests))


def _as_turn(entry: WorkloadRequest) -> WorkloadRequest:
    return replace(entry, request=replace(entry.request, conversation_id=ConversationId(entry.session_id)))
