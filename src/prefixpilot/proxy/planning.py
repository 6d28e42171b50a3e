"""Before the engine: what is known of a request's past, and what stands in front of its newest user message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from prefixpilot.conversation import NEW_CONVERSATION, ConversationRecord
from prefixpilot.core import Plan, Request
from prefixpilot.prompts.headings import counted_on, new_headings, own_headings, told_apart
from prefixpilot.prompts.request import BlocksRequest
from prefixpilot.proxy.call import Options
from prefixpilot.proxy.forward import Ticket
from prefixpilot.proxy.memory.history import History
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.window import fitted, laid_out
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.steps import Attempt, Failed, Planner
from prefixpilot.proxy.turns import (
    ALONE,
    Draft,
    Past,
    Planned,
    PromptSize,
    brought_by,
    request_of,
    same_again,
    turn_of,
)
from prefixpilot.proxy.windows import Windows


class Made(NamedTuple):
    """The plan that is sent, and the one that the index learns: the same, none (mode off), or what would have been sent
    (mode shadow)."""

    sent: Plan
    learnt: Plan | None


class TurnPlanner:
    """Restores and plans one turn. Reads the ledger and asks the pilot; changes neither."""

    def __init__(
        self,
        pilot: Planner,
        ledger: Ledger,
        metrics: Metrics,
        render: Callable[[Plan], str],
        attempt: Attempt,
        windows: Windows,
    ) -> None:
        self._pilot = pilot
        self._ledger = ledger
        self._metrics = metrics
        self._render = render
        self._attempt = attempt
        self._windows = windows

    def key(self, options: Options) -> LedgerKey | None:
        """Of the request's conversation; ``None`` if it names none."""
        if options.conversation is None:
            return None
        return LedgerKey(options.tenant, options.credential, options.conversation, options.mode)

    def knows(self, options: Options) -> bool:
        """Whether the request's conversation has recorded turns."""
        key = self.key(options)
        return key is not None and self._ledger.knows(key)

    def recall(self, asked: BlocksRequest, options: Options) -> Past | Failed:
        """What is known of the earlier turns."""
        key = self.key(options)
        if key is None or asked.newest_user < 0 or asked.prompt.api == "completions":
            return ALONE
        if asked.prompt.unseen:
            return Past(unseen=True)
        past = self._attempt("restore", lambda: self._restore(key, asked))
        if isinstance(past, Past) and past.restored.ambiguous:
            self._metrics.ambiguous.inc()
        elif isinstance(past, Past) and past.restored.unmatched:
            self._metrics.unmatched.inc()
        if isinstance(past, Past) and past.restored.gone:
            self._metrics.gone.inc()
        return past

    def _restore(self, key: LedgerKey, asked: BlocksRequest) -> Past:
        history = History.of(asked.prompt)
        restored = self._ledger.restore(key, history, with_newest=asked.in_tool_loop, brought=brought_by(asked))
        size = PromptSize.of(asked, self._windows)
        if size is None or size.window_bytes is None or not restored.turns:
            return Past(key, history, restored, size=size)
        cut = fitted(restored, size.own_bytes, size.window_bytes, asked.newest_user)
        if cut is not restored:
            self._metrics.overflows.inc()
        return Past(key, history, cut, size=size)

    def batchable(self, draft: Draft) -> Request | None:
        """The draft's request, if it is a first turn whose blocks may be ordered together with those of others."""
        asked, past = draft.asked, draft.past
        alone = isinstance(past, Failed) or past.restored.record.turns or not asked.blocks
        alone = alone or _counted_on(NEW_CONVERSATION, asked) is not NEW_CONVERSATION
        if draft.options.mode != "on" or draft.options.held_out or draft.options.explain or alone:
            return None
        request = self._attempt("plan", lambda: request_of(asked, draft.options))
        if isinstance(request, Failed) or (isinstance(past, Past) and asked.newest_user in past.restored.turns):
            return None
        return request

    def plan(self, asked: BlocksRequest, options: Options, past: Past, plan: Plan | None) -> Planned | Failed:
        """This turn's text; with the plan that was made for it together with others, if one was.

        Raises:
            InvalidRequestError: new blocks in a tool loop.
        """
        sent = past.restored.turns.get(asked.newest_user)
        if sent is not None and past.history is not None:
            said = past.history.reply_to(asked.newest_user)
            went_on = Ticket(None, past.key, sent, said, counted=past.counted(""))
            return Planned("", asked.labels_in(past.restored.labels), ticket=went_on)
        return self._attempt("plan", lambda: self._turn(asked, options, past, plan))

    def _turn(self, asked: BlocksRequest, options: Options, past: Past, plan: Plan | None) -> Planned:
        retried = self._retried(asked, past)
        if retried is not None:
            return same_again(retried, asked, options, past.key)
        if not asked.blocks:
            turn = turn_of(asked, past, "", (), past.restored.record)
            return Planned("", (), ticket=Ticket(key=past.key, turn=turn, heard=past.heard, counted=past.counted("")))
        record = _counted_on(past.restored.record, asked)
        headings = chain(past.restored.headings, new_headings(asked))
        known = told_apart(record, headings) if options.dedupe else replace(record, labels={})
        made = Made(plan, plan) if plan is not None else self._make(request_of(asked, options), record, known, options)
        text = self._render(made.sent)
        spans, parts = laid_out(made.sent, text)
        labels = made.sent.labels
        turn = turn_of(asked, past, text, labels, record.after(made.sent), made.sent, spans)
        ticket = Ticket(made.learnt, past.key, turn, heard=past.heard, counted=past.counted(text))
        return Planned(text, labels, made.learnt or made.sent, ticket, parts)

    def _make(self, request: Request, record: ConversationRecord, known: ConversationRecord, options: Options) -> Made:
        if options.mode == "shadow":
            return Made(self._pilot.as_given(request, record), self._pilot.propose(request, known))
        if options.mode == "off":
            return Made(self._pilot.as_given(request, record), None)
        plan = self._pilot.as_given(request, record) if options.held_out else self._pilot.propose(request, known)
        return Made(plan, plan)

    def _retried(self, asked: BlocksRequest, past: Past) -> Turn | None:
        if past.key is None or past.history is None:
            return None
        chain = past.history.chains[asked.newest_user]
        return self._ledger.find_retry(past.key, chain, past.restored.deepest, asked.given)

    def will_be_recorded(self, asked: BlocksRequest, past: Past, planned: Planned) -> bool | None:
        """Whether this turn will be sent again as it was; ``None`` if the request stands alone."""
        if past.key is None:
            return False if past.unseen else None
        turn = planned.ticket.turn
        return asked.newest_user in past.restored.turns if turn is None else self._ledger.has_room(past.key, turn)


def _counted_on(record: ConversationRecord, asked: BlocksRequest) -> ConversationRecord:
    return counted_on(record, len(asked.blocks), own_headings(asked))
