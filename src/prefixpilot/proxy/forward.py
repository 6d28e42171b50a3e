"""What the pipeline decides: the bytes to send, and what to learn once the engine has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from prefixpilot.core import Plan, RequestId
from prefixpilot.proxy.call import Call, Options
from prefixpilot.proxy.control.controller import Trial
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.reply import NOTHING_SAID, Said
from prefixpilot.proxy.metrics import Outcome
from prefixpilot.proxy.ordinary.notes import Note
from prefixpilot.proxy.report import PlanReport, RecentPlans, TreatmentReport
from prefixpilot.proxy.settings import Mode
from prefixpilot.proxy.steps import Attempt, Failed, Treatment
from prefixpilot.volatile.base import Change


@dataclass(frozen=True, slots=True)
class Ticket:
    """What becomes true at the engine's first content, and only then.

    Attributes:
        plan: for the index; ``None`` in mode off.
        key, turn: for the ledger; ``None`` without a conversation.
        went_on: the turn has been sent before, and this is the client's copy of the reply that it goes on from.
        counted: model and bytes of the prompt, to compare with the engine's count of tokens; ``None`` compares nothing.
        heard: the client's copy of the reply to the turn's parent.
        treated: what a treatment of a request without blocks wants done then.
        treated_plans: the plans that ``treated`` gives the index.
    """

    plan: Plan | None = None
    key: LedgerKey | None = None
    turn: Turn | None = None
    went_on: Said | None = None
    heard: Said = NOTHING_SAID
    counted: tuple[str, int] | None = None
    treated: Callable[[], None] | None = None
    treated_plans: tuple[Plan, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All that the index learns."""
        return self.treated_plans if self.plan is None else (self.plan, *self.treated_plans)

    @property
    def empty(self) -> bool:
        """Nothing to learn."""
        return self.plan is None and self.turn is None and self.treated is None


NOTHING_TO_LEARN = Ticket()


def _nothing() -> None:
    """Nothing is told."""


NOT_TREATED: Final = Treatment()


@dataclass(frozen=True, slots=True)
class Forward:
    """One request on its way to the engine.

    Attributes:
        body: the bytes to send; the client's own if ``touched`` is false.
        outcome: as counted, unless the engine answers with an error.
        touched: the body is ours; then the engine gets our request id, and the client the plan header.
        tell: keeps the report and makes the value of ``X-PrefixPilot-Plan``, once; ``None`` if that could not be made.
            The engine need not wait for it: to be called when the request is on its way.
        api: name of the API it is of.
        explain: the client wants the plan, not an answer.
        usage_asked: we asked for the usage of the stream, and the client did not.
        trial: see :class:`prefixpilot.proxy.call.Options`.
        treatment: what was done to a request without blocks.
        changes: what the rules for volatile text and the order of tools did.
        notes: what was found in which string of an ordinary request, and why it stays; in mode explain only.
    """

    body: bytes
    outcome: Outcome
    mode: Mode
    request_id: RequestId
    received: float
    touched: bool = False
    tell: Callable[[], bytes | None] = _nothing
    report: PlanReport | None = None
    ticket: Ticket = NOTHING_TO_LEARN
    api: str = "chat"
    explain: bool = False
    usage_asked: bool = False
    trial: Trial | None = None
    treatment: TreatmentReport | None = None
    changes: tuple[Change, ...] = ()
    notes: Sequence[Note] = ()

    @property
    def plan_header(self) -> bytes | None:
        """What :attr:`tell` makes."""
        return self.tell()

    @property
    def observed(self) -> bool:
        """Whether the answer has to be read."""
        return self.touched or self.trial is not None or not self.ticket.empty


def untouched(
    call: Call, options: Options, failed: Failed | None = None, treatment: Treatment = NOT_TREATED
) -> Forward:
    """The request as it came, and what is learnt and told of it."""
    outcome: Outcome = "passthrough" if failed is None else "fallback"
    return Forward(
        call.body,
        outcome,
        options.mode,
        options.request_id,
        call.received,
        tell=lambda: treatment.plan_header,
        ticket=learning(treatment),
        api=call.api.name,
        explain=options.explain,
        trial=options.trial,
        treatment=treatment.report,
        notes=treatment.notes,
    )


def learning(treatment: Treatment) -> Ticket:
    """What is learnt of a request without blocks."""
    if treatment.learn is None and not treatment.plans:
        return NOTHING_TO_LEARN
    return Ticket(treated=treatment.learn, treated_plans=treatment.plans)


class Teller:
    """Tells of plans: to who asks for them later, and in the header of the answer.

    Attributes:
        plans: those that are kept.
    """

    def __init__(self, plans: RecentPlans, describe: Callable[[PlanReport], bytes], attempt: Attempt) -> None:
        self.plans = plans
        self._describe = describe
        self._attempt = attempt

    def of(self, report: PlanReport, *, kept: bool) -> Callable[[], bytes | None]:
        """See :attr:`Forward.tell`; the report is ``kept``, or only told."""
        told: list[bytes | None] = []

        def tell() -> bytes | None:
            if not told:
                if kept:
                    self._attempt("report", lambda: self.plans.add(report))
                header = self._attempt("report", lambda: self._describe(report))
                told.append(None if isinstance(header, Failed) else header)
            return told[0]

        return tell
