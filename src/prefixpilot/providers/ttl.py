"""What a provider's cache probably still holds: entries that live for a time after their last use.

A model of the provider, not a record of it: nobody tells us of an eviction. The clock is an argument.

Sources: Anthropic counts the lifetime from the *start* of the request that writes or reads an entry, refreshes it at
every use, and lets an entry be read only once the first answer has begun; a request that reads a prefix writes only
what lies behind it, so an entry keeps the TTL with which it was written
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching). OpenAI names a range (5 to 10 minutes without
use, up to an hour): between its ends nothing is known
(https://developers.openai.com/api/docs/guides/prompt-caching).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from prefixpilot.errors import ConfigError, InvariantError
from prefixpilot.providers.limits import Lifetime

CacheState = Literal["cached", "unknown", "pending", "cold"]
"""``cached``: within the lifetime that the provider promises. ``unknown``: between the shortest and the longest that it
names. ``pending``: written by a request that has no answer yet. ``cold``: never sent, forgotten, or past its end."""


@dataclass(slots=True)
class _Entry:
    lifetime: Lifetime
    used: float
    readable: bool
    seen: bool = False


class TtlModel:
    """Entries by prefix, the least recently used one dropped first. Every method is O(1).

    Times are seconds of one monotonic clock; a time before an earlier one is read as that earlier one.

    Args:
        capacity: entries kept, 1 or more.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ConfigError("capacity", f"is {capacity!r}", "use an int of 1 or more")
        self._capacity = capacity
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._now = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def state(self, prefix: bytes, now: float) -> CacheState:
        """What a request with this prefix would meet at ``now``. Changes nothing."""
        entry = self._entries.get(prefix)
        if entry is None:
            return "cold"
        idle = max(now, self._now) - entry.used
        if idle >= entry.lifetime.at_most:
            return "cold"
        if not entry.readable:
            return "pending"
        return "cached" if idle < entry.lifetime.at_least else "unknown"

    def lapsed(self, prefix: bytes, now: float) -> bool:
        """Whether an entry was written here whose published lifetime is over at ``now``, or may be."""
        entry = self._entries.get(prefix)
        if entry is None or entry.lifetime.at_most == float("inf"):
            return False
        return max(now, self._now) - entry.used >= entry.lifetime.at_least

    def pending(self, prefix: bytes) -> bool:
        """Whether an entry is being written here, by a request that has no answer yet."""
        entry = self._entries.get(prefix)
        return entry is not None and not entry.readable

    def seen(self, prefix: bytes) -> bool:
        """Whether the provider has said that it holds this one, since it was last written anew."""
        entry = self._entries.get(prefix)
        return entry is not None and entry.seen

    def begin(self, prefix: bytes, lifetime: Lifetime, now: float) -> CacheState:
        """A request with this prefix starts: what it meets. A hit refreshes the entry; else one is written, and it can
        be read once :meth:`answered` says so."""
        state = self.state(prefix, now)
        self._now = max(now, self._now)
        entry = self._entries.get(prefix)
        if entry is None or state in ("cold", "unknown"):
            # It is not known whether an "unknown" one was hit or is written anew: the shorter promise of the two.
            kept = lifetime if entry is None or state == "cold" else min(lifetime, entry.lifetime)
            self._entries[prefix] = _Entry(kept, self._now, readable=False)
        else:
            entry.used = self._now
        self._entries.move_to_end(prefix)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return state

    def answered(self, prefix: bytes, *, seen: bool = False) -> None:
        """The answer to a request with this prefix has begun: its entry can be read. Nothing if it is not held.

        ``seen``: the provider says so itself.
        """
        entry = self._entries.get(prefix)
        if entry is not None:
            entry.readable = True
            entry.seen = entry.seen or seen

    def forget(self, prefix: bytes) -> None:
        """The provider reported a miss, or the request failed: nothing is held of it."""
        self._entries.pop(prefix, None)

    def check_invariants(self) -> None:
        """Raise :class:`InvariantError` unless the bound holds and entries stand in the order of their use."""
        if len(self._entries) > self._capacity:
            raise InvariantError(f"{len(self._entries)} entries, capacity {self._capacity}")
        used = [entry.used for entry in self._entries.values()]
        if used != sorted(used) or any(time > self._now for time in used):
            raise InvariantError("entries are not in the order of their use")
