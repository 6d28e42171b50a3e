"""The way of a request through our code, and the one point at which it fails open (invariant 6).

::

    parse -> front -> restore -> plan -> place -> marks -> report ... with blocks, or of a conversation
    treat -> place -> marks ......................................... all others, if a treatment is on
    observe, learn, record, metrics ................................. after the engine: first content, end of the answer

Every step is an argument of :class:`Pipeline`. An error of ours in a step before the engine sends the blocks plainly in
the given order; one after it never reaches the client. Both are counted and logged. Pure but for the log: no I/O here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TypeVar

from prefixpilot.apis.base import Prompt
from prefixpilot.core import Plan, TenantId
from prefixpilot.errors import InvalidRequestError
from prefixpilot.jsontext import Edit, JsonText
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.blocks import FIELD
from prefixpilot.prompts.request import parse_request
from prefixpilot.proxy import fallback
from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.call import (
    MAX_ID_CHARS,
    Call,
    Options,
    RefusedError,
    credential_of,
    may_carry_blocks,
    read_options,
)
from prefixpilot.proxy.control.controller import RouteState
from prefixpilot.proxy.control.trials import Trials
from prefixpilot.proxy.forward import NOTHING_TO_LEARN, Forward, Teller, Ticket, untouched
from prefixpilot.proxy.known import KnownTexts
from prefixpilot.proxy.learning import Learner, Observation
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import NOTHING_RESTORED, LedgerKey, Restoration
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.ordinary.told import Times
from prefixpilot.proxy.planning import TurnPlanner
from prefixpilot.proxy.preface import Preface, Prefaced
from prefixpilot.proxy.reading import BodyReader
from prefixpilot.proxy.report import UNKNOWN, PlanReport, RecentPlans, plan_header, unrecorded
from prefixpilot.proxy.settings import MODES, ProxySettings
from prefixpilot.proxy.steady import Steadied
from prefixpilot.proxy.steps import Failed, Parse, Planner, Treat, Treatment
from prefixpilot.proxy.turns import ALONE, Draft, Past, Planned, in_parts, plain
from prefixpilot.proxy.windows import Windows
from prefixpilot.proxy.wire import headers as h

log = logging.getLogger(__name__)
T = TypeVar("T")


class Pipeline:
    """Decides what to send for a request, and learns from the answer. One event loop calls it."""

    def __init__(
        self,
        settings: ProxySettings,
        pilot: Planner,
        ledger: Ledger,
        metrics: Metrics,
        plans: RecentPlans,
        *,
        parse: Parse = parse_request,
        render: Callable[[Plan], str] = render_blocks,
        place: Callable[[JsonText, Sequence[Edit]], bytes] | None = None,
        texts: KnownTexts | None = None,
        describe: Callable[[PlanReport], bytes] = plan_header,
        observer: Callable[[int, str, str, str], AnswerObserver] = AnswerObserver,
        treat: Treat | None = None,
        trials: Trials | None = None,
        preface: Preface | None = None,
        times: Callable[[Options], Times | None] | None = None,
        windows: Windows | None = None,
        cache_state: Callable[[], str] = lambda: UNKNOWN,
        new_id: Callable[[], str] = lambda: token_hex(16),
    ) -> None:
        self._settings = settings
        self._pilot = pilot
        self._ledger = ledger
        self._metrics = metrics
        self._teller = Teller(plans, describe, self.attempt)
        texts = texts or KnownTexts()
        self._place = place or texts.placing.place
        self._observer = observer
        self._treat = treat
        self._trials = trials or Trials(settings.control)
        self._preface = preface
        self._times = times
        self._cache_state = cache_state
        self._new_id = new_id
        windows = Windows(settings.store.context_window) if windows is None else windows
        self._turns = TurnPlanner(pilot, ledger, metrics, render, self.attempt, windows)
        self._reader = BodyReader(parse, settings.max_body_bytes, self._turns.knows, texts.elements)
        self._learner = Learner(pilot, ledger, metrics, self.attempt, windows, self._trials)

    def prepare(self, call: Call) -> Forward:
        """What to send.

        Raises:
            RefusedError: 400 for a client's mistake; 500 if even the plain rendering failed.
        """
        return self.complete(self.draft(call))

    def key(self, call: Call) -> LedgerKey | None:
        """Of the conversation that a request names; ``None`` if it names none, or its headers cannot be used."""
        if h.get(call.headers, h.CONVERSATION) is None:
            return None
        try:
            return self._turns.key(read_options(call, self._settings.mode, str))
        except InvalidRequestError:
            return None

    def keys(self, headers: h.RawHeaders, tenant: TenantId, conversations: Sequence[str]) -> list[LedgerKey]:
        """Of conversations of the tenant who sends these headers, in all modes."""
        credential = credential_of(headers)
        return [LedgerKey(tenant, credential, conversation, mode) for conversation in conversations for mode in MODES]

    def draft(self, call: Call) -> Draft | Forward:
        """The request, read; what to send, if there is nothing to plan. Errors as :meth:`prepare`."""
        try:
            options = read_options(call, self._settings.mode, self._new_id)
            options = options.within(self._settings.max_displacement)
            if options.conversation is None and not may_carry_blocks(call, FIELD):
                return self._without_blocks(call, options)
            read = self.attempt("parse", lambda: self._reader.request(call, options))
        except InvalidRequestError as error:
            raise RefusedError.of(error) from error
        if isinstance(read, Failed):
            return self._last_resort(call, options, read, NOTHING_RESTORED)
        if read is None:
            return self._without_blocks(call, options)
        options = self._trials.entered(options, call, read.asked.prompt)
        front = self._prefaced(read.asked.prompt, options)
        steady = front.steadied.prompt
        asked = read.asked if steady is read.asked.prompt else replace(read.asked, prompt=steady)
        draft = Draft(call, options, asked, read.source, self._turns.recall(asked, options), front=front)
        if self._settings.admission_window_ms:
            return replace(draft, request=self._turns.batchable(draft))
        return draft

    def routes(self) -> list[RouteState]:
        """What the controller knows of each route."""
        return self._trials.states()

    def plan_together(self, drafts: Sequence[Draft]) -> list[tuple[Draft, Plan | None]]:
        """Plans of drafts with a request, in the order in which to send them; ``None`` for those to plan alone."""
        by_id: dict[str, Draft] = {}
        for draft in drafts:
            by_id.setdefault(draft.options.request_id, draft)
        batch = list(by_id.values())
        requests = [draft.request for draft in batch if draft.request is not None]
        planned = self.attempt("plan_together", lambda: self._pilot.propose_batch(requests))
        if isinstance(planned, Failed):
            return [(draft, None) for draft in drafts]
        self._metrics.held.inc(len(planned))
        rest = [(draft, None) for draft in drafts if by_id[draft.options.request_id] is not draft]
        return [*((batch[entry.position], entry.plan) for entry in planned), *rest]

    def complete(self, draft: Draft | Forward, plan: Plan | None = None) -> Forward:
        """What to send for a draft, with the plan that was made for it, if one was. Errors as :meth:`prepare`."""
        if isinstance(draft, Forward):
            return draft
        try:
            return self._complete(draft, plan)
        except InvalidRequestError as error:
            raise RefusedError.of(error) from error

    def observe(self, forward: Forward, status: int, content_type: str, encoding: str) -> Observation:
        """Watch the answer to a request."""
        answer = self._observer(status, content_type, encoding, forward.api)
        if forward.ticket.turn is None:
            answer.without_reply()
        return Observation(self._learner, forward, answer)

    def told(self, forward: Forward, status: int) -> bytes | None:
        """The plan header that goes with an answer: a turn that the engine has refused, or whose conversation was
        deleted meanwhile, is recorded only if it was before."""
        header, ticket = forward.plan_header, forward.ticket
        deleted = ticket.turn is not None and ticket.turn.lineage.deleted
        if header is None or (200 <= status < 300 and not deleted):
            return header
        told = header if self._holds(ticket) else self.attempt("report", lambda: unrecorded(header))
        return None if isinstance(told, Failed) else told

    def over(self, forward: Forward) -> None:
        """A request is over, whatever came of it: its report is kept, and calls its turn recorded only if it is."""
        forward.tell()
        report, ticket = forward.report, forward.ticket
        told = report is not None and report.recorded and ticket.turn is not None
        if told and self.attempt("report", lambda: self._holds(ticket)) is False:
            self.attempt("report", lambda: self._teller.plans.unrecord(forward.request_id))

    def _holds(self, ticket: Ticket) -> bool:
        return ticket.key is not None and ticket.turn is not None and self._ledger.holds(ticket.key, ticket.turn)

    def attempt(self, step: str, action: Callable[[], T]) -> T | Failed:
        """The fail-open point: the only broad ``except`` of the package. What a client did wrong passes."""
        try:
            return action()
        except RefusedError:
            raise
        except Exception as error:
            if step == "parse" and isinstance(error, InvalidRequestError):
                raise
            self._metrics.fail_opens.labels(step).inc()
            log.error("failed open in step %s", step, exc_info=error)
            return Failed(step, error)

    # -- with blocks, or of a conversation

    def _complete(self, draft: Draft, plan: Plan | None) -> Forward:
        call, options, asked, past = draft.call, draft.options, draft.asked, draft.past
        planned = self._turns.plan(asked, options, past if isinstance(past, Past) else ALONE, plan)
        failed = next((x for x in (past, planned) if isinstance(x, Failed)), None)
        past = past if isinstance(past, Past) else ALONE
        if isinstance(planned, Failed):
            planned = plain(asked, past)
        if not planned.text and not past.restored.texts and FIELD not in asked.body:
            told = past.restored.told
            as_came = replace(untouched(call, options, failed), ticket=planned.ticket)
            if told:
                as_came = replace(as_came, tell=self._teller.of(self._report(draft, past, planned, failed), kept=False))
            return self._with_front(draft, as_came)
        body = self.attempt("place", lambda: self._body(draft, planned, past.restored))
        if isinstance(body, Failed):
            ticket = NOTHING_TO_LEARN if asked.newest_user in past.restored.turns else plain(asked, past).ticket
            return replace(self._last_resort(call, options, body, past.restored), ticket=ticket)
        return self._planned(draft, self._report(draft, past, planned, failed), planned, body)

    def _body(self, draft: Draft, planned: Planned, restored: Restoration) -> bytes:
        texts = restored.texts
        if planned.text:
            texts[draft.asked.newest_user] = planned.text
        placed = in_parts(draft.asked, texts, planned)
        edits = draft.ended([*placed, *draft.front_edits, *self._trials.edits(draft.asked.prompt)])
        body = self._place(draft.source, edits)
        marked = self._marked(draft.source, body, draft.call, draft.options, draft)
        return body if marked is None else marked

    def _prefaced(self, prompt: Prompt, options: Options) -> Prefaced:
        """The front of a request with blocks, or of a conversation, kept steady; as it came if that fails. What was
        told of times lives in memory: in a conversation that is kept on disk, no time is rounded."""
        if (preface := self._preface) is None:
            return Prefaced(Steadied(prompt))
        kept = options.conversation is not None and self._settings.store.state_dir is not None
        times = None if kept or self._times is None else self._times(options)
        front = self.attempt("front", lambda: preface.treat(prompt, options, times))
        return front if isinstance(front, Prefaced) else Prefaced(Steadied(prompt))

    def _with_front(self, draft: Draft, as_came: Forward) -> Forward:
        """A request in which nothing is placed, but its front may be kept steady."""
        edits = draft.ended(draft.front_edits)
        body = self.attempt("place", lambda: self._place(draft.source, edits) if edits else None)
        if isinstance(body, Failed):
            return as_came
        body = self._marked(draft.source, body, draft.call, draft.options, draft)
        if body is None:
            return _fronted(as_came, draft)
        outcome: Outcome = "planned" if as_came.outcome == "passthrough" else as_came.outcome
        return replace(_fronted(as_came, draft), body=body, outcome=outcome, touched=True)

    def _marked(
        self, source: JsonText, body: bytes | None, call: Call, options: Options, draft: Draft | None
    ) -> bytes | None:
        """The body, with a provider's marks if they are on and nothing fails; ``None``: ``source`` goes as it came."""
        preface = self._preface
        if preface is None or not preface.marks(call.api.name, options):
            return body
        data = source.edited(()) if body is None else body
        stable = None if draft is None else draft.stable
        marked = self.attempt("marks", lambda: preface.hosted.marked(data, stable))
        return body if marked is None or isinstance(marked, Failed) else marked

    def _report(self, draft: Draft, past: Past, planned: Planned, failed: Failed | None) -> PlanReport:
        return PlanReport(
            draft.options.request_id,
            draft.options.mode,
            draft.asked.blocks,
            planned.labels,
            planned.plan,
            len(past.restored.texts),
            past.restored.ambiguous,
            None if failed is None else str(failed),
            past.restored.unmatched,
            self._turns.will_be_recorded(draft.asked, past, planned),
            past.restored.gone,
            past.restored.dropped,
            self._cache_state(),
        )

    def _planned(self, draft: Draft, report: PlanReport, planned: Planned, body: bytes) -> Forward:
        call, options = draft.call, draft.options
        forward = Forward(
            body,
            "planned" if report.fallback is None else "fallback",
            options.mode,
            options.request_id,
            call.received,
            touched=True,
            tell=self._teller.of(report, kept=not options.explain),
            report=report,
            ticket=planned.ticket,
            api=call.api.name,
            explain=options.explain,
            usage_asked=bool(self._trials.edits(draft.asked.prompt)),
            trial=options.trial,
        )
        return _fronted(forward, draft)

    def _last_resort(self, call: Call, options: Options, failed: Failed, restored: Restoration) -> Forward:
        """Plain text by other code than that which failed; the client's bytes only if nothing is to be placed."""
        as_came = untouched(call, options, failed)
        if not restored.texts and not may_carry_blocks(call, FIELD):
            return as_came
        number = restored.record.next_number
        body = self.attempt("fallback", lambda: self._plain_body(call, restored.texts, number))
        if isinstance(body, Failed):
            message = f"the proxy failed on this request, and so did its plain rendering ({failed}, {body})"
            raise RefusedError(500, message, "server_error", None, "proxy_error")
        report = PlanReport(
            options.request_id,
            options.mode,
            (),
            (),
            None,
            len(restored.texts),
            False,
            str(failed),
            cache=self._cache_state(),
        )
        return replace(as_came, body=body, touched=True, tell=self._teller.of(report, kept=False))

    def _plain_body(self, call: Call, frozen: Mapping[int, str], number: int) -> bytes:
        return fallback.plain_body(self._reader.unfold(call), call.api.name, frozen, number)

    # -- all others

    def _without_blocks(self, call: Call, options: Options) -> Forward:
        """Read only if there is a treatment, and no conversation id: there, what was sent before is known otherwise."""
        if self._treat is None or options.conversation is not None:
            return untouched(call, options)
        treat = self._treat
        treated = self.attempt("treat", lambda: self._treated(call, options, treat))
        if isinstance(treated, Failed):
            return untouched(call, options, treated)
        return untouched(call, options) if treated is None else treated

    def _treated(self, call: Call, options: Options, treat: Treat) -> Forward | None:
        read = self._reader.prompt(call)
        if read is None:
            return None
        options = self._trials.entered(options, call, read.prompt)
        treatment: Treatment = treat(read.prompt, read.source, options)
        report = treatment.report
        forward = untouched(call, options, None, treatment)
        edits = treatment.edits if options.mode != "shadow" else ()
        more = self._trials.edits(read.prompt) if edits else ()
        body = self._place(read.source, (*edits, *more)) if edits else None
        body = self._marked(read.source, body, call, options, None)
        if body is None:
            return forward
        if report is not None and not options.explain and len(report.request_id) <= MAX_ID_CHARS:
            self.attempt("report", lambda: self._teller.plans.add(report))
        changes = () if report is None else report.changes
        return replace(
            forward,
            body=body,
            outcome="planned",
            touched=True,
            usage_asked=bool(more),
            changes=changes,
        )


def _fronted(forward: Forward, draft: Draft) -> Forward:
    """With what is learnt and told of a steady front."""
    steadied = draft.front.steadied if draft.front is not None else None
    if steadied is None or steadied.learn is None:
        return forward
    return replace(forward, ticket=replace(forward.ticket, treated=steadied.learn), changes=steadied.changes)
