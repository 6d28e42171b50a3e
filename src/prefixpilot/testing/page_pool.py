"""The pages of a simulated engine, as vLLM keeps them: a pool of fixed size, chained names, least recently freed first.

What is modelled, by the behaviour of vLLM 0.32 (measured; see ``docs/decisions/0028``): a page is held once it is
full, under a name that stands for its tokens and all before them; a prompt hits whole pages and never its last token; a
running request holds its pages, the partly filled one too; when it ends they are freed from its tail to its head, full
ones to the end of the queue of free pages, others to its front; new pages come from the front, and a full one that is
taken loses its name. A prompt that is held to its last page computes that page again, so two pages may have one name.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from prefixpilot.cache_events import CacheCleared, CacheEvent, PageHash, PagesRemoved, PagesStored
from prefixpilot.errors import ConfigError, InvalidInputError, InvariantError


class Allocation(NamedTuple):
    """The pages of a request that runs.

    Attributes:
        number: of the request.
        cached_tokens: what its prompt hit.
    """

    number: int
    cached_tokens: int


class _Run(NamedTuple):
    tokens: list[int]
    salt: str | None
    slots: list[int]
    names: list[PageHash]


class PagePool:
    """A pool of pages. Deterministic; not safe for threads.

    Args:
        pages: how many there are; 1 or more. (vLLM's ``num_gpu_blocks`` counts one more, which it reserves.)
        page_size: tokens of a page.

    Raises:
        ConfigError: below 1.
    """

    def __init__(self, pages: int, page_size: int = 16) -> None:
        for name, value in (("pages", pages), ("page_size", page_size)):
            if value < 1:
                raise ConfigError(name, f"is {value}", "use an int of 1 or more")
        self.pages = pages
        self.page_size = page_size
        self._free: OrderedDict[int, None] = OrderedDict((slot, None) for slot in range(pages))
        self._users: Counter[int] = Counter()
        self._name_of: dict[int, PageHash] = {}
        self._slots_of: dict[PageHash, dict[int, None]] = {}
        self._runs: dict[int, _Run] = {}
        self._numbers = itertools.count()
        self._events: list[CacheEvent] = []

    @property
    def free_pages(self) -> int:
        """Pages that no running request holds."""
        return len(self._free)

    @property
    def named_pages(self) -> int:
        """Names that a prompt could hit now."""
        return len(self._slots_of)

    def match(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """Tokens of ``tokens`` that a request would hit now. Changes nothing. O(tokens)."""
        names = self._names(tokens, salt, limit=max(len(tokens) - 1, 0))
        return sum(1 for _ in itertools.takewhile(self._slots_of.__contains__, names)) * self.page_size

    def begin(self, tokens: Sequence[int], salt: str | None = None) -> Allocation | None:
        """Take the pages of a prompt, evicting what must go; ``None``, and no change, if too few are free.

        Raises:
            InvalidInputError: it is empty, or longer than all pages together.
        """
        needed = -(-len(tokens) // self.page_size)
        if not 0 < needed <= self.pages:
            raise InvalidInputError("tokens", f"are {len(tokens)}", f"send 1 to {self.pages * self.page_size}")
        hit = self.match(tokens, salt) // self.page_size
        names = list(self._names(tokens, salt, limit=len(tokens)))
        slots = [next(iter(self._slots_of[name])) for name in names[:hit]]
        if needed - hit > len(self._free) - sum(slot in self._free for slot in slots):
            return None
        for slot in slots:
            self._hold(slot)
        run = _Run(list(tokens), salt, slots, names[:hit])
        self._grow(run)
        number = next(self._numbers)
        self._runs[number] = run
        return Allocation(number, hit * self.page_size)

    def extend(self, allocation: Allocation, tokens: Sequence[int]) -> bool:
        """The request has computed more tokens (its answer). False, and no change, if there is no page for them."""
        run = self._runs[allocation.number]
        if -(-(len(run.tokens) + len(tokens)) // self.page_size) - len(run.slots) > len(self._free):
            return False
        run.tokens.extend(tokens)
        self._grow(run)
        return True

    def end(self, allocation: Allocation) -> None:
        """The request is over: its pages are free, the full ones still with their names. KeyError if it is already."""
        run = self._runs.pop(allocation.number)
        for slot in reversed(run.slots):
            self._users[slot] -= 1
            if not self._users[slot]:
                self._free[slot] = None
                self._free.move_to_end(slot, last=slot in self._name_of)

    def reset(self) -> bool:
        """Forget all names; False, and no change, while a request runs."""
        if self._runs:
            return False
        self._name_of.clear()
        self._slots_of.clear()
        self._events.append(CacheCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """What has happened since it was last asked, in order."""
        taken, self._events = self._events, []
        return taken

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the pool is broken. O(pages)."""
        held = Counter(slot for run in self._runs.values() for slot in run.slots)
        _require(+self._users == held, "users are counted wrong")
        _require(set(self._free) | set(held) == set(range(self.pages)), "a page is neither free nor held")
        _require(not set(self._free) & set(held), "a held page is free")
        named = {slot: name for name, slots in self._slots_of.items() for slot in slots}
        _require(named == self._name_of, "names and pages differ")

    def _names(self, tokens: Sequence[int], salt: str | None, limit: int) -> list[PageHash]:
        """Names of the full pages within the first ``limit`` tokens."""
        chain, names = b"", []
        for start in range(0, limit - self.page_size + 1, self.page_size):
            page = list(tokens[start : start + self.page_size])
            chain = blake2b(repr((chain, page, None if start else salt)).encode(), digest_size=8).digest()
            names.append(PageHash(chain))
        return names

    def _hold(self, slot: int) -> None:
        self._free.pop(slot, None)
        self._users[slot] += 1

    def _grow(self, run: _Run) -> None:
        """Take pages for the tokens of a run, then name those that are full by now."""
        while len(run.slots) * self.page_size < len(run.tokens):
            slot = next(iter(self._free))
            self._evict(slot)
            self._hold(slot)
            run.slots.append(slot)
        first = len(run.names)
        run.names.extend(self._names(run.tokens, run.salt, limit=len(run.tokens))[first:])
        self._store(run, first)

    def _evict(self, slot: int) -> None:
        name = self._name_of.pop(slot, None)
        if name is not None:
            del self._slots_of[name][slot]
            if not self._slots_of[name]:
                del self._slots_of[name]
            self._events.append(PagesRemoved((name,)))

    def _store(self, run: _Run, first: int) -> None:
        fresh = run.names[first:]
        if not fresh:
            return
        for slot, name in zip(run.slots[first:], fresh, strict=False):
            self._name_of[slot] = name
            self._slots_of.setdefault(name, {})[slot] = None
        tokens = tuple(run.tokens[first * self.page_size : len(run.names) * self.page_size])
        extra = ((run.salt,), *(None for _ in fresh[1:])) if run.salt is not None and not first else ()
        parent = run.names[first - 1] if first else None
        self._events.append(PagesStored(tuple(fresh), parent, tokens, self.page_size, extra_keys=extra))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"page pool: {what}")
