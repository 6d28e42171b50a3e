"""Proof of joints that no mark shows: what has been met in other requests, bounded.

A blank line between two documents is also a paragraph break inside one of them. One request cannot tell them apart,
and neither can pairs of neighbours: a paragraph that many documents have ("not legal advice") is met beside anything,
though it is never a document; and where passages overlap, each half of a passage is met without the other. So what is
proved here is not a joint but a *unit*, a run of texts that has behaved as one whole document. A run is a unit if

1. it is long enough to be a document (:data:`MIN_CHARACTERS`), and neither its first nor its last text was ever met
   twice in one string: what a string says twice is boilerplate, or passages overlap;
2. it was met in at least two other strings, and these and this one differ pairwise in what stands in front of it AND in
   what stands behind it (a marked outer edge differs from everything, also from itself). A half of a passage always has
   the same text on one of its sides, for each of the passages that it is in; with two of them, two of three meetings
   are of the same passage and agree on that side;
3. some text has been met on both sides of it, here in front and there behind. Parts of a prompt that an application
   puts together in an order of its own (rules before style before tools) and documents sorted by date or by page never
   are: there position may mean something.

A joint is a border if on both of its sides a unit stands, in a tiling from an outer edge inwards without a gap: a
boilerplate paragraph that passes for a unit still has neighbours inside its document that do not. At last, two units
that were met side by side more often than apart stay together: that can only cost gain, never a document.

Outer edges are marked (``Context:`` and ``Answer:``), or there is a frame: what opens the string, with at least three
different texts behind it in different strings, is never moved; the same at the end.

What is NOT excluded: documents that consist of nothing but long paragraphs which all are free elsewhere as well. Then a
document is cut between two such paragraphs, each of which the application itself has shown without the other. Nothing
is lost then either: units only change places.

Only texts as the client wrote them may be observed: what we have put in order proves nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from prefixpilot.errors import ConfigError, InvariantError

MIN_CHARACTERS: Final = 80
"""A shorter run of texts is never a unit."""

MAX_TEXTS: Final = 256
"""A string that is cut into more texts is neither read nor remembered."""

MAX_RUN: Final = 16
"""Texts in a unit."""

_MEETINGS: Final = 3
_WINDOW: Final = 32
_OUTSIDE: Final = b""


class _Place(NamedTuple):
    """Where a text was met: in which string, and at which place in its sequence."""

    string: bytes
    at: int


@dataclass(frozen=True, slots=True)
class _String:
    """Digests of the texts of one string."""

    texts: tuple[bytes, ...]
    framed: bool

    def before(self, index: int) -> bytes | None:
        """What stands in front of a text; ``None``, which equals nothing, if that is a marked edge."""
        return self.texts[index - 1] if index else self._outside()

    def behind(self, index: int) -> bytes | None:
        """What stands at ``index``; as :meth:`before` at the end."""
        return self.texts[index] if index < len(self.texts) else self._outside()

    def _outside(self) -> bytes | None:
        return None if self.framed else _OUTSIDE


class EdgeStore:
    """Remembers, as digests, in which order texts stood in the strings met lately. Implements
    :class:`~prefixpilot.formats.base.Edges`.

    The strings met longest ago go first. No text is kept. For one set of users who may learn, from the order of their
    documents, that others have used them (not what they say): else keep a store for each tenant.

    Args:
        max_texts: how many texts of all strings together are remembered; about 300 bytes each.
        max_meetings: how many of the newest meetings of a text are looked at.

    Raises:
        ConfigError: a bound is below 1.
    """

    def __init__(self, max_texts: int = 16_384, max_meetings: int = 16) -> None:
        if max_texts < 1 or max_meetings < 1:
            raise ConfigError("max_texts", "or max_meetings is below 1", "give a positive number")
        self._max_texts = max_texts
        self._max_meetings = max_meetings
        self._strings: OrderedDict[bytes, _String] = OrderedDict()
        self._places: dict[bytes, dict[_Place, None]] = {}
        self._shared: OrderedDict[bytes, None] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Texts that are remembered, those of all strings together."""
        return self._size

    def observe(self, form: str, texts: Sequence[str], framed: bool) -> None:
        """Remembers a string, cut as for :meth:`joints`; one that is known becomes the newest. O(texts)."""
        if not 1 <= len(texts) <= min(MAX_TEXTS, self._max_texts):
            return
        string = _string(form, texts, framed)
        key = _key(string)
        if key in self._strings:
            self._strings.move_to_end(key)
            return
        self._add(key, string)
        while self._size > self._max_texts:
            self._forget_oldest()

    def joints(self, form: str, texts: Sequence[str], framed: bool) -> tuple[int, ...]:
        """See :meth:`prefixpilot.formats.base.Edges.joints`. O(texts), with the bounds of this module as factors."""
        if not 2 <= len(texts) <= MAX_TEXTS:
            return ()
        return _Tiling(self, _string(form, texts, framed), [len(text) for text in texts]).joints()

    def check_invariants(self) -> None:
        """Raises InvariantError if the store does not hold what it promises. O(size)."""
        expected: dict[bytes, set[_Place]] = {}
        for key, string in self._strings.items():
            for index, text in enumerate(string.texts):
                expected.setdefault(text, set()).add(_Place(key, index))
        if {text: set(places) for text, places in self._places.items()} != expected:
            raise InvariantError("edges: places are not those of the strings")
        if self._size != sum(len(string.texts) for string in self._strings.values()):
            raise InvariantError("edges: the size is not that of the strings")
        if self._size > self._max_texts or len(self._shared) > self._max_texts:
            raise InvariantError("edges: more is remembered than may be")

    def _add(self, key: bytes, string: _String) -> None:
        self._strings[key] = string
        self._size += len(string.texts)
        for index, text in enumerate(string.texts):
            self._places.setdefault(text, {})[_Place(key, index)] = None
        for text, count in Counter(string.texts).items():
            if count > 1:
                self._shared[text] = None
                self._shared.move_to_end(text)
        while len(self._shared) > self._max_texts:
            self._shared.popitem(last=False)

    def _forget_oldest(self) -> None:
        key, string = self._strings.popitem(last=False)
        self._size -= len(string.texts)
        for index, text in enumerate(string.texts):
            places = self._places[text]
            del places[_Place(key, index)]
            if not places:
                del self._places[text]

    def is_shared(self, text: bytes) -> bool:
        """Whether a string had this text twice."""
        return text in self._shared

    def meetings(self, text: bytes, besides: bytes) -> Iterator[tuple[_String, int]]:
        """The newest strings that hold a text, and where; without the string ``besides``."""
        left = self._max_meetings
        for place in reversed(self._places.get(text, {})):
            if place.string != besides:
                yield self._strings[place.string], place.at
                left -= 1
                if not left:
                    return


class _Tiling:
    """Units and frames in one string. Lives for one question."""

    def __init__(self, store: EdgeStore, string: _String, lengths: Sequence[int]) -> None:
        self._store = store
        self._string = string
        self._texts = string.texts
        self._lengths = lengths
        self._key = _key(string)
        self._twice = {text for text, count in Counter(self._texts).items() if count > 1}

    def joints(self) -> tuple[int, ...]:
        """Proved borders, rising."""
        ends = self._framed() if self._string.framed else self._unframed()
        last = len(ends) - 1
        kept = [end for i, end in enumerate(ends) if i in (0, last) or self._mostly_apart(end)]
        return tuple(kept) if len(kept) > 2 else ()

    def _framed(self) -> list[int]:
        """Between marked edges: what is not proved is one unit, with the units that touch it."""
        size = len(self._texts)
        left = self._tiles(0)
        if left[-1] == size:
            return left
        right = self._tiles_backwards(size)
        inner = left[1:-1]
        if not inner or right[-1] >= inner[-1]:
            inner += right[1:-1][::-1]
        return [0, *inner, size]

    def _unframed(self) -> list[int]:
        """Behind the frame that opens the string, up to the last unit that has a unit or a frame behind it."""
        left = self._tiles(0)
        if len(left) == 1:
            start = self._opening()
            left = self._tiles(start) if start else []
        if left and left[-1] not in (len(self._texts), self._closing()):
            left.pop()
        return left

    def _tiles(self, start: int) -> list[int]:
        """Borders of the shortest units from ``start`` on, as far as there are units."""
        ends = [start]
        for end in range(start + 1, len(self._texts) + 1):
            if end - ends[-1] > MAX_RUN:
                break
            if self._is_unit(ends[-1], end):
                ends.append(end)
        return ends

    def _tiles_backwards(self, end: int) -> list[int]:
        """The same from ``end`` on to the front; falling."""
        starts = [end]
        for start in range(end - 1, -1, -1):
            if starts[-1] - start > MAX_RUN:
                break
            if self._is_unit(start, starts[-1]):
                starts.append(start)
        return starts

    def _is_unit(self, start: int, end: int) -> bool:
        """Whether these texts have behaved as one document: the rules of this module."""
        run = self._texts[start:end]
        if sum(self._lengths[start:end]) < MIN_CHARACTERS:
            return False
        if any(text in self._twice or self._store.is_shared(text) for text in (run[0], run[-1])):
            return False
        met = [(self._string, start)]
        met += (
            (other, index)
            for other, index in self._store.meetings(run[0], self._key)
            if other.texts[index : index + len(run)] == run
        )
        sides = ((other.before(index), other.behind(index + len(run))) for other, index in met)
        return _are_apart(sides) and self._is_free(met, len(run))

    def _is_free(self, met: Sequence[tuple[_String, int]], size: int) -> bool:
        """Whether some text was met in front of a run in one string and behind it in another, within a window; texts
        that strings say twice do not count."""
        fronts: set[bytes] = set()
        backs: set[bytes] = set()
        for string, index in met:
            before = string.texts[max(0, index - _WINDOW) : index]
            behind = string.texts[index + size : index + size + _WINDOW]
            both = (backs.intersection(before) | fronts.intersection(behind)).difference(self._twice)
            if not all(self._store.is_shared(text) for text in both):
                return True
            fronts.update(before)
            backs.update(behind)
        return False

    def _opening(self) -> int:
        """Length of the shortest frame that opens the string; 0 if there is none."""
        others = [other for other, index in self._store.meetings(self._texts[0], self._key) if index == 0]
        for size in range(1, min(len(self._texts), MAX_RUN) + 1):
            others = [other for other in others if other.texts[:size] == self._texts[:size]]
            if len({self._string.behind(size), *(other.behind(size) for other in others)}) >= _MEETINGS:
                return size
        return 0

    def _closing(self) -> int:
        """Where the shortest frame that closes the string begins; -1 if there is none."""
        others = [
            other for other, index in self._store.meetings(self._texts[-1], self._key) if index == len(other.texts) - 1
        ]
        for size in range(1, min(len(self._texts), MAX_RUN) + 1):
            others = [other for other in others if other.texts[-size:] == self._texts[-size:]]
            start = len(self._texts) - size
            fronts = {other.before(len(other.texts) - size) for other in others}
            if len({self._string.before(start), *fronts}) >= _MEETINGS:
                return start
        return -1

    def _mostly_apart(self, joint: int) -> bool:
        """Whether the texts at a joint were met together elsewhere no more often than apart."""
        first, second = self._texts[joint - 1], self._texts[joint]
        behind = [other.behind(index + 1) == second for other, index in self._store.meetings(first, self._key)]
        before = [other.before(index) == first for other, index in self._store.meetings(second, self._key)]
        return 2 * sum(behind) <= len(behind) and 2 * sum(before) <= len(before)


def _are_apart(sides: Iterable[tuple[bytes | None, bytes | None]]) -> bool:
    """Whether three of these, taken first come first served, differ pairwise in both parts."""
    fronts: set[bytes] = set()
    backs: set[bytes] = set()
    count = 0
    for front, back in sides:
        if front in fronts or back in backs:
            continue
        count += 1
        if count == _MEETINGS:
            return True
        fronts.update([] if front is None else [front])
        backs.update([] if back is None else [back])
    return False


def _string(form: str, texts: Sequence[str], framed: bool) -> _String:
    """Digests, so that texts of different forms are different texts."""
    salt = hashlib.blake2b(form.encode(), digest_size=16).digest()
    return _String(tuple(_digest(salt, text) for text in texts), framed)


def _digest(salt: bytes, text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=salt).digest()


def _key(string: _String) -> bytes:
    return hashlib.blake2b(b"".join(string.texts) + bytes([string.framed]), digest_size=16).digest()
