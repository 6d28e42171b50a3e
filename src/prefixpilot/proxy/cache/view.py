"""The picture of one engine's cache: pages as its events tell them, or our own model of them; and whose they are.

One lock. The source's thread applies events, the tracker's thread asks and settles, the event loop reads two attributes
(``state``, ``marks``) without it. What an event shortens is told to the index after the lock is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from prefixpilot.apis.base import Prompt
from prefixpilot.cache_events import CacheCleared, EventBatch, RequestsEvicted
from prefixpilot.core import RequestId
from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.cache.causes import evidence, evidence_of_another_prompt
from prefixpilot.proxy.cache.fronts import Parting
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.places import Place, places_of
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.rank import Chain, RankView
from prefixpilot.proxy.cache.routes import Verdict, verdict_of
from prefixpilot.proxy.cache.watch import Marks, Prediction, Rank, Watch
from prefixpilot.residency.attribution import Cause, Evidence, attribute
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.contexts import Shortened
from prefixpilot.residency.state import CacheState

DEFAULT_PAGE: Final = 16
"""Tokens in a page where nobody says; vLLM's default."""
MAX_PENDING: Final = 256
PATIENCE: Final = 4
"""How many later requests a context waits for the events of its own pages."""


class Index(Protocol):
    """What of a :class:`~prefixpilot.ContextPilot` the picture corrects. Safe to call from any thread."""

    def shorten(self, request_id: RequestId, blocks: int) -> object:
        """Of this request's context only so many leading blocks are still cached."""
        ...

    def evict(self, request_ids: Iterable[str]) -> object:
        """The prefixes of these requests are gone."""
        ...


class Finding(NamedTuple):
    """What came of one request.

    Attributes:
        state: how the cache is known.
        predicted, reported: cached tokens; ``None`` is unknown.
        basis: of the prediction.
        verdict: ``None`` where one of both is unknown.
        cause: why less was reused than could have been, or another number than was predicted.
        missed_tokens: how many fewer.
        mismatched: the engine counted another number of tokens than it told of this prompt.
        parting: where its front parts from those of the requests before; ``None``: nowhere, or it is not known.
    """

    state: str
    predicted: int | None
    reported: int | None
    basis: str | None
    verdict: Verdict | None
    cause: Cause | None
    missed_tokens: int
    mismatched: bool = False
    parting: Parting | None = None

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        parting = None if self.parting is None else self.parting.shown()
        return {**self._asdict(), "cause": None if self.cause is None else self.cause.value, "parting": parting}


class Sizes(NamedTuple):
    """How much is held.

    Attributes:
        page_size: tokens; ``None`` as long as no engine has told.
        pages: that the engine is known to hold.
        contexts: whose pages are known.
    """

    page_size: int | None
    pages: int
    contexts: int


class _Pending(NamedTuple):
    """Contexts that wait for the events of their own pages."""

    watch: Watch
    places: tuple[Place, ...]
    patience: int


class CacheView:
    """See the module.

    Args:
        index: is told what is no longer cached.
        model: our own model of the cache, for as long as there are no events; ``None`` where no tokens are known.
        knowledge: what may be believed.
        max_contexts: whose pages are known, for each rank.
    """

    def __init__(
        self, index: Index, model: OwnModel | None, knowledge: Knowledge, *, max_contexts: int = 20_000
    ) -> None:
        self._index = index
        self._model = model
        self._knowledge = knowledge
        self._max_contexts = max_contexts
        self._lock = Lock()
        self._ranks: dict[Rank, RankView] = {}
        self._pending: deque[_Pending] = deque()
        self.state: CacheState = knowledge.state
        self.marks: Marks = MappingProxyType({})

    # -- events

    def apply(self, batch: EventBatch) -> int:
        """Take a batch of events over; returns how many contexts it shortened. O(pages)."""
        rank = Rank(batch.source, batch.rank)
        with self._lock:
            view = self._ranks.get(rank)
            if view is None:
                view = self._ranks[rank] = RankView(self._max_contexts)
            shortened = [*view.apply(batch)]
            if any(isinstance(event, CacheCleared) for event in batch.events):
                shortened += self._attach_pending(last_time=True)
            self._knowledge.began(rank)
            self.state = self._knowledge.state
            self.marks = MappingProxyType({**self.marks, rank: batch.sequence})
        evicted = [i for event in batch.events if isinstance(event, RequestsEvicted) for i in event.request_ids]
        if evicted:
            self._index.evict(evicted)
            self.evict(evicted)
        return self._tell(shortened)

    def note(self, status: SourceStatus) -> None:
        """A source's continuity has changed."""
        with self._lock:
            self._knowledge.note(status)
            self.state = self._knowledge.state

    def _tell(self, shortened: Iterable[Shortened]) -> int:
        changes = list(shortened)
        for change in changes:
            self._index.shorten(change.request_id, change.blocks)
        return len(changes)

    # -- requests

    def read(self, watch: Watch, prompt: Prompt | None) -> None:
        """A request has gone out, and its tokens are there, or will not come."""
        if watch.prompt is not None:
            watch.prediction = self.predict(watch)

    def failed(self, watch: Watch) -> None:
        """There was no answer: nothing is known of what the engine holds of it."""

    def described(self) -> Mapping[str, Any]:
        """For ``/stats``: nothing but what :meth:`sizes` says."""
        return {}

    def predict(self, watch: Watch) -> Prediction | None:
        """Cached tokens of a prompt, as of when it went out, and of what the engine had published by then.

        ``None`` as long as nothing is known. O(tokens).
        """
        assert watch.prompt is not None
        with self._lock:
            by_events = self._predicted(watch, watch.prompt)
            if by_events is not None or self._model is None:
                return by_events
            return self._model.predict(watch.prompt, watch.facts)

    def _predicted(self, watch: Watch, prompt: EnginePrompt) -> Prediction | None:
        """By the rank that holds most: which of several will take a request is not known."""
        page_size = self._page_size()
        if page_size is None:
            return None
        held = 0
        known_by = self.marks if watch.known_by is None else watch.known_by
        for rank, view in self._ranks.items():
            since, until = watch.marks.get(rank, -1), known_by.get(rank, -1)
            held = max(held, view.held_before_own(prompt.token_ids, watch.facts, since, until))
        return Prediction(reported_tokens(held, prompt.tokens, page_size), "events", page_size)

    def settle(self, watch: Watch) -> Finding:
        """The engine has answered: compare, correct the model, and attach its contexts to their pages. O(tokens)."""
        of_another = evidence_of_another_prompt(watch)
        if of_another is not None:
            watch.prompt = watch.prediction = None
        places = places_of(watch.plans, watch.prompt, watch.prompt_tokens)
        with self._lock:
            finding = self._found(watch, places, of_another)
            self._learn(watch, finding)
            shortened = self._attach_pending()
            if places and self._ranks:
                shortened += self._attach(_Pending(watch, places, PATIENCE))
        self._tell(shortened)
        return finding

    def _found(self, watch: Watch, places: Sequence[Place], of_another: Evidence | None) -> Finding:
        prediction, reported = watch.prediction, watch.cached_tokens
        page_size = self._page_size() or DEFAULT_PAGE if prediction is None else prediction.page_size
        known = of_another or evidence(watch, places, self._ranks, page_size)
        return Finding(
            self.state.name,
            None if prediction is None else prediction.tokens,
            reported,
            None if prediction is None else prediction.basis,
            None
            if prediction is None or reported is None
            else verdict_of(prediction.tokens, reported, prediction.page_size),
            None if known is None else attribute(known),
            0 if known is None else max(known.predicted - known.reported, 0),
            of_another is not None,
        )

    def _learn(self, watch: Watch, finding: Finding) -> None:
        """Correct the model; and what the report says of the table, where only one rank can have been meant."""
        if watch.prompt is not None and self._model is not None:
            predicted = finding.predicted if finding.basis == "model" else None
            self._model.observe(watch.prompt, watch.facts, watch.cached_tokens, predicted)
        if finding.basis != "events" or finding.verdict is None or watch.prompt is None or len(self._ranks) != 1:
            return
        ((rank, view),) = self._ranks.items()
        view.confirm(watch.prompt.token_ids, watch.facts, watch.cached_tokens or 0)
        self._knowledge.reported(rank, view.table, as_predicted=finding.verdict == "exact")
        self.state = self._knowledge.state

    def _attach_pending(self, *, last_time: bool = False) -> list[Shortened]:
        waiting, shortened = list(self._pending), list[Shortened]()
        self._pending.clear()
        for pending in waiting:
            shortened += self._attach(pending._replace(patience=0 if last_time else pending.patience - 1))
        return shortened

    def _attach(self, pending: _Pending) -> list[Shortened]:
        """Attach contexts to the pages of their prompt; later, if its events have not all come yet."""
        chain = self._chain(pending.watch)
        if chain is None or (not chain.whole and pending.patience):
            if pending.patience and len(self._pending) < MAX_PENDING:
                self._pending.append(pending)
            return []
        contexts, shortened = chain.rank.contexts, []
        for place in pending.places if contexts is not None else ():
            assert contexts is not None
            usable = contexts.attach(place.request_id, chain.pages, place.counts_at)
            if usable < len(place.counts_at):
                shortened.append(Shortened(place.request_id, usable))
        return shortened

    def _chain(self, watch: Watch) -> Chain | None:
        """The pages of a request's prompt, in the rank that holds most of them."""
        chains = (view.chain(watch, watch.marks.get(rank, -1)) for rank, view in self._ranks.items())
        return max((chain for chain in chains if chain is not None), key=lambda chain: len(chain.pages), default=None)

    # -- what is gone for other reasons

    def evict(self, request_ids: Iterable[str]) -> None:
        """The prefixes of these requests are gone, by whoever says so."""
        with self._lock:
            for view in self._ranks.values():
                view.detach(request_ids)

    def forget_contexts(self) -> None:
        """The index is empty."""
        with self._lock:
            self._pending.clear()
            for view in self._ranks.values():
                view.forget_contexts()

    def sizes(self) -> Sizes:
        """How much is held now."""
        with self._lock:
            views = list(self._ranks.values())
            contexts = sum(len(view.contexts) for view in views if view.contexts is not None)
            return Sizes(self._page_size(), sum(len(view.table) for view in views), contexts)

    def _page_size(self) -> int | None:
        """As events tell; ranks of one engine have one size."""
        sizes = (view.table.page_size for view in self._ranks.values())
        return next((size for size in sizes if size is not None), None)
