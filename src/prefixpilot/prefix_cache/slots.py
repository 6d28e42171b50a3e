"""llama.cpp's prompt cache: slots that hold one prompt each, and a store of earlier prompts in host RAM.

What a request does to them, as its server does it (measured with xllamacpp 2026.10, separate KV caches a slot)::

    slot empty ......................... nothing is reused, the store is not asked
    half of the slot's prompt is kept .. the common prefix is reused; the rest of the slot's prompt is gone from it
    less is kept ....................... the slot's prompt goes to the store; the stored prompt that has more in common,
                                         of which a quarter at least is kept, comes out of the store into the slot
    then ............................... prompts of all other idle slots are copied to the store

So a prompt that is taken from the store is *used up*, unless an idle slot holds it too; and the store is out of reach
of a prompt while every slot is empty or holds something much like it. Prompts are bytes here: the thresholds are
ratios, so that bytes do as well as tokens where text is even. A prompt may have names: by them it is told that it was
used up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from prefixpilot.errors import ConfigError, InvalidInputError, InvariantError

KEPT_OF_SLOT: Final = 0.5
KEPT_OF_STORED: Final = 0.25
SIMILAR: Final = 0.1
"""Shares of the slot's prompt, of a stored prompt, and of the new prompt, from which llama.cpp takes them."""
DOUBT: Final = 0.9
"""Of a threshold: as close to it, bytes do not say what tokens would; then the worse is expected."""
AT_RISK: Final = 0.2
"""Share of what a prompt is worth that is lost when only the store holds it: the next one may use it up."""
HALF_LIFE: Final = 64
"""Requests after which a prompt is worth half as much."""
LEAST_GAIN: Final = 64
"""Bytes; less is within what a template puts between messages."""
MAX_STORED: Final = 64
MAX_NAMES: Final = 64
"""Of a prompt: its own, and those of the prompts that it went on with whole."""
MAX_WEIGHED: Final = 12
"""Prompts, those worth most, whose loss is weighed when a slot is chosen."""
_MAX_PAIRS: Final = 20_000


class Held(NamedTuple):
    """A prompt that is held.

    Attributes:
        number: of it; no other prompt has it.
        worth: how likely it is to be gone on with, 0 to 1.
        names: of it, and of those that it begins with.
    """

    number: int
    text: bytes
    worth: float
    names: tuple[str, ...] = ()


EMPTY: Final = Held(0, b"", 0.0)


class Contents(NamedTuple):
    """What is held: one prompt a slot, and the stored ones, oldest first."""

    slots: tuple[Held, ...]
    store: tuple[Held, ...] = ()


class Placement(NamedTuple):
    """What a slot does for a prompt.

    Attributes:
        slot: its id.
        cached: bytes of the prompt that need not be computed.
        left: bytes, weighted by worth, of prompts that need not be computed when they come again.
    """

    slot: int
    cached: int
    left: float

    @property
    def gain(self) -> float:
        """What is saved now and later."""
        return self.cached + self.left


class _Placed(NamedTuple):
    """What comes of a prompt in a slot.

    Attributes:
        cached: bytes of it that need not be computed.
        source: the prompt that it goes on with, of which the slot keeps no more than that; ``None``: there is none.
        after: what is held once it has begun.
    """

    cached: int
    source: Held | None
    after: Contents


class SlotCache:
    """A picture of llama.cpp's slots and store. Not thread-safe. Memory: the bytes of the prompts held, bounded.

    Args:
        slots: how many there are, 1 or more.
        store_bytes: bound of the stored prompts in all; 0: there is no store. No more than MAX_STORED are followed.
        copies_idle: prompts of idle slots are copied to the store when a request begins elsewhere; older versions and
            ``--no-cache-idle-slots`` do not.

    Attributes:
        used_up: names of the prompts that are gone by the last ``place``, but for what its prompt has in common with
            them. Those that the bound of the store puts out are not told of.
    """

    def __init__(self, slots: int, store_bytes: int = 1 << 20, *, copies_idle: bool = True) -> None:
        if slots < 1:
            raise ConfigError("slots", f"is {slots}", "use an int of 1 or more")
        if store_bytes < 0:
            raise ConfigError("store_bytes", f"is {store_bytes}", "use an int of 0 or more")
        self._contents = Contents((EMPTY,) * slots)
        self._busy = [False] * slots
        self._store_bytes = store_bytes
        self._copies_idle = copies_idle
        self._newest = EMPTY
        self._common: dict[tuple[int, int], int] = {}
        self.used_up: tuple[str, ...] = ()

    @property
    def contents(self) -> Contents:
        """What is held now."""
        return self._contents

    @property
    def idle(self) -> tuple[int, ...]:
        """Slots that compute nothing."""
        return tuple(slot for slot, busy in enumerate(self._busy) if not busy)

    def preview(self, prompt: bytes, slot: int, worth: float = 0.0) -> Placement:
        """What a slot would do for a prompt. Changes nothing that is held. O(prompts held * MAX_WEIGHED)."""
        new = self._new(prompt, worth)
        placed = self._placed(new, self._checked(slot))
        weighed = {held.text: held for part in (*self._contents, (new,)) for held in part if held.worth}
        most = sorted(weighed.values(), key=self._worth, reverse=True)[:MAX_WEIGHED]
        return Placement(slot, placed.cached, sum(self._worth(held) * self._reach(placed.after, held) for held in most))

    def best(self, prompt: bytes, worth: float = 0.0) -> Placement | None:
        """llama.cpp's own choice, or an idle slot that reuses no less now and saves at least LEAST_GAIN more in all; of
        several the one with the most gain, of equal ones the one used least lately. ``None`` if all are busy.

        What is saved later is a guess, what is reused now is not: nothing is paid now for what may come.
        """
        choice = self._own_choice(self._new(prompt, worth))
        if choice is None:
            return None
        own = self.preview(prompt, choice, worth)
        others = [self.preview(prompt, slot, worth) for slot in self.idle if slot != choice]
        better = [p for p in others if p.cached >= own.cached and p.gain >= own.gain + LEAST_GAIN]
        used = self._contents.slots
        return max(better, key=lambda p: (p.gain, -used[p.slot].number, -p.slot), default=own)

    def own_choice(self, prompt: bytes) -> int | None:
        """The slot that llama.cpp takes if it is told none; ``None`` if all are busy."""
        return self._own_choice(self._new(prompt, 0.0))

    def _own_choice(self, new: Held) -> int | None:
        held = self._contents.slots
        common = {slot: self._shared(held[slot], new) for slot in self.idle}
        similar = [slot for slot, length in common.items() if length > SIMILAR * len(new.text)]
        if similar:
            return max(similar, key=lambda slot: (common[slot], -slot))
        return min(common, key=lambda slot: (held[slot].number, -slot), default=None)

    def place(self, prompt: bytes, slot: int, worth: float = 0.0, names: tuple[str, ...] = ()) -> int:
        """A request with that prompt begins in an idle slot. Returns the bytes of it that are cached.

        Args:
            names: by which the prompt is told of in ``used_up``.

        Raises:
            InvalidInputError: there is no such slot, or it is busy.
        """
        if self._busy[self._checked(slot)]:
            raise InvalidInputError("slot", f"{slot} is busy", "place it in one of `idle`")
        placed = self._placed(self._new(prompt, worth)._replace(names=names), slot)
        self._contents = placed.after
        self._newest = placed.after.slots[slot]
        self._busy[slot] = True
        self.used_up = self._gone(placed.source)
        return placed.cached

    def release(self, slot: int, *, failed: bool = False) -> None:
        """The request in a slot is over; ``failed``: nobody knows what the slot holds now."""
        self._busy[self._checked(slot)] = False
        if failed:
            self.empty(slot)

    def empty(self, slot: int) -> None:
        """The slot turned out to hold nothing."""
        slots = list(self._contents.slots)
        slots[self._checked(slot)] = EMPTY
        self._contents = self._contents._replace(slots=tuple(slots))

    def forget_store(self) -> None:
        """The store turned out to hold other things than was thought."""
        self._contents = self._contents._replace(store=())

    def clear_idle(self) -> None:
        """Nothing is known but of slots that compute."""
        for slot in self.idle:
            self.empty(slot)
        self.forget_store()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the structure is broken. O(everything held)."""
        texts = sorted(held.text for held in self._contents.store)
        if sum(map(len, texts)) > self._store_bytes or len(texts) > MAX_STORED:
            raise InvariantError("the store holds more than its bound")
        if b"" in texts:
            raise InvariantError("the store holds an empty prompt")
        if any(later.startswith(text) for text, later in pairwise(texts)):
            raise InvariantError("a stored prompt stands inside another one")
        if len(self._common) > _MAX_PAIRS:
            raise InvariantError("too many pairs are remembered")

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < len(self._busy):
            raise InvalidInputError("slot", f"is {slot}", f"use 0 to {len(self._busy) - 1}")
        return slot

    def _new(self, prompt: bytes, worth: float) -> Held:
        """The prompt with a number; the same one again if it is asked for again."""
        if prompt != self._newest.text or worth != self._newest.worth or self._newest in self._contents.slots:
            self._newest = Held(self._newest.number + 1, prompt, worth)
        return self._newest

    def _shared(self, one: Held, other: Held) -> int:
        """Bytes that two prompts have in common at their heads, remembered."""
        pair = (one.number, other.number) if one.number < other.number else (other.number, one.number)
        length = self._common.get(pair)
        if length is None:
            if len(self._common) >= _MAX_PAIRS:
                self._common.clear()
            length = self._common[pair] = common_prefix(one.text, other.text)
        return length

    def _door(self, held: Held, new: Held) -> bool:
        """Whether a slot with that prompt goes to the store for a new one."""
        common = self._shared(held, new)
        keeps = common > SIMILAR * len(new.text) and common >= DOUBT * KEPT_OF_SLOT * len(held.text)
        return bool(held.text) and not keeps and self._store_bytes > 0

    def _gone(self, source: Held | None) -> tuple[str, ...]:
        """Names of a prompt that was gone on with, as far as nothing that is held has them."""
        if source is None or not source.names:
            return ()
        kept = {name for part in self._contents for held in part for name in held.names}
        return tuple(name for name in source.names if name not in kept)

    def _placed(self, new: Held, slot: int) -> _Placed:
        slots, store = self._contents
        source: Held | None = slots[slot]
        held, cached = slots[slot], self._shared(slots[slot], new)
        if self._door(held, new):
            store = _saved(store, held)
            source = self._found(store, held, new)
            if source is not None:
                cached, store = self._shared(source, new), tuple(each for each in store if each is not source)
        if self._copies_idle and self._store_bytes:
            for other in self.idle:
                if other != slot:
                    store = _saved(store, slots[other])
        if source is not None and new.text.startswith(source.text):
            new = new._replace(names=(*source.names, *new.names)[:MAX_NAMES])
        after = (*slots[:slot], new, *slots[slot + 1 :])
        return _Placed(cached, source, Contents(after, self._bounded(store)))

    def _found(self, store: tuple[Held, ...], held: Held, new: Held) -> Held | None:
        """What llama.cpp takes from its store: each one has to be better in both shares than the one before."""
        best, taken = self._shared(held, new), None
        kept = best / len(held.text)
        for each in store:
            length = self._shared(each, new)
            share = length / len(each.text)
            if share >= KEPT_OF_STORED and share > kept and length > best:
                kept, best, taken = share, length, each
        return taken

    def _reach(self, contents: Contents, held: Held) -> float:
        """Bytes of a prompt that some slot would have cached; those in the store count a little less."""
        best: float = max(self._shared(each, held) for each in contents.slots)
        if any(self._door(each, held) for each in contents.slots):
            shared = ((self._shared(each, held), len(each.text)) for each in contents.store)
            stored = max((length for length, total in shared if length >= KEPT_OF_STORED * total), default=0)
            best = max(best, stored * (1 - AT_RISK))
        return best

    def _worth(self, held: Held) -> float:
        return float(held.worth * 0.5 ** ((self._newest.number - held.number) / HALF_LIFE))

    def _bounded(self, store: tuple[Held, ...]) -> tuple[Held, ...]:
        first = max(0, len(store) - MAX_STORED)
        total = sum(len(held.text) for held in store[first:])
        while total > self._store_bytes:
            total -= len(store[first].text)
            first += 1
        return store[first:]


def common_prefix(one: bytes, other: bytes) -> int:
    """Bytes that two texts have in common at their heads. O(what they have in common)."""
    end, start, step = min(len(one), len(other)), 0, 64
    while start < end and one[start : start + step] == other[start : start + step]:
        start, step = min(end, start + step), 2 * step
    end = min(end, start + step)
    while start < end:  # one[:start] is equal, and not more than one[:end]
        middle = (start + end + 1) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            end = middle - 1
    return start


def _saved(store: tuple[Held, ...], held: Held) -> tuple[Held, ...]:
    """The store with one more prompt: none that is a part of another one is kept."""
    if not held.text or any(each.text.startswith(held.text) for each in store):
        return store
    return (*_without_parts(store, held), held)


def _without_parts(store: tuple[Held, ...], held: Held) -> Iterator[Held]:
    return (each for each in store if not held.text.startswith(each.text))
