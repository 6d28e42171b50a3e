"""Prompts that go on from an earlier one's answer: what was generated lies in the engine's cache too.

Nobody tells which tokens an answer had, only how many. A later prompt that begins with all of an earlier one, the head
of the answer included, is taken to go on with that answer, until a report says otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from prefixpilot.prefix_cache import Segment
from prefixpilot.residency.base import require
from prefixpilot.residency.page_keys import page_keys

MAX_ANSWERS: Final = 10_000


class _Place(NamedTuple):
    """Where an answered prompt ends: a digest of its full pages, and the tokens behind them."""

    pages: bytes
    rest: tuple[int, ...]


class Extent(NamedTuple):
    """A part of a prompt that is an earlier answer.

    Attributes:
        start, end: in tokens.
        name: under which a model holds it.
        place: of the record.
    """

    start: int
    end: int
    name: Hashable
    place: _Place


class PagedPrompt:
    """A prompt of known tokens in pages, and what selects its cache. O(tokens).

    Args:
        extra_keys, adapter: as in :func:`~prefixpilot.residency.page_keys.page_keys`.
    """

    def __init__(
        self, token_ids: Sequence[int], page_size: int, extra_keys: Sequence[Hashable] = (), adapter: str | None = None
    ) -> None:
        self.token_ids = token_ids
        self.page_size = page_size
        self.keys = list(page_keys(token_ids, page_size, extra_keys, adapter))
        chain = blake2b(repr((extra_keys, adapter)).encode(), digest_size=16)
        self.chains = [chain.digest()]
        for key in self.keys:
            chain.update(key)
            self.chains.append(chain.digest())

    def place(self) -> _Place:
        """Where it ends."""
        return _Place(self.chains[-1], tuple(self.token_ids[len(self.keys) * self.page_size :]))

    def segments(self, extents: Sequence[Extent] = ()) -> list[Segment]:
        """As a cache model takes it: a segment a full page, one for what lies between, and answers by their names."""
        found: list[Segment] = []
        at = 0
        for extent in extents:
            self._append(found, at, extent.start)
            found.append(Segment(extent.name, extent.end - extent.start))
            at = extent.end
        self._append(found, at, len(self.token_ids))
        return found

    def _append(self, found: list[Segment], start: int, end: int) -> None:
        size = self.page_size
        while start < end:
            stop = min(end, (start // size + 1) * size)
            whole = stop - start == size
            name: Hashable = self.keys[start // size] if whole else tuple(self.token_ids[start:stop])
            found.append(Segment(name, stop - start))
            start = stop


class AnsweredPrompts:
    """How long the answers to prompts were. Bounded; not thread-safe: one owner.

    Args:
        most: the one noted or met longest ago goes.
    """

    def __init__(self, most: int = MAX_ANSWERS) -> None:
        self._most = most
        self._answers: OrderedDict[_Place, Segment] = OrderedDict()
        self._rests: dict[bytes, dict[tuple[int, ...], None]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def note(self, prompt: PagedPrompt, answer: Segment) -> None:
        """A prompt was answered; of its answer so many tokens are held, under that name. The newest counts. O(1)."""
        place = prompt.place()
        self.forget(place)
        self._answers[place] = answer
        self._rests.setdefault(place.pages, {})[place.rest] = None
        if len(self._answers) > self._most:
            self.forget(next(iter(self._answers)))

    def forget(self, place: _Place) -> None:
        """The answer to that prompt is not known any more, if it was."""
        if self._answers.pop(place, None) is not None:
            rests = self._rests[place.pages]
            del rests[place.rest]
            if not rests:
                del self._rests[place.pages]

    def extents(self, prompt: PagedPrompt) -> list[Extent]:
        """The answers in a prompt, in order; they do not overlap, and the first that begins goes before others.

        O(pages + records that end in its pages).
        """
        found: list[Extent] = []
        for pages, chain in enumerate(prompt.chains):
            for rest in sorted(self._rests.get(chain, ()), key=len):
                start = pages * prompt.page_size + len(rest)
                if found and start < found[-1].end:
                    continue
                place = _Place(chain, rest)
                end = start + self._answers[place].tokens
                if end < len(prompt.token_ids) and tuple(prompt.token_ids[start - len(rest) : start]) == rest:
                    self._answers.move_to_end(place)
                    found.append(Extent(start, end, self._answers[place].key, place))
        return found

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the two sides differ. O(everything held); for tests."""
        pairs = {_Place(pages, rest) for pages, rests in self._rests.items() for rest in rests}
        require(pairs == set(self._answers) and all(self._rests.values()), "answers: places and records differ")
        require(len(self._answers) <= self._most, "answers: too many")
