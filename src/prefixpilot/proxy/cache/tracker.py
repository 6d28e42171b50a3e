"""Follows every request to a model: when it went out, in which tokens, and what the engine said of its cache.

Three threads, one rule. The event loop only notes and hands on; what takes time happens on a thread of its own, in the
order in which it was handed on; the subscriber's thread applies events. What they share is the view, behind its lock.
Nothing here delays a request, and no error of ours reaches one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import Any, Final, Protocol

from prefixpilot.apis import API_OF_NAME
from prefixpilot.apis.base import Prompt
from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.account import Account
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.cache.finding import Finding
from prefixpilot.proxy.cache.fronts import Fronts, front_of
from prefixpilot.proxy.cache.holding import HOLD_S, Held
from prefixpilot.proxy.cache.listening import Listening
from prefixpilot.proxy.cache.picture import Picture
from prefixpilot.proxy.cache.prompts import read_tokenized
from prefixpilot.proxy.cache.routes import RouteFigures, Routes
from prefixpilot.proxy.cache.sizes import CacheSize
from prefixpilot.proxy.cache.standing import THE_ENGINES, SourceMaker, Standing
from prefixpilot.proxy.cache.sums import CacheSums
from prefixpilot.proxy.cache.tokens import Asked, Tokenized, TokenQueue
from prefixpilot.proxy.cache.watch import Watch, facts_of, read_body
from prefixpilot.proxy.call import Call, credential_of, is_encoded
from prefixpilot.proxy.control.controller import Route
from prefixpilot.proxy.forward import Forward
from prefixpilot.proxy.steps import Attempt
from prefixpilot.residency.attribution import Cause
from prefixpilot.residency.state import CacheState

MAX_FINDINGS: Final = 1000


class Sizes(Protocol):
    """Asks for the size of the cache: :class:`~prefixpilot.proxy.cache.sizes.SizeAsker`. For one event loop."""

    def start(self, tell: Callable[[CacheSize, bool], None]) -> None: ...
    def ask_now(self) -> None: ...
    def close(self) -> None: ...


class CacheTracker:
    """Owns the threads; one event loop calls it, and the source of events. See the module.

    Args:
        view: the picture of the engine's cache.
        tokens: asks for token ids; ``None`` where nobody can be asked.
        publishers: where events come from; ``None`` for none.
        max_requests: followed at once.
        attempt: our errors end here.
        sizes: asks the engine how large its cache is; ``None`` where it is not asked.
        sized: takes the answers, and whether the engine has started anew since the one before; on the thread.
        clock: monotonic seconds.
        names_requests: whether each request needs an id of its own at the engine, by which it may be evicted.
        whose: cache it is, in the log.
    """

    def __init__(
        self,
        view: Picture,
        figures: CacheFigures,
        tokens: TokenQueue | None,
        publishers: SourceMaker | None,
        max_requests: int,
        attempt: Attempt,
        sizes: Sizes | None = None,
        sized: Callable[[CacheSize, bool], None] = lambda size, anew: None,
        *,
        clock: Callable[[], float] = monotonic,
        names_requests: bool = True,
        whose: str = THE_ENGINES,
    ) -> None:
        self.names_requests = names_requests
        self._clock = clock
        self._fronts = Fronts()
        self._view = view
        self._sizes = sizes
        self._sized = sized
        self._figures = figures
        self._tokens = tokens
        self._publishers = publishers
        self._whose = whose
        self._standing = Standing(view, publishers, whose)
        self._max = max_requests
        self._attempt = attempt
        self._open = 0
        self._numbers = itertools.count()
        self._held = Held(view, self._compare)
        self._lock = Lock()
        self._findings: OrderedDict[str, Finding] = OrderedDict()
        self._routes = Routes()
        self._by_basis: dict[str, RouteFigures] = {}
        self._causes: Counter[str] = Counter()
        self._shortened = 0
        self._thread: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Listening | None = None

    @property
    def state(self) -> str:
        """``EXACT``, ``DEGRADED`` or ``UNKNOWN``."""
        return self._view.state.name

    # -- life

    def start(self) -> None:
        """Open the thread, and listen as soon as it is known where. On the loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "prefixpilot-cache")
        if self._sizes is not None:
            self._sizes.start(lambda size, anew: self._later(lambda: self._sized(size, anew)))
        if self._publishers is not None:
            left, attempt = self._left, self._attempt
            self._listening = Listening(self._publishers, self, self._standing, left, attempt, self._whose)

    async def close(self) -> None:
        """Follow nothing any more. Waits for the source of events, within its own bound."""
        if self._sizes is not None:
            self._sizes.close()
        if self._tokens is not None:
            self._tokens.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)
        if self._listening is not None:
            await self._listening.close()

    # -- on the source's thread

    def on_batch(self, batch: EventBatch) -> None:
        """See :class:`~prefixpilot.engines.base.EventListener`."""
        self._figures.events.inc(len(batch.events))
        changed = self._attempt("cache_events", lambda: self._view.apply(batch))
        if isinstance(changed, int):
            self._figures.shortened.inc(changed)
            self._shortened += changed
        self._standing.changed()
        came = self._view.came()
        if came:
            self._later(lambda: self._held.resume(came))

    def on_status(self, status: SourceStatus) -> None:
        """See there."""
        self._attempt("cache_events", lambda: self._view.note(status))
        self._standing.note(status)
        if self._sizes is not None:
            self._on_loop(self._sizes.ask_now)

    def unheard(self) -> int:
        """See there."""
        return self._view.silence

    def _left(self) -> None:
        """The engine publishes elsewhere: another life of it, in another place."""
        self._view.unfollow()
        self._standing.forget()

    # -- on the event loop

    @contextmanager
    def following(self, call: Call, forward: Forward, account: Account) -> Iterator[Watch | None]:
        """Within the block the request is sent and its answer passed on; ``account`` then says what it reported."""
        watch = self.sent(call, forward)
        try:
            yield watch
        finally:
            if watch is not None:
                self.answered(watch, account)

    def sent(self, call: Call, forward: Forward) -> Watch | None:
        """A request goes out now; ``None``: it is not followed. O(1)."""
        if self._open >= self._max or self._thread is None:
            self._figures.unfollowed.inc()
            return None
        self._open += 1
        body = None if not forward.touched and is_encoded(call) else forward.body
        route = Route(call.tenant, call.api.name, "")
        watch = Watch(forward.request_id, route, body, forward.ticket.plans, forward.touched, self._view.marks)
        watch.sent_at, watch.account = self._clock(), credential_of(call.headers).encode()
        watch.sent, watch.alone = next(self._numbers), self._open == 1
        if self._tokens is None or body is None:
            self._later(lambda: self._read(watch, Tokenized("refused")))
        else:
            self._tokens.ask(Asked(call.api.name, body, call.headers), lambda got: self._told(watch, got))
        return watch

    def _told(self, watch: Watch, tokenized: Tokenized) -> None:
        self._figures.token_ids.labels(tokenized.got).inc()
        self._later(lambda: self._read(watch, tokenized))

    def answered(self, watch: Watch, account: Account) -> None:
        """Its answer has ended, or there was none. O(1)."""
        self._open -= 1
        watch.ended, watch.marks_then = next(self._numbers), self._view.marks
        watch.alone = watch.alone and watch.ended == watch.sent + 1
        if account.usage is not None:
            usage = account.usage
            watch.prompt_tokens, watch.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            watch.completion_tokens, watch.written_tokens = usage.completion_tokens, usage.written_tokens
        began = account.first_content is not None
        self._later(lambda: self._end(watch, began=began))

    def _later(self, action: Callable[[], None]) -> None:
        """Do it on the thread, if there still is one. From any thread."""
        thread = self._thread
        if thread is not None:
            with suppress(RuntimeError):  # it was shut down in this moment
                thread.submit(self._attempt, "cache", action)

    def evicted(self, request_ids: Iterable[str]) -> None:
        """The engine, or a client, says that the prefixes of these are gone."""
        ids = list(request_ids)
        self._later(lambda: self._view.evict(ids))

    def forget(self) -> None:
        """The index was emptied: nothing of it is to be shortened any more. What the engine holds stays known."""
        self._later(self._view.forget_contexts)

    # -- on the thread

    def _read(self, watch: Watch, tokenized: Tokenized) -> None:
        """The body's facts, the tokens if they are there, and the prediction if there can be one."""
        known = tokenized.got == "known"
        watch.prompt = tokenized.prompt or (read_tokenized(tokenized.data) if known else None)
        prompt = self._read_body(watch)
        watch.read = True
        self._view.read(watch, prompt)
        if watch.began is not None:
            self._settle(watch)

    def _read_body(self, watch: Watch) -> Prompt | None:
        """The body's facts, its front, and its prompt; ``None`` if it cannot be read."""
        if watch.body is None:
            return None
        document, watch.body = read_body(watch.body), None
        watch.facts = facts_of(document)
        watch.route = watch.route._replace(model=watch.facts.model)
        prompt = API_OF_NAME[watch.route.api].read(document)
        if prompt is not None:
            watch.front = front_of(prompt, watch.plans, watch.prompt)
            watch.parting = self._fronts.parting(watch.route, watch.front)
        return prompt

    def _end(self, watch: Watch, *, began: bool) -> None:
        watch.began = began
        if watch.read:
            self._settle(watch)
        elif began:
            self._held.answered(watch)
            self._give_up_later(watch)

    def _settle(self, watch: Watch) -> None:
        """Its tokens and its answer are there, or will not come. Its own events may come later still."""
        if not watch.began:
            self._view.failed(watch)
            return
        if self._held.add(watch):
            self._give_up_later(watch)

    def _give_up_later(self, watch: Watch) -> None:
        loop = self._loop
        if loop is not None:
            self._on_loop(lambda: loop.call_later(HOLD_S, self._give_up, watch))

    def _on_loop(self, action: Callable[[], object]) -> None:
        """Do it on the loop, if that still runs. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action)

    def _give_up(self, watch: Watch) -> None:
        self._later(lambda: self._waited(watch))

    def _waited(self, watch: Watch) -> None:
        if self._held.give_up(watch):
            self._view.unheard(watch, self._clock())

    def _compare(self, watch: Watch) -> None:
        finding = self._view.settle(watch)._replace(parting=watch.parting)
        self._standing.changed()
        if watch.front is not None:
            self._fronts.add(watch.route, watch.front)
        with self._lock:
            self._count(watch, finding)

    def _count(self, watch: Watch, finding: Finding) -> None:
        if finding.mismatched:
            self._figures.token_ids.labels("mismatched").inc()
        route = self._routes.of(watch.route)
        route.add_usage(watch.prompt_tokens, watch.cached_tokens)
        prediction, reported = watch.prediction, watch.cached_tokens
        if finding.verdict is not None and prediction is not None and reported is not None:
            basis = prediction.basis
            predicted = finding.predicted or 0
            self._figures.compared.labels(basis, finding.verdict).inc()
            self._figures.predicted.labels(basis).inc(predicted)
            self._figures.reported.labels(basis).inc(reported)
            self._figures.behind.inc(finding.behind)
            for figures in (route, self._by_basis.setdefault(basis, RouteFigures())):
                figures.add_comparison(predicted, reported, finding.verdict, behind=finding.behind)
        if finding.cause is not None and (watch.treated or finding.verdict is not None):
            cause = finding.cause.value
            self._figures.causes.labels(cause).inc()
            self._figures.missed.labels(cause).inc(finding.missed_tokens)
            if finding.cause is not Cause.NONE:
                self._causes[cause] += 1
                route.causes[cause] += 1
        self._findings[watch.request_id] = finding
        if len(self._findings) > MAX_FINDINGS:
            self._findings.popitem(last=False)

    # -- what is shown

    def finding(self, request_id: str) -> Mapping[str, Any] | None:
        """What came of a request, as JSON; ``None`` if it is not known (any more)."""
        with self._lock:
            finding = self._findings.get(request_id)
        return None if finding is None else finding.shown()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How the sources of events stand."""
        return () if self._listening is None else self._listening.statuses()

    @property
    def known(self) -> CacheState:
        """How well the cache is known."""
        return self._view.state

    def sums(self) -> CacheSums:
        """What is known of it in numbers, as of now."""
        sizes, statuses = self._view.sizes(), self.statuses()
        with self._lock:
            return CacheSums(
                len(self._held),
                sizes.pages,
                sizes.contexts,
                self._shortened,
                {basis: RouteFigures() + figures for basis, figures in self._by_basis.items()},
                Counter(self._causes),
                statuses,
                self._routes.copied(),
            )

    def stats(self) -> dict[str, Any]:
        """For ``/stats``."""
        failed = "" if self._listening is None else self._listening.failed
        reason = failed or self._standing.reason(self.statuses())
        sizes = self._view.sizes()._asdict()
        shown = {**self._view.described(), **sizes, **self.sums().shown()}
        return {"state": self.state, "reason": reason, "followed": True, **shown}
