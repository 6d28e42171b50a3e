"""The cache of one rank: its pages, and the contexts whose prompts took them. One owner; not thread-safe."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from prefixpilot.cache_events import GPU, CacheCleared, EventBatch, PageHash, PagesStored
from prefixpilot.core import RequestId
from prefixpilot.proxy.cache.watch import Facts, Watch
from prefixpilot.request_ids import spellings
from prefixpilot.residency.contexts import ResidentContexts, Shortened
from prefixpilot.residency.page_records import PrefixMatch
from prefixpilot.residency.pages import PageTable

MAX_ADAPTERS: Final = 1000
MAX_SALTS: Final = 16
"""Salts that are tried, where a prompt was not found under its own."""
LOOKS: Final = 6
"""At moments other than that of a request."""
RECENT: Final = 1024
"""Stored chains that are remembered, to find the pages of a request whose tokens nobody tells."""


class Stored(NamedTuple):
    """Pages that one batch told of, one behind the other.

    Attributes:
        sequence: of the batch.
        first, last: of them.
        pages: how many.
    """

    sequence: int
    first: PageHash
    last: PageHash
    pages: int


class Run(NamedTuple):
    """Pages of a prompt that one batch told of.

    Attributes:
        sequence: of the batch.
        start, end: number of pages of the prompt in front of them, and up to the last of them.
    """

    sequence: int
    start: int
    end: int


class Chain(NamedTuple):
    """Pages of one prompt, from its start.

    Attributes:
        whole: all its full pages are among them.
    """

    rank: RankView
    pages: tuple[PageHash, ...]
    whole: bool


class RankView:
    """Pages and contexts of one rank.

    Attributes:
        restarted_at: number of the last batch of the engine's life before; -1: it has had one life.
        cleared_at: number of the last batch that emptied the cache; -1: there was none.

    Args:
        max_contexts: whose pages are known.
    """

    def __init__(self, max_contexts: int) -> None:
        self._max_contexts = max_contexts
        self.table = PageTable()
        self.contexts: ResidentContexts | None = None
        self._adapters: OrderedDict[str, None] = OrderedDict()
        self._salts: OrderedDict[str, None] = OrderedDict()
        self._recent: deque[Stored] = deque(maxlen=RECENT)
        self._lives_before = 0
        self.restarted_at = self.cleared_at = -1

    def apply(self, batch: EventBatch) -> tuple[Shortened, ...]:
        """Take a batch over; what it shortened. O(pages).

        Batches of an engine that began anew are numbered on from those of its life before, so that numbers only rise.
        """
        if batch.sequence < 0:
            self._begin_anew()
            return () if self.contexts is None else tuple(self.contexts.clear())
        if self._number(batch) <= self.table.sequence and batch.events and isinstance(batch.events[0], CacheCleared):
            self._begin_anew()
        batch = batch._replace(sequence=self._number(batch))
        applied = self.table.apply(batch)
        for event in batch.events:
            if isinstance(event, PagesStored):
                self._note(batch.sequence, event)
        if applied.cleared:
            self.cleared_at = batch.sequence
        gone = self.contexts.clear() if self.contexts is not None and applied.cleared else ()
        size = self.table.page_size
        if size is not None and (self.contexts is None or self.contexts.page_size != size):
            self.contexts = ResidentContexts(size, self._max_contexts)
        return gone if self.contexts is None else (*gone, *self.contexts.remove(applied.removed))

    def _number(self, batch: EventBatch) -> int:
        return batch.sequence + self._lives_before

    def _begin_anew(self) -> None:
        """Nothing is held. What comes next has a higher number than all before."""
        latest = self.table.sequence
        self._lives_before, self.restarted_at = latest + 1, latest
        self.table.restart(latest)
        self._recent.clear()

    def _note(self, sequence: int, event: PagesStored) -> None:
        if event.medium == GPU and event.group == 0:
            self._note_run(sequence, event)
        if event.adapter is not None:
            _remember(self._adapters, event.adapter, MAX_ADAPTERS)
        if event.parent is None and event.extra_keys and isinstance(event.extra_keys[0], tuple):
            for key in event.extra_keys[0]:
                if isinstance(key, str):
                    _remember(self._salts, key, MAX_SALTS)

    def _note_run(self, sequence: int, event: PagesStored) -> None:
        """Engines with small pages tell them one by one: they are put together."""
        first, last, latest = event.pages[0], event.pages[-1], self._recent[-1] if self._recent else None
        if latest is not None and (latest.sequence, latest.last) == (sequence, event.parent) and first == last:
            self._recent[-1] = latest._replace(last=last, pages=latest.pages + 1)
        else:
            self._recent.append(Stored(sequence, first, last, len(event.pages)))

    def detach(self, request_ids: Iterable[str]) -> None:
        """Let requests go, by their ids as the engine writes them. Of those that one may mean it is the first that is
        attached, or was lately: ``job_1``, gone already, is not taken for ``job``."""
        contexts = self.contexts
        if contexts is not None:
            for request_id in request_ids:
                ours = (RequestId(spelling) for spelling in spellings(request_id))
                contexts.detach(next(filter(contexts.knows, ours), RequestId(request_id)))

    def forget_contexts(self) -> None:
        """Nothing is attached any more; what the engine holds stays known."""
        if self.contexts is not None:
            self.contexts.clear()

    def match(self, token_ids: Sequence[int], facts: Facts, as_of: int | None = None) -> PrefixMatch:
        """What is held of a prompt, now or after the batch ``as_of``. O(tokens)."""
        extra, adapter = self._selected_by(facts)
        return self.table.match(token_ids, extra_keys=extra, adapter=adapter, as_of=as_of)

    def _selected_by(self, facts: Facts) -> tuple[tuple[Hashable, ...], str | None]:
        """Extra keys and adapter of a prompt. A model's name is an adapter's if the engine has told of that."""
        extra: tuple[Hashable, ...] = () if facts.salt is None else ((facts.salt,),)
        return extra, facts.model if facts.model in self._adapters else None

    def runs(self, token_ids: Sequence[int], facts: Facts, after: int) -> tuple[Run, ...]:
        """What was told of a prompt behind the batch ``after``: batches that told of nothing but pages of it, or of all
        its last ones and what follows them. In order. O(tokens + pages told since)."""
        extra, adapter = self._selected_by(facts)
        path = self.table.known_path(token_ids, extra_keys=extra, adapter=adapter)
        places = {name: place for place, name in enumerate(path)}
        whole = len(token_ids) // (self.table.page_size or 1)
        found = []
        for stored in reversed(self._recent):
            if stored.sequence <= after:
                break
            start = places.get(stored.first)
            if start is not None and (stored.last in places or start + stored.pages >= whole):
                found.append(Run(stored.sequence, start, min(start + stored.pages, whole)))
        return tuple(reversed(found))

    def lost_before(self, token_ids: Sequence[int], facts: Facts, tokens: int, sent_at: int) -> bool:
        """Whether more than so many tokens of a prompt were held at some time before it went out, as far as removals
        are remembered. O(tokens) a look; looks lie farther and farther back."""
        moments = (sent_at - 4**step for step in range(LOOKS))
        return any(self.match(token_ids, facts, as_of=m).tokens > tokens for m in moments if m >= 0)

    def lost_after(self, token_ids: Sequence[int], facts: Facts, tokens: int, sent_at: int) -> bool:
        """Whether no more than so many tokens of a prompt were held at some time soon after it went out. As above."""
        moments = range(sent_at + 1, min(self.table.sequence, sent_at + LOOKS) + 1)
        return any(self.match(token_ids, facts, as_of=m).tokens <= tokens for m in moments)

    def told_another(self, token_ids: Sequence[int], facts: Facts, sent_at: int) -> bool:
        """Whether a prompt of as many full pages, and other tokens, was told of since, under whatever salt or adapter.
        O(tokens for each of those that were seen lately + pages told since)."""
        own: set[PageHash] = set()
        for selection in (facts, *self._others(facts)):
            extra, adapter = self._selected_by(selection)
            own.update(self.table.known_path(token_ids, extra_keys=extra, adapter=adapter))
        wanted = len(token_ids) // (self.table.page_size or 1)
        since = (stored.last for stored in self._recent if stored.sequence > sent_at and stored.last not in own)
        return any(len(self.table.chain(last)) == wanted for last in since)

    def holds_under_another(self, token_ids: Sequence[int], facts: Facts, tokens: int) -> bool:
        """Whether more than so many tokens of a prompt are held under another salt or adapter, of those seen lately."""
        return any(self.match(token_ids, other).tokens > tokens for other in self._others(facts))

    def _others(self, facts: Facts) -> list[Facts]:
        """Selections of a cache that were seen lately, but for a prompt's own."""
        others = [Facts("", salt) for salt in (None, *self._salts)]
        others += [Facts(adapter, facts.salt) for adapter in self._adapters]
        own = facts._replace(model=facts.model if facts.model in self._adapters else "")
        return [other for other in others if other != own]

    def confirm(self, token_ids: Sequence[int], facts: Facts, cached_tokens: int) -> bool:
        """The engine reported that it took so many tokens of a prompt from its cache. Whether that settles a doubt.
        O(tokens) while pages are doubtful, else O(1)."""
        before = self.table.doubtful
        if before and self.table.page_size is not None:
            pages = self.match(token_ids, facts).pages
            self.table.confirm(pages[: cached_tokens // self.table.page_size])
        return self.table.doubtful < before

    def doubt_all_but(self, token_ids: Sequence[int], facts: Facts) -> None:
        """What is held may be gone, but for the pages of this prompt, which were just computed. O(tokens)."""
        self.table.doubt()
        self.table.confirm(self.match(token_ids, facts).pages)

    def chain(self, watch: Watch, sent_at: int) -> Chain | None:
        """The pages of a request that went out after the batch ``sent_at``; ``None``: nobody can tell. O(tokens)."""
        size = self.table.page_size
        if size is None:
            return None
        if watch.prompt is not None:
            pages = self.match(watch.prompt.token_ids, watch.facts).pages
            return Chain(self, pages, len(pages) >= watch.prompt.tokens // size)
        if watch.prompt_tokens is None:
            return None
        wanted = watch.prompt_tokens // size
        since = (stored.last for stored in self._recent if stored.sequence > sent_at)
        chains = {pages for last in since if len(pages := self.table.chain(last)) == wanted}
        return Chain(self, chains.pop(), True) if len(chains) == 1 else None


def _remember(names: OrderedDict[str, None], name: str, most: int) -> None:
    names[name] = None
    names.move_to_end(name)
    if len(names) > most:
        names.popitem(last=False)
