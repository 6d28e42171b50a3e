"""llama.cpp's prompt cache: slots that hold one prompt each, and a store of earlier prompts in host RAM.

What a request does to them, as its server does it (measured with xllamacpp 2026.10, separate KV caches a slot)::

    slot empty ......................... nothing is reused, the store is not asked
    half of the slot's prompt is kept .. the common prefix is reused; the rest of the slot's prompt is gone from it
    less is kept ....................... the slot's prompt goes to the store; the stored prompt that has more in common,
                                         of which a quarter at least is kept, comes out of the store into the slot
    then ............................... prompts of all other idle slots are copied to the store

So a prompt that is taken from the store is *used up*, unless an idle slot holds it too. Prompts are bytes here: the
thresholds are ratios, so that bytes do as well as tokens where text is even.
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
MAX_STORED: Final = 256
AT_RISK: Final = 0.2
"""Share of what a prompt is worth that is lost when no slot holds it any more, though the store does."""
HALF_LIFE: Final = 64
"""Requests after which a prompt is worth half as much."""


class Held(NamedTuple):
    """A prompt that is held.

    Attributes:
        text: of it.
        worth: how likely it is to be gone on with, 0 to 1.
        used: number of the request that left it.
    """

    text: bytes
    worth: float
    used: int


EMPTY: Final = Held(b"", 0.0, 0)


class Placement(NamedTuple):
    """What a slot does for a prompt.

    Attributes:
        slot: its id.
        cached: bytes of the prompt that need not be computed.
        lost: bytes, weighted by worth, of other prompts that would have to be computed again.
    """

    slot: int
    cached: int
    lost: float

    @property
    def gain(self) -> float:
        """What is saved now, less what is lost for later."""
        return self.cached - self.lost


class _Step(NamedTuple):
    """What happens to a slot and to the store before a prompt is computed.

    Attributes:
        cached: see :class:`Placement`.
        store: as it is then.
        taken: the prompt that came out of the store, or stood in the slot.
    """

    cached: int
    store: tuple[Held, ...]
    taken: Held


class SlotCache:
    """A picture of llama.cpp's slots and store. Not thread-safe. Memory: the bytes of the prompts held, bounded.

    Args:
        slots: how many there are, 1 or more.
        store_bytes: bound of the stored prompts in all; 0: there is no store. No more than MAX_STORED are followed.
        copies_idle: prompts of idle slots are copied to the store when a request begins elsewhere.
    """

    def __init__(self, slots: int, store_bytes: int = 1 << 20, *, copies_idle: bool = True) -> None:
        if slots < 1:
            raise ConfigError("slots", f"is {slots}", "use an int of 1 or more")
        if store_bytes < 0:
            raise ConfigError("store_bytes", f"is {store_bytes}", "use an int of 0 or more")
        self._slots = [EMPTY] * slots
        self._busy = [False] * slots
        self._store: tuple[Held, ...] = ()
        self._store_bytes = store_bytes
        self._copies_idle = copies_idle
        self._now = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def idle(self) -> tuple[int, ...]:
        """Slots that compute nothing."""
        return tuple(slot for slot, busy in enumerate(self._busy) if not busy)

    @property
    def held_bytes(self) -> int:
        """Of all prompts, in slots and store."""
        return sum(len(held.text) for held in (*self._slots, *self._store))

    def prompt_of(self, slot: int) -> bytes:
        """What a slot holds."""
        return self._slots[self._checked(slot)].text

    def preview(self, prompt: bytes, slot: int) -> Placement:
        """What a slot would do for a prompt. Changes nothing. O(bytes * prompts held) at worst."""
        step = self._step(prompt, self._checked(slot))
        return Placement(slot, step.cached, self._lost(prompt, slot, step))

    def best(self, prompt: bytes) -> Placement | None:
        """The idle slot with the most gain, of equal ones the one used least lately; ``None`` if all are busy."""
        previews = [self.preview(prompt, slot) for slot in self.idle]
        return max(previews, key=lambda p: (p.gain, -self._slots[p.slot].used, -p.slot), default=None)

    def own_choice(self, prompt: bytes) -> int | None:
        """The slot that llama.cpp takes if it is told none; ``None`` if all are busy."""
        common = {slot: common_prefix(self._slots[slot].text, prompt) for slot in self.idle}
        similar = [slot for slot, length in common.items() if length > SIMILAR * len(prompt)]
        if similar:
            return max(similar, key=lambda slot: (common[slot], -slot))
        return min(common, key=lambda slot: (self._slots[slot].used, -slot), default=None)

    def place(self, prompt: bytes, slot: int, worth: float = 0.0) -> int:
        """A request with that prompt begins in an idle slot. Returns the bytes of it that are cached.

        Raises:
            InvalidInputError: there is no such slot, or it is busy.
        """
        if self._busy[self._checked(slot)]:
            raise InvalidInputError("slot", f"{slot} is busy", "place it in one of `idle`")
        self._now += 1
        step = self._step(prompt, slot)
        self._store = step.store
        self._slots[slot] = Held(prompt, worth, self._now)
        self._busy[slot] = True
        if self._copies_idle:
            for other in self.idle:
                self._store = _saved(self._store, self._slots[other])
        self._bound_store()
        return step.cached

    def release(self, slot: int, *, failed: bool = False) -> None:
        """The request in a slot is over; ``failed``: nobody knows what the slot holds now."""
        self._busy[self._checked(slot)] = False
        if failed:
            self._slots[slot] = EMPTY

    def empty(self, slot: int) -> None:
        """The slot turned out to hold nothing."""
        self._slots[self._checked(slot)] = EMPTY

    def forget_store(self) -> None:
        """The store turned out to hold other things than was thought."""
        self._store = ()

    def clear_idle(self) -> None:
        """Nothing is known but of slots that compute."""
        for slot in self.idle:
            self._slots[slot] = EMPTY
        self._store = ()

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the structure is broken. O(everything held)."""
        if sum(len(held.text) for held in self._store) > self._store_bytes:
            raise InvariantError("the store holds more than its bound")
        if any(not held.text for held in self._store):
            raise InvariantError("the store holds an empty prompt")
        texts = sorted(held.text for held in self._store)
        if any(later.startswith(text) for text, later in pairwise(texts)):
            raise InvariantError("a stored prompt stands inside another one")

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < len(self._slots):
            raise InvalidInputError("slot", f"is {slot}", f"use 0 to {len(self._slots) - 1}")
        return slot

    def _step(self, prompt: bytes, slot: int) -> _Step:
        held = self._slots[slot]
        common = common_prefix(held.text, prompt)
        similar = common > SIMILAR * len(prompt)
        if not held.text or (similar and common >= KEPT_OF_SLOT * len(held.text)):
            return _Step(common, self._store, held)
        store = _saved(self._store, held) if self._store_bytes else ()
        kept, best, taken = common / len(held.text), common, held
        for each in store:
            length = common_prefix(each.text, prompt)
            share = length / len(each.text)
            if share >= KEPT_OF_STORED and share > kept and length > best:
                kept, best, taken = share, length, each
        return _Step(best, tuple(each for each in store if each is not taken or taken is held), taken)

    def _lost(self, prompt: bytes, slot: int, step: _Step) -> float:
        """Of what stood in the slot, and of what came out of the store. What is left in the store only may be taken
        from there by the next prompt that shares its head."""
        held, taken = self._slots[slot], step.taken
        seated = [prompt, *(each.text for other, each in enumerate(self._slots) if other != slot)]
        stored = [each.text for each in step.store]
        lost = self._worth(held) * AT_RISK * _missing(held.text, seated)
        touched = {each.text: each for each in (held, taken)}.values()
        return lost + sum(self._worth(each) * (1 - AT_RISK) * _missing(each.text, seated + stored) for each in touched)

    def _worth(self, held: Held) -> float:
        return float(held.worth * 0.5 ** ((self._now - held.used) / HALF_LIFE))

    def _bound_store(self) -> None:
        first = max(0, len(self._store) - MAX_STORED)
        total = sum(len(held.text) for held in self._store[first:])
        while total > self._store_bytes:
            total -= len(self._store[first].text)
            first += 1
        self._store = self._store[first:]


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


def _missing(text: bytes, held: list[bytes]) -> int:
    """Bytes of a prompt that nothing of what is held has at its head."""
    return len(text) - max((common_prefix(text, each) for each in held), default=0)
