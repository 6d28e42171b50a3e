"""After the engine: what is learnt at its first content, and counted at the end of its answer."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.control.trials import Trials
from prefixpilot.proxy.forward import Forward, Ticket
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.steps import Attempt, Failed, Planner
from prefixpilot.proxy.windows import Windows


class Learner:
    """Tells index, ledger and metrics what the engine has got."""

    def __init__(
        self,
        pilot: Planner,
        ledger: Ledger,
        metrics: Metrics,
        attempt: Attempt,
        windows: Windows,
        trials: Trials,
    ) -> None:
        self._pilot = pilot
        self._ledger = ledger
        self._metrics = metrics
        self.attempt = attempt
        self._windows = windows
        self._trials = trials

    def started(self, forward: Forward, answer: AnswerObserver) -> None:
        """The engine's first content is there: it holds the prompt."""
        ticket = forward.ticket
        if ticket.plan is not None:
            plan = ticket.plan
            self.attempt("learn", lambda: self._pilot.learn(plan))
        if ticket.key is not None and ticket.turn is not None:
            self._record(ticket.key, ticket.turn, ticket, answer)
        if ticket.treated is not None:
            self.attempt("learn", ticket.treated)
        if forward.report is not None and forward.report.plan is not None:
            self._metrics.count_plan(forward.report.plan)
        if forward.touched:
            self._metrics.count_treatment(forward.treatment, forward.changes)
        elif forward.mode == "shadow" and forward.treatment is not None:
            self._metrics.count_shadow(forward.treatment)

    def _record(self, key: LedgerKey, turn: Turn, ticket: Ticket, answer: AnswerObserver) -> None:
        went_on = ticket.went_on
        if went_on is not None:
            self.attempt("record", lambda: self._ledger.went_on(key, turn, went_on))
        elif self.attempt("record", lambda: self._ledger.record(key, turn, answer.reply, ticket.heard)) is False:
            self._metrics.unrecorded.inc()

    def finished(self, forward: Forward, answer: AnswerObserver, first_content: float | None) -> None:
        """The answer is complete."""
        if not answer.started:
            return
        ticket, usage = forward.ticket, answer.usage
        if ticket.key is not None and ticket.turn is not None:
            key, turn = ticket.key, ticket.turn
            self.attempt("record", lambda: self._ledger.answered(key, turn))
        if ticket.counted is not None and usage is not None and usage.prompt_tokens is not None:
            self._windows.count(*ticket.counted, usage.prompt_tokens)
        if forward.trial is not None:
            streamed = first_content is not None and answer.streaming
            ttft = first_content - forward.received if streamed and first_content is not None else None
            self._trials.answered(forward.trial, usage, ttft)
        self._metrics.count_usage(answer.usage, forward.mode)


class Observation:
    """One answer going by. Nothing that goes wrong here reaches the client.

    Attributes:
        holds_last: the answer is one document, and is known only with its last byte; call ``finish`` before anything is
            read that the client sends behind it, so that this finds the turn recorded. Known once the first bytes have
            been fed.
    """

    def __init__(self, learner: Learner, forward: Forward, answer: AnswerObserver) -> None:
        self._learner = learner
        self._forward = forward
        self._answer = answer
        self._broken = False
        self._told = False
        self._first_content: float | None = None
        self._settled = True
        self._wants_name: Callable[[str], None] | None = None

    def tell_name(self, to: Callable[[str], None]) -> None:
        """Call that once with the id under which the engine keeps the answer, before the client can ask for it."""
        self._wants_name = to

    @property
    def first_content(self) -> float | None:
        """Monotonic seconds of the engine's first content; ``None`` before it, and if it was not seen."""
        return self._first_content

    @property
    def usage(self) -> Usage | None:
        """The engine's counts so far."""
        return self._answer.usage

    def unsettled(self) -> bool:
        """Whether something was recorded since this was last asked."""
        unsettled, self._settled = not self._settled, True
        return unsettled

    @property
    def holds_last(self) -> bool:
        """See the class."""
        return self._answer.whole

    def feed(self, data: bytes) -> None:
        """The next bytes of the answer."""
        self._watch(lambda: self._answer.feed(data))

    def finish(self) -> None:
        """The answer has come to its proper end."""
        self._watch(self._answer.finish)
        self._settled = not self._told or self._forward.ticket.key is None
        self._learner.attempt(
            "metrics", lambda: self._learner.finished(self._forward, self._answer, self._first_content)
        )

    def _watch(self, action: Callable[[], None]) -> None:
        if self._broken:
            return
        self._broken = isinstance(self._learner.attempt("observe", action), Failed)
        if self._wants_name is not None and (name := self._answer.name) is not None:
            wants, self._wants_name = self._wants_name, None
            self._learner.attempt("route", lambda: wants(name))
        if self._answer.started and not self._told:
            self._told = True
            self._first_content = monotonic()
            self._settled = self._forward.ticket.key is None
            self._learner.attempt("learn", lambda: self._learner.started(self._forward, self._answer))
