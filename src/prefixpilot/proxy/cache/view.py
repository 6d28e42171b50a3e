"""The picture of one engine's cache: pages as its events tell them, or our own model of them; and whose they are.

One lock. The source's thread applies events, the tracker's thread asks and settles, the event loop reads two attributes
(``state``, ``marks``) without it. What an event shortens is told to the index after the lock is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Protocol

from prefixpilot.apis.base import Prompt
from prefixpilot.cache_events import CacheCleared, EventBatch, PagesStored, RequestsEvicted
from prefixpilot.core import RequestId
from prefixpilot.engines.base import SourceStatus
from prefixpilot.proxy.cache.attaching import Attaching
from prefixpilot.proxy.cache.causes import evidence, evidence_of_another_prompt
from prefixpilot.proxy.cache.finding import Finding, Sizes
from prefixpilot.proxy.cache.knowledge import Knowledge
from prefixpilot.proxy.cache.looks import Looks
from prefixpilot.proxy.cache.model import OwnModel
from prefixpilot.proxy.cache.places import Place, places_of
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.rank import RankView
from prefixpilot.proxy.cache.routes import verdict_of
from prefixpilot.proxy.cache.silence import Silence
from prefixpilot.proxy.cache.watch import Marks, PageTokens, Prediction, Rank, Watch
from prefixpilot.residency.attribution import Evidence, attribute, of_prediction
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.contexts import Shortened
from prefixpilot.residency.state import CacheState

DEFAULT_PAGE: Final = 16
"""Tokens in a page where nobody says; vLLM's default."""


class Index(Protocol):
    """What of a :class:`~prefixpilot.ContextPilot` the picture corrects. Safe to call from any thread."""

    def shorten(self, request_id: RequestId, blocks: int) -> object:
        """Of this request's context only so many leading blocks are still cached."""
        ...

    def evict(self, request_ids: Iterable[str]) -> object:
        """The prefixes of these requests are gone."""
        ...

    def evict_all(self) -> object:
        """Nothing is cached."""
        ...

    def resize(self, cache_tokens: int | None) -> object:
        """No more than so many tokens are cached; ``None``: it is told what is gone."""
        ...


class CacheView:
    """See the module.

    Args:
        index: is told what is no longer cached.
        model: our own model of the cache, for as long as there are no events; ``None`` where there is none (yet).
        models: whether there may be one, once the engine has told its size; tokens of prompts must be known.
        knowledge: what may be believed.
        max_contexts: whose pages are known, for each rank.
    """

    def __init__(
        self,
        index: Index,
        model: OwnModel | None,
        knowledge: Knowledge,
        *,
        models: bool = False,
        max_contexts: int = 20_000,
    ) -> None:
        self._index = index
        self._model = model
        self._knowledge = knowledge
        self._models = models
        self._said_size: int | None = None
        self._bound: int | None = None
        self._bounded: int | None = None
        self._max_contexts = max_contexts
        self._lock = Lock()
        self._ranks: dict[Rank, RankView] = {}
        self._attaching = Attaching(self._ranks)
        self.state: CacheState = knowledge.state
        self.marks: Marks = MappingProxyType({})
        self._anew: Marks | None = None
        self._looks = Looks()
        self._silence = Silence()
        self._awaited: Counter[PageTokens] = Counter()
        self._came: set[PageTokens] = set()

    # -- events

    def apply(self, batch: EventBatch) -> int:
        """Take a batch of events over; returns how many contexts it shortened. O(pages)."""
        rank = Rank(batch.source, batch.rank)
        with self._lock:
            view = self._ranks.get(rank)
            if view is None:
                view = self._ranks[rank] = RankView(self._max_contexts)
            shortened = [*view.apply(batch)]
            self._note_awaited(batch)
            emptied = any(isinstance(event, CacheCleared) for event in batch.events)
            if emptied:
                shortened += self._attaching.again(last_time=True)
                self._knowledge.emptied(rank)
            self._knowledge.began(rank)
            only = len(self._ranks) == 1
            self.state = self._knowledge.state
            self.marks = MappingProxyType({**self.marks, rank: view.table.sequence})
            self._silence.heard()
            if batch.sequence < 0:
                self._anew = self.marks
        evicted = [i for event in batch.events if isinstance(event, RequestsEvicted) for i in event.request_ids]
        if evicted:
            self._index.evict(evicted)
            self.evict(evicted)
        changed = self._tell(shortened)
        if batch.sequence < 0 and only:  # begun anew: what was attached to no page is gone too
            self._index.evict_all()
        return changed

    def _note_awaited(self, batch: EventBatch) -> None:
        """Which awaited tokens a batch told of."""
        for event in batch.events if self._awaited else ():
            if isinstance(event, PagesStored):
                tokens = tuple(event.token_ids[-event.page_size :])
                if tokens in self._awaited:
                    self._came.add(tokens)

    def note(self, status: SourceStatus) -> None:
        """A source's continuity has changed."""
        with self._lock:
            self._knowledge.note(status)
            self.state = self._knowledge.state
        self._tell(())

    def unfollow(self) -> None:
        """The sources are followed no more, and the engine that they told of has gone: nothing is known to be held."""
        with self._lock:
            self._ranks.clear()
            self._attaching.forget()
            self._looks = Looks()
            self._silence.heard()
            self._knowledge.forget()
            self.state, self.marks = self._knowledge.state, MappingProxyType({})
        self._index.evict_all()
        self._tell(())

    @property
    def silence(self) -> int:
        """See :class:`~prefixpilot.proxy.cache.picture.Picture`."""
        return self._silence.waits

    def unheard(self, watch: Watch, now: float) -> None:
        """The events of an answered request were waited for in vain. O(tokens).

        Not counted: one behind which anything was told; and one that need not have been told of, since what the engine
        computed of it fills no page, or only pages that it had told before (some engines keep one copy).
        """
        with self._lock:
            if watch.marks is self.marks and self._lacks_pages(watch):
                self._silence.waited(watch.sent_at, now)

    def _lacks_pages(self, watch: Watch) -> bool:
        prompt, reported = watch.prompt, watch.cached_tokens
        if prompt is None or reported is None:
            return False
        size = self._page_size() or self._said_size or DEFAULT_PAGE
        full = prompt.tokens // size * size
        held = (view.match(prompt.token_ids, watch.facts).tokens for view in self._ranks.values())
        return reported < _usable(prompt.tokens, size) and all(tokens < full for tokens in held)

    def sized(self, page_size: int, capacity_tokens: int | None, *, bound: int | None, anew: bool) -> None:
        """The engine has told how large its cache is.

        Args:
            bound: of the index, as long as what is gone is not told for sure.
            anew: it has started anew, and holds nothing.
        """
        with self._lock:
            self._bound, self._said_size = bound, page_size
            empty = anew and not self._ranks
            if self._models and (anew or self._model is None or self._model.dimensions != (page_size, capacity_tokens)):
                self._model = OwnModel(page_size, capacity_tokens)
        if empty:  # where there are events, they tell of it
            self._index.evict_all()
        self._tell(())

    def _tell(self, shortened: Iterable[Shortened]) -> int:
        """Tell the index. Without the lock."""
        bound = None if self.state is CacheState.EXACT else self._bound
        if bound != self._bounded:
            self._bounded = bound
            self._index.resize(bound)
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
        """Cached tokens of a prompt, by what was known when it went out; ``None`` if that was nothing. O(tokens)."""
        assert watch.prompt is not None
        with self._lock:
            by_events = self._predicted(watch, watch.prompt)
            if by_events is not None or self._model is None:
                return by_events
            return self._model.predict(watch.prompt, watch.facts)

    def _predicted(self, watch: Watch, prompt: EnginePrompt) -> Prediction | None:
        """By the rank that holds most: which of several will take a request is not known."""
        page_size = self._page_size()
        if page_size is None:  # nothing is held; whether nothing has been told says whether that is known
            empty = self.state is CacheState.EXACT
            size = self._said_size or DEFAULT_PAGE
            return Prediction(0, "events", size, usable=_usable(prompt.tokens, size)) if empty else None
        views = self._ranks.items()
        held = max(view.match(prompt.token_ids, watch.facts, watch.marks.get(rank, -1)).tokens for rank, view in views)
        tokens, usable = reported_tokens(held, prompt.tokens, page_size), _usable(prompt.tokens, page_size)
        return Prediction(tokens, "events", page_size, usable=usable)

    def awaits(self, watch: Watch) -> PageTokens | None:
        """See :class:`~prefixpilot.proxy.cache.holding.Looking`. Until it is settled, :meth:`came` tells of them."""
        prompt, prediction = watch.prompt, watch.prediction
        if prompt is None or watch.cached_tokens is None or watch.prompt_tokens not in (None, prompt.tokens):
            return None
        if prediction is None or prediction.basis != "events":
            return None
        with self._lock:
            size = self._page_size() or self._said_size or prediction.page_size
            end = prompt.tokens // size * size
            tokens = tuple(prompt.token_ids[max(end - size, 0) : end])
            if not tokens and not self._ranks:
                return None
            self._awaited[tokens] += 1
        watch.awaited = tokens
        return tokens

    def came(self) -> frozenset[PageTokens]:
        """Awaited tokens that have been told since this was last asked. From any thread."""
        with self._lock:
            came, self._came = frozenset(self._came), set()
            return came

    def look(self, watch: Watch, *, last_time: bool = False) -> bool:
        """Find what the engine held of an answered request's prompt; whether it can be settled. O(tokens).

        Args:
            last_time: it is not waited for any longer.
        """
        with self._lock:
            watch.look = self._looks.find(watch, self._ranks, last_time=last_time)
        return watch.look is not None

    def settle(self, watch: Watch) -> Finding:
        """The engine has answered: compare, correct the model, and attach its contexts to their pages. O(tokens)."""
        of_another = evidence_of_another_prompt(watch)
        if of_another is not None:
            watch.prompt = watch.prediction = None
        places = places_of(watch.plans, watch.prompt, watch.prompt_tokens)
        with self._lock:
            self._await_no_more(watch)
            finding = self._found(watch, places, of_another)
            self._learn(watch, finding)
            shortened = self._attaching.again()
            if places:  # also where nothing was told yet: what is told first may be this prompt
                shortened += self._attaching.add(watch, places)
        self._tell(shortened)
        return finding

    def _await_no_more(self, watch: Watch) -> None:
        if watch.awaited is not None:
            self._awaited[watch.awaited] -= 1
            if not self._awaited[watch.awaited]:
                del self._awaited[watch.awaited]
            watch.awaited = None

    def _found(self, watch: Watch, places: Sequence[Place], of_another: Evidence | None) -> Finding:
        prediction, reported = watch.prediction, watch.cached_tokens
        page_size = self._page_size() or DEFAULT_PAGE if prediction is None else prediction.page_size
        known = of_another or evidence(watch, places, self._ranks, page_size)
        predicted = None if prediction is None else prediction.tokens if watch.look is None else watch.look.tokens
        return Finding(
            self.state.name,
            predicted,
            reported,
            None if prediction is None else prediction.basis,
            None if predicted is None or reported is None else verdict_of(predicted, reported, page_size),
            None if known is None else attribute(known) if predicted is None else of_prediction(known, predicted),
            0 if known is None else max(known.predicted - known.reported, 0),
            of_another is not None,
            prediction is not None and predicted != prediction.tokens,
            usable=None if watch.prompt_tokens is None else _usable(watch.prompt_tokens, page_size),
        )

    def _learn(self, watch: Watch, finding: Finding) -> None:
        """Correct the model; and what the report says of the table, where only one rank can have been meant."""
        if watch.prompt is not None and self._model is not None:
            predicted = finding.predicted if finding.basis == "model" else None
            self._model.observe(watch.prompt, watch.facts, watch.cached_tokens, predicted, watch.completion_tokens)
        if finding.basis != "events" or finding.verdict is None or watch.prompt is None or len(self._ranks) != 1:
            return
        ((rank, view),) = self._ranks.items()
        proved = view.confirm(watch.prompt.token_ids, watch.facts, watch.cached_tokens or 0)
        exact = finding.verdict == "exact"
        self._knowledge.reported(rank, view.table, as_predicted=exact, proved=proved and exact)
        if not watch.cached_tokens and finding.predicted and not self._knowledge.contradicted:
            view.doubt_all_but(watch.prompt.token_ids, watch.facts)
            self._knowledge.contradict(rank)
        if self._reused_pages_of_before(watch, watch.prompt, rank):
            self._knowledge.kept(rank)
        self.state = self._knowledge.state

    def _reused_pages_of_before(self, watch: Watch, prompt: EnginePrompt, rank: Rank) -> bool:
        """Whether the engine reused what it has not told of, in any tier, since its numbers began anew.

        Not taken for it: what another request under way may have stored, or was stored and not told yet; unless pages
        have come that follow others of which nothing was told.
        """
        view, look, reported, mark = self._ranks[rank], watch.look, watch.cached_tokens, watch.marks.get(rank, -1)
        anew = watch.marks is self._anew or mark > view.restarted_at >= 0
        if not anew or look is None or reported is None:
            return False
        if not view.table.orphans and (look.missing or not watch.alone):
            return False
        return reported > max(look.tokens, view.match(prompt.token_ids, watch.facts, mark).lower_tokens)

    # -- what is gone for other reasons

    def evict(self, request_ids: Iterable[str]) -> None:
        """The prefixes of these requests are gone, by whoever says so."""
        with self._lock:
            for view in self._ranks.values():
                view.detach(request_ids)

    def forget_contexts(self) -> None:
        """The index is empty."""
        with self._lock:
            self._attaching.forget()
            for view in self._ranks.values():
                view.forget_contexts()

    def why(self) -> str:
        """See :class:`~prefixpilot.proxy.cache.picture.Picture`."""
        with self._lock:
            return self._knowledge.why()

    def sizes(self) -> Sizes:
        """How much is held now."""
        with self._lock:
            views = list(self._ranks.values())
            contexts = sum(len(view.contexts) for view in views if view.contexts is not None)
            size, model = self._page_size(), self._model
            capacity = None if model is None else model.capacity_tokens
            size = model.dimensions[0] if size is None and model is not None else size
            return Sizes(size, capacity, sum(len(view.table) for view in views), contexts)

    def _page_size(self) -> int | None:
        """As events tell; ranks of one engine have one size."""
        sizes = (view.table.page_size for view in self._ranks.values())
        return next((size for size in sizes if size is not None), None)


def _usable(prompt_tokens: int, page_size: int) -> int:
    """Of a prompt, what an engine can have cached at most."""
    return reported_tokens(prompt_tokens, prompt_tokens, page_size)
