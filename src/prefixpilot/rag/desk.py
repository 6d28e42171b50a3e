"""What the sessions have in common, without I/O: settings, the state of one conversation, and the steps of a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.pilot import ContextPilot
from prefixpilot.rag.answers import Answer, Usage
from prefixpilot.rag.client import Reply, call_of, check_options, fields_of
from prefixpilot.rag.functions import Functions, check_calls
from prefixpilot.rag.tool_results import ToolCall
from prefixpilot.rag.turn import Asked, History, Message, Turn, begin, prepare

Blocks = Sequence[ContextBlock | str]
"""Context blocks, most relevant first; a string is a block without a title."""


def _request_id() -> str:
    return uuid4().hex


@dataclass(slots=True)
class Talk:
    """A turn while it is under way: one call, or several with tools between them.

    Attributes:
        question: as it was asked.
        options: of its calls.
        usage: of the calls so far.
    """

    question: str
    turn: Turn
    options: Mapping[str, Any]
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))

    @property
    def call(self) -> dict[str, Any]:
        """Arguments of its next call."""
        return call_of(self.options, self.turn.messages, self.turn.plan.request_id)

    def after_tools(self, reply: Reply, results: Sequence[tuple[ToolCall, str]]) -> None:
        """The model called tools, and this is what they returned."""
        self.turn = self.turn.after_tools(reply.message, results)


class Desk:
    """One conversation and the pilot behind it. Base of both sessions; does no I/O.

    Attributes:
        pilot: plans and remembers what the engine holds; share it between sessions on the same engine.
        history: the conversation as it stands.
    """

    def __init__(
        self,
        *,
        model: str,
        pilot: ContextPilot | None = None,
        system: str | None = None,
        k: int = 5,
        new_id: Callable[[], str] = _request_id,
        **options: Any,
    ) -> None:
        check_options(options)
        self.pilot = ContextPilot() if pilot is None else pilot
        self.history: History = begin(system)
        self._first = self.history
        self._k = k
        self._new_id = new_id
        self._options: dict[str, Any] = {"model": model, **options}

    def fresh(self) -> Self:
        """A session that begins a conversation of its own: same client, settings, retriever and pilot."""
        session = copy(self)
        session.history = self._first
        return session

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, as it was sent and answered."""
        return self.history.messages

    def _talk(
        self, question: str, blocks: Sequence[ContextBlock], constraints: Constraints | None, options: Mapping[str, Any]
    ) -> Talk:
        """A turn, planned."""
        check_options(options)
        options = {**self._options, **options}
        asked = Asked(question, tuple(blocks), self._new_id(), fields_of(options), constraints or UNCONSTRAINED)
        return Talk(question, prepare(self.pilot, self.history, asked), options)

    def _take(self, talk: Talk, reply: Reply, functions: Functions | None) -> Answer | None:
        """A reply has come: learn its prompt, and record the turn; ``None`` if the model wants tools first."""
        if not talk.turn.rounds:
            self._learn(talk)
        talk.usage = talk.usage.plus(reply.usage)
        if not reply.calls:
            return self._record(talk, reply)
        check_calls(talk.turn, reply, functions)
        return None

    def _learn(self, talk: Talk) -> None:
        """The engine has the prompt."""
        self.pilot.learn(talk.turn.plan)

    def _record(self, talk: Talk, reply: Reply) -> Answer:
        """The turn is part of the conversation from here on."""
        turn = talk.turn
        if self.history is not turn.history:
            raise InvalidRequestError("session", "had another turn meanwhile", "ask one by one, or in fresh() sessions")
        self.history = turn.done(reply.message)
        return Answer(reply.text, turn.plan, talk.usage, turn.sources, turn.rounds + 1)


def as_blocks(blocks: Blocks) -> tuple[ContextBlock, ...]:
    """Raises ``InvalidRequestError`` for one string, or for an element that is no block."""
    if isinstance(blocks, str):
        raise InvalidRequestError("blocks", "is one string", "give a list of strings or of ContextBlock")
    return tuple(ContextBlock(text=block) if isinstance(block, str) else block for block in blocks)


def no_retriever() -> InvalidRequestError:
    """Neither blocks nor a retriever that would find some."""
    return InvalidRequestError("blocks", "are missing, and the session has no retriever", "give blocks, [] for none")
