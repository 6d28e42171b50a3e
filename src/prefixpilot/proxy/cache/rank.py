"""The cache of one rank: its pages, and the contexts whose prompts took them. One owner; not thread-safe."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from prefixpilot.cache_events import CacheCleared, EventBatch, PageHash, PagesStored
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
    """Pages that one event told of.

    Attributes:
        sequence: of its batch.
        last: the last of its pages.
    """

    sequence: int
    last: PageHash


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

    def apply(self, batch: EventBatch) -> tuple[Shortened, ...]:
        """Take a batch over; what it shortened. O(pages)."""
        if batch.sequence <= self.table.sequence and batch.events and isinstance(batch.events[0], CacheCleared):
            self.table.restart()
            self._recent.clear()
        applied = self.table.apply(batch)
        for event in batch.events:
            if isinstance(event, PagesStored):
                self._note(batch.sequence, event)
        if self.contexts is None and self.table.page_size is not None:
            self.contexts = ResidentContexts(self.table.page_size, self._max_contexts)
        if self.contexts is None:
            return ()
        return (*(self.contexts.clear() if applied.cleared else ()), *self.contexts.remove(applied.removed))

    def _note(self, sequence: int, event: PagesStored) -> None:
        self._recent.append(Stored(sequence, event.pages[-1]))
        if event.adapter is not None:
            _remember(self._adapters, event.adapter, MAX_ADAPTERS)
        if event.parent is None and event.extra_keys and isinstance(event.extra_keys[0], tuple):
            for key in event.extra_keys[0]:
                if isinstance(key, str):
                    _remember(self._salts, key, MAX_SALTS)

    def detach(self, request_ids: Iterable[str]) -> None:
        """Let requests go, by their ids as the engine writes them."""
        if self.contexts is not None:
            for request_id in request_ids:
                any(self.contexts.detach(RequestId(spelling)) for spelling in spellings(request_id))

    def forget_contexts(self) -> None:
        """Nothing is attached any more; what the engine holds stays known."""
        if self.contexts is not None:
            self.contexts.clear()

    def match(self, token_ids: Sequence[int], facts: Facts, as_of: int | None = None) -> PrefixMatch:
        """What is held of a prompt, now or after the batch ``as_of``. O(tokens)."""
        extra: tuple[Hashable, ...] = () if facts.salt is None else ((facts.salt,),)
        adapter = facts.model if facts.model in self._adapters else None
        return self.table.match(token_ids, extra_keys=extra, adapter=adapter, as_of=as_of)

    def held_before_own(self, token_ids: Sequence[int], facts: Facts, since: int, until: int) -> int:
        """Tokens of a prompt that were held after the batch ``until``; before its own pages came, if they are among it.

        All full pages of a prompt, held for the first time after ``since``, are its own. O(tokens), and once more for
        each batch between if they are.
        """
        whole = len(token_ids) // (self.table.page_size or 1) * (self.table.page_size or 1)
        held = self.match(token_ids, facts, as_of=until).tokens
        if held < whole or until <= since:
            return held
        before = self.match(token_ids, facts, as_of=since).tokens
        for sequence in range(since + 1, until + 1) if before < whole else ():
            held = self.match(token_ids, facts, as_of=sequence).tokens
            if held >= whole:
                break
            before = held
        return before

    def lost_before(self, token_ids: Sequence[int], facts: Facts, tokens: int, sent_at: int) -> bool:
        """Whether more than so many tokens of a prompt were held at some time before it went out, as far as removals
        are remembered. O(tokens) a look; looks lie farther and farther back."""
        moments = (sent_at - 4**step for step in range(LOOKS))
        return any(self.match(token_ids, facts, as_of=m).tokens > tokens for m in moments if m >= 0)

    def lost_after(self, token_ids: Sequence[int], facts: Facts, tokens: int, sent_at: int) -> bool:
        """Whether no more than so many tokens of a prompt were held at some time soon after it went out. As above."""
        moments = range(sent_at + 1, min(self.table.sequence, sent_at + LOOKS) + 1)
        return any(self.match(token_ids, facts, as_of=m).tokens <= tokens for m in moments)

    def holds_under_another(self, token_ids: Sequence[int], facts: Facts, tokens: int) -> bool:
        """Whether more than so many tokens of a prompt are held under another salt or adapter, of those seen lately."""
        others = [Facts("", salt) for salt in (None, *self._salts)]
        others += [Facts(adapter, facts.salt) for adapter in self._adapters]
        own = facts._replace(model=facts.model if facts.model in self._adapters else "")
        return any(self.match(token_ids, other).tokens > tokens for other in others if other != own)

    def confirm(self, token_ids: Sequence[int], facts: Facts, cached_tokens: int) -> None:
        """The engine reported that it took so many tokens of a prompt from its cache. O(tokens) while pages are
        doubtful, else O(1)."""
        if self.table.doubtful and self.table.page_size is not None:
            pages = self.match(token_ids, facts).pages
            self.table.confirm(pages[: cached_tokens // self.table.page_size])

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
