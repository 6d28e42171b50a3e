"""What the sessions have in common, without I/O: settings, the state of one conversation, and the steps of a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Self
from uuid import uuid4

from prefixpilot.constraints import UNCONSTRAINED, Constraints
from prefixpilot.core import ContextBlock
from prefixpilot.errors import InvalidRequestError
from prefixpilot.pilot import ContextPilot
from prefixpilot.prompts.blocks import Block, Given, given_blocks
from prefixpilot.rag.answers import Answer, Usage
from prefixpilot.rag.client import AsyncClient, Client, Reply, arguments_of, call_of, check_options, fields_of
from prefixpilot.rag.functions import Functions, check_calls
from prefixpilot.rag.tool_results import ToolCall
from prefixpilot.rag.turn import Asked, History, Message, Turn, begin, prepare

Blocks = Sequence[Block]
"""Context blocks, most relevant first: ``ContextBlock``, a string, or ``{"text": ..., "title": ...}``."""


_SETTINGS: Final = ("model", "retriever", "pilot", "system", "k", "profile", "instructions", "store", "remember")
_OF_A_TURN: Final = ("blocks", "k", "functions", "constraints")
_SIDE_BY_SIDE: Final = "ask one by one (a stream lasts until it is read or closed), or in fresh() sessions"


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

    Raises:
        InvalidRequestError: a setting that neither a session nor the client's call takes.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        model: str,
        pilot: ContextPilot | None = None,
        system: str | None = None,
        k: int = 5,
        new_id: Callable[[], str] = _request_id,
        **options: Any,
    ) -> None:
        self._arguments = arguments_of(client)
        check_options(options, self._arguments, _SETTINGS)
        self.pilot = ContextPilot() if pilot is None else pilot
        self.history: History = begin(system)
        self._first = self.history
        self._k = k
        self._new_id = new_id
        self._options: dict[str, Any] = {"model": model, **options}
        self._free = Lock()

    def fresh(self) -> Self:
        """A session that begins a conversation of its own: same client, settings, retriever and pilot."""
        session = copy(self)
        session.history = self._first
        session._free = Lock()
        return session

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, as it was sent and answered."""
        return self.history.messages

    @contextmanager
    def _turn(self, talk: Talk | None = None) -> Iterator[None]:
        """The session is taken until this turn is over: a second one is refused before anything is paid for.

        Args:
            talk: of a stream, which is planned before it is begun.

        Raises:
            InvalidRequestError: another turn is under way, or was made since ``talk`` was planned.
        """
        if not self._free.acquire(blocking=False):
            raise InvalidRequestError("session", "is in the middle of another turn", _SIDE_BY_SIDE)
        try:
            if talk is not None and self.history is not talk.turn.history:
                raise InvalidRequestError("session", "had another turn meanwhile", _SIDE_BY_SIDE)
            yield
        finally:
            self._free.release()

    def _talk(self, question: str, given: Given, constraints: Constraints | None, options: Mapping[str, Any]) -> Talk:
        """A turn, planned."""
        check_options(options, self._arguments, _OF_A_TURN)
        if constraints is not None and given.constraints != UNCONSTRAINED:
            raise InvalidRequestError("constraints", "are given beside pins or groups in blocks", "give one of them")
        options = {**self._options, **options}
        demands = given.constraints if constraints is None else constraints
        asked = Asked(question, given.blocks, self._new_id(), fields_of(options), demands)
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
        self.history = turn.done(reply.message)
        return Answer(reply.text, turn.plan, talk.usage, turn.sources, turn.rounds + 1)


def as_given(blocks: Blocks) -> Given:
    """Raises ``InvalidRequestError`` for what are no blocks."""
    return given_blocks(blocks, "blocks")


def as_blocks(blocks: Blocks) -> tuple[ContextBlock, ...]:
    """Where the order is not the planner's. Raises ``InvalidRequestError`` for what are no blocks, and for pins and
    groups."""
    given = as_given(blocks)
    if given.constraints != UNCONSTRAINED:
        raise InvalidRequestError("blocks", "have a pin or a group", "leave it out: agents read in an order of theirs")
    return given.blocks


def no_retriever() -> InvalidRequestError:
    """Neither blocks nor a retriever that would find some."""
    return InvalidRequestError("blocks", "are missing, and the session has no retriever", "give blocks, [] for none")
