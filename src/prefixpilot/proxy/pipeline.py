"""The way of a chat request through our code, and the one point at which it fails open (invariant 6).

::

    parse -> restore -> plan -> place -> report ............ before the engine: prepare()
    observe, learn, record, metrics ........................ after it: first content, end of the answer

Every step is an argument of :class:`Pipeline`. An error of ours in a step before the engine sends the blocks plainly in
the given order; one after it never reaches the client. Both are counted and logged. Pure but for the log: no I/O here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TypeVar
from uuid import uuid4

from prefixpilot.core import Plan, Request
from prefixpilot.errors import InvalidRequestError
from prefixpilot.prompts import render_blocks
from prefixpilot.prompts.chat import FIELD, ChatRequest, parse_chat
from prefixpilot.prompts.source import ChatSource, NoObjectError, UnreadableError
from prefixpilot.proxy import fallback
from prefixpilot.proxy.answer import AnswerObserver, Usage
from prefixpilot.proxy.call import (
    Call,
    Options,
    RefusedError,
    check_request_id,
    may_carry_blocks,
    read_options,
    unfold,
)
from prefixpilot.proxy.forward import NOTHING_TO_LEARN, Forward, Ticket
from prefixpilot.proxy.memory.history import History
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import NOTHING_RESTORED, LedgerKey, Restoration, Turn
from prefixpilot.proxy.memory.reply import Said
from prefixpilot.proxy.metrics import Metrics, Outcome
from prefixpilot.proxy.report import PlanReport, RecentPlans, plan_header
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.steps import Failed, Parse, Planner, ReadChat
from prefixpilot.proxy.turns import (
    ALONE,
    Draft,
    Past,
    Planned,
    bounded,
    brought_by,
    given,
    labels_of_sent,
    plain,
    request_of,
    same_again,
    turn_of,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class Pipeline:
    """Decides what to send for a chat request, and learns from the answer. One event loop calls it."""

    def __init__(
        self,
        settings: ProxySettings,
        pilot: Planner,
        ledger: Ledger,
        metrics: Metrics,
        plans: RecentPlans,
        *,
        parse: Parse = parse_chat,
        render: Callable[[Plan], str] = render_blocks,
        place: Callable[[ChatSource, Mapping[int, str], str], bytes] = ChatSource.with_texts,
        describe: Callable[[PlanReport], bytes] = plan_header,
        observer: Callable[[int, str, str], AnswerObserver] = AnswerObserver,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._settings = settings
        self._pilot = pilot
        self._ledger = ledger
        self._metrics = metrics
        self._plans = plans
        self._parse = parse
        self._render = render
        self._place = place
        self._describe = describe
        self._observer = observer
        self._new_id = new_id

    # -- before the engine

    def prepare(self, call: Call) -> Forward:
        """What to send.

        Raises:
            RefusedError: 400 for a client's mistake; 500 if even the plain rendering failed.
        """
        return self.complete(self.draft(call))

    def draft(self, call: Call) -> Draft | Forward:
        """The request, read; what to send, if there is nothing to plan. Errors as :meth:`prepare`."""
        try:
            options = read_options(call, self._settings.mode, self._new_id)
            if options.conversation is None and not may_carry_blocks(call, FIELD):
                return _untouched(call, options)
            read = self.attempt("parse", lambda: self._read(call, options))
        except InvalidRequestError as error:
            raise RefusedError.of(error) from error
        if isinstance(read, Failed):
            return self._last_resort(call, options, read, NOTHING_RESTORED)
        if read is None:
            return _untouched(call, options)
        draft = Draft(call, options, read.chat, read.source, self._recall(read.chat, options))
        return replace(draft, request=self._batchable(draft)) if self._settings.admission_window_ms else draft

    def _batchable(self, draft: Draft) -> Request | None:
        chat, past = draft.chat, draft.past
        if draft.options.mode == "off" or isinstance(past, Failed) or past.restored.record.turns or not chat.blocks:
            return None
        request = self.attempt("plan", lambda: request_of(chat, draft.options, draft.options.tenant))
        return None if isinstance(request, Failed) or chat.newest_user in past.restored.turns else request

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

    def _complete(self, draft: Draft, plan: Plan | None) -> Forward:
        call, options, chat, past = draft.call, draft.options, draft.chat, draft.past
        planned = self._plan(chat, options, past if isinstance(past, Past) else ALONE, plan)
        failed = next((x for x in (past, planned) if isinstance(x, Failed)), None)
        past = past if isinstance(past, Past) else ALONE
        if isinstance(planned, Failed):
            planned = plain(chat, past)
        if not planned.text and not past.restored.texts and FIELD not in chat.body:
            told = past.restored.unmatched or past.restored.ambiguous
            header = self._header(self._report(options, chat, past, planned, failed)) if told else None
            return replace(_untouched(call, options, failed), ticket=planned.ticket, plan_header=header)
        body = self.attempt("place", lambda: self._body(draft, planned, past.restored))
        if isinstance(body, Failed):
            ticket = NOTHING_TO_LEARN if chat.newest_user in past.restored.turns else plain(chat, past).ticket
            return replace(self._last_resort(call, options, body, past.restored), ticket=ticket)
        return self._forward(call, options, self._report(options, chat, past, planned, failed), planned, body)

    def _read(self, call: Call, options: Options) -> ReadChat | None:
        try:
            source = ChatSource.read(unfold(call, self._settings.max_body_bytes), FIELD)
        except NoObjectError:
            return None
        except UnreadableError as error:
            self._refuse_unreadable(call, options, error)
            return None
        chat = self._parse(source.body, history=options.conversation is not None)
        if chat is None:
            return None
        check_request_id(options)
        return ReadChat(chat if options.max_displacement is None else bounded(chat, options.max_displacement), source)

    def _refuse_unreadable(self, call: Call, options: Options, error: UnreadableError) -> None:
        """Passing on what may hold blocks, or belongs to a conversation that does, would drop evidence in silence."""
        key = self._key(options)
        if may_carry_blocks(call, FIELD) or (key is not None and self._ledger.knows(key)):
            reason = f"{error}, so that its {FIELD} or its earlier turns cannot be placed"
            raise InvalidRequestError("body", reason, "send one JSON object in UTF-8, plain or compressed by gzip")

    def _key(self, options: Options) -> LedgerKey | None:
        if options.conversation is None:
            return None
        return LedgerKey(options.tenant, options.credential, options.conversation, options.mode)

    def _recall(self, chat: ChatRequest, options: Options) -> Past | Failed:
        key = self._key(options)
        if key is None or chat.newest_user < 0:
            return ALONE
        past = self.attempt("restore", lambda: self._restore(key, chat))
        if isinstance(past, Past) and past.restored.ambiguous:
            self._metrics.ambiguous.inc()
        elif isinstance(past, Past) and past.restored.unmatched:
            self._metrics.unmatched.inc()
        return past

    def _restore(self, key: LedgerKey, chat: ChatRequest) -> Past:
        history = History.of(chat)
        restored = self._ledger.restore(key, history, with_newest=chat.in_tool_loop, brought=brought_by(chat))
        return Past(key, history, restored)

    def _plan(self, chat: ChatRequest, options: Options, past: Past, plan: Plan | None) -> Planned | Failed:
        sent = past.restored.turns.get(chat.newest_user)
        if sent is not None and past.history is not None:
            went_on = Ticket(None, past.key, sent, past.history.reply_to(chat.newest_user))
            return Planned("", labels_of_sent(chat.blocks, past.restored.labels), ticket=went_on)
        return self.attempt("plan", lambda: self._plan_turn(chat, options, past, plan))

    def _plan_turn(self, chat: ChatRequest, options: Options, past: Past, plan: Plan | None) -> Planned:
        retried = self._retried(chat, past)
        if retried is not None:
            return same_again(retried, chat.blocks, options, past.key)
        if not chat.blocks:
            return Planned("", (), ticket=Ticket(key=past.key, turn=turn_of(chat, past, "", (), past.restored.record)))
        record = past.restored.record
        if plan is None:
            request = request_of(chat, options, options.tenant)
            plan = (self._pilot.propose if options.mode == "on" else self._pilot.as_given)(request, record)
        text = self._render(plan)
        turn = turn_of(chat, past, text, plan.labels, record.after(plan), plan)
        return Planned(text, plan.labels, plan, Ticket(plan if options.mode == "on" else None, past.key, turn))

    def _retried(self, chat: ChatRequest, past: Past) -> Turn | None:
        if past.key is None or past.history is None:
            return None
        chain = past.history.chains[chat.newest_user]
        return self._ledger.find_retry(past.key, chain, past.restored.deepest, given(chat))

    def _body(self, draft: Draft, planned: Planned, restored: Restoration) -> bytes:
        texts = restored.texts
        if planned.text:
            texts[draft.chat.newest_user] = planned.text
        return self._place(draft.source, texts, FIELD)

    def _report(
        self, options: Options, chat: ChatRequest, past: Past, planned: Planned, failed: Failed | None
    ) -> PlanReport:
        return PlanReport(
            options.request_id,
            options.mode,
            chat.blocks,
            planned.labels,
            planned.plan,
            len(past.restored.texts),
            past.restored.ambiguous,
            None if failed is None else str(failed),
            past.restored.unmatched,
            self._will_be_recorded(chat, past, planned),
        )

    def _will_be_recorded(self, chat: ChatRequest, past: Past, planned: Planned) -> bool | None:
        if past.key is None:
            return None
        turn = planned.ticket.turn
        return chat.newest_user in past.restored.turns if turn is None else self._ledger.has_room(past.key, turn)

    def _header(self, report: PlanReport) -> bytes | None:
        header = self.attempt("report", lambda: self._describe(report))
        return None if isinstance(header, Failed) else header

    def _forward(self, call: Call, options: Options, report: PlanReport, planned: Planned, body: bytes) -> Forward:
        self.attempt("report", lambda: self._plans.add(report))
        return Forward(
            body,
            "planned" if report.fallback is None else "fallback",
            options.mode,
            options.request_id,
            call.received,
            touched=True,
            plan_header=self._header(report),
            report=report,
            ticket=planned.ticket,
        )

    def _last_resort(self, call: Call, options: Options, failed: Failed, restored: Restoration) -> Forward:
        """Plain text by other code than that which failed; the client's bytes only if nothing is to be placed."""
        untouched = _untouched(call, options, failed)
        if not restored.texts and not may_carry_blocks(call, FIELD):
            return untouched
        number = restored.record.next_number
        body = self.attempt("fallback", lambda: self._plain_body(call, restored.texts, number))
        if isinstance(body, Failed):
            message = f"the proxy failed on this request, and so did its plain rendering ({failed}, {body})"
            raise RefusedError(500, message, "server_error", None, "proxy_error")
        report = PlanReport(options.request_id, options.mode, (), (), None, len(restored.texts), False, str(failed))
        return replace(untouched, body=body, touched=True, plan_header=self._header(report))

    def _plain_body(self, call: Call, frozen: Mapping[int, str], number: int) -> bytes:
        return fallback.plain_body(unfold(call, self._settings.max_body_bytes), frozen, number)

    # -- after the engine

    def observe(self, forward: Forward, status: int, content_type: str, encoding: str) -> Observation:
        """Watch the answer to a request."""
        return Observation(self, forward, self._observer(status, content_type, encoding))

    def started(self, forward: Forward, answer: AnswerObserver) -> None:
        """The engine's first content is there: it holds the prompt."""
        ticket = forward.ticket
        if ticket.plan is not None:
            plan = ticket.plan
            self.attempt("learn", lambda: self._pilot.learn(plan))
        if ticket.key is not None and ticket.turn is not None:
            self._record(ticket.key, ticket.turn, ticket.went_on, answer)
        if forward.report is not None and forward.report.plan is not None:
            self._metrics.count_plan(forward.report.plan)

    def _record(self, key: LedgerKey, turn: Turn, went_on: Said | None, answer: AnswerObserver) -> None:
        if went_on is not None:
            self.attempt("record", lambda: self._ledger.went_on(key, turn, went_on))
        elif self.attempt("record", lambda: self._ledger.record(key, turn, answer.reply)) is False:
            self._metrics.unrecorded.inc()

    def finished(self, forward: Forward, answer: AnswerObserver) -> None:
        """The answer is complete."""
        if answer.started:
            self._metrics.count_usage(answer.usage, forward.mode)

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


class Observation:
    """One answer going by. Nothing that goes wrong here reaches the client.

    Attributes:
        holds_last: the answer is one document, and is known only with its last byte; pass that on after ``finish``, so
            that the client's next request finds this turn recorded. Known once the first bytes have been fed.
    """

    def __init__(self, pipeline: Pipeline, forward: Forward, answer: AnswerObserver) -> None:
        self._pipeline = pipeline
        self._forward = forward
        self._answer = answer
        self._broken = False
        self._told = False
        self._first_content: float | None = None

    @property
    def first_content(self) -> float | None:
        """Monotonic seconds of the engine's first content; ``None`` before it, and if it was not seen."""
        return self._first_content

    @property
    def usage(self) -> Usage | None:
        """The engine's counts so far."""
        return self._answer.usage

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
        self._pipeline.attempt("metrics", lambda: self._pipeline.finished(self._forward, self._answer))

    def _watch(self, action: Callable[[], None]) -> None:
        if self._broken:
            return
        self._broken = isinstance(self._pipeline.attempt("observe", action), Failed)
        if self._answer.started and not self._told:
            self._told = True
            self._first_content = monotonic()
            self._pipeline.attempt("learn", lambda: self._pipeline.started(self._forward, self._answer))


def _untouched(call: Call, options: Options, failed: Failed | None = None) -> Forward:
    outcome: Outcome = "passthrough" if failed is None else "fallback"
    return Forward(call.body, outcome, options.mode, options.request_id, call.received)
