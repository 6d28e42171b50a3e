"""What of a request a hosted provider will probably read from its cache, corrected by its usage numbers.

Two kinds of providers, by their row of the table. Where a request carries *marks* (Anthropic), an entry is written at
each mark, and looked for at each mark and at the blocks before it, ``lookback`` in all
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching). Where caching is *automatic* (OpenAI, DeepSeek,
Gemini), every prefix of a prompt that was sent can be read. Both: nothing below the minimum, and whole increments.

Usage numbers: ``cached_tokens`` of OpenAI; ``cache_read_input_tokens`` and ``cache_creation_input_tokens`` of
Anthropic, read and written; ``prompt_cache_hit_tokens`` of DeepSeek, whose ``prompt_cache_miss_tokens`` are the rest of
the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from prefixpilot.errors import InvalidRequestError
from prefixpilot.providers.limits import CacheLimits, Lifetime
from prefixpilot.providers.ttl import CacheState, TtlModel

UNPUBLISHED: Final = Lifetime(0.0, float("inf"))
"""Where a provider names no lifetime: an entry is never surely there, and never surely gone."""


class HostedBlock(NamedTuple):
    """A content block of a prompt, tools and system text included, in the order in which the provider reads them.

    Attributes:
        key: stands for its content.
        tokens: how many it has, 0 or more; estimated as a rule.
        mark: the TTL of a cache mark at its end; ``None`` for no mark.
    """

    key: bytes
    tokens: int
    mark: str | None = None


class HostedPrediction(NamedTuple):
    """What a request will probably read.

    Attributes:
        tokens: of its longest prefix that can be read; 0 for none.
        state: ``cached`` or ``unknown`` as the lifetime of that entry has it, ``pending`` if the only one is being
            written by a request that has no answer yet, ``cold`` if there is none.
    """

    tokens: int
    state: CacheState


class _Place(NamedTuple):
    """The end of a block: digest and tokens of the prompt so far, and the lifetime of an entry written there."""

    prefix: bytes
    tokens: int
    written: Lifetime | None


class HostedCache:
    """The entries of one account and model. Times are seconds of one monotonic clock. Not thread-safe: one owner.

    Args:
        limits: what the provider says of its cache.
        scope: what else selects it: the model, the account.
        capacity: entries kept, 1 or more; the least recently used one is dropped first.

    Raises:
        ConfigError: ``capacity`` below 1.
    """

    def __init__(self, limits: CacheLimits, scope: bytes = b"", capacity: int = 100_000) -> None:
        self._limits = limits
        self._scope = scope
        self._entries = TtlModel(capacity)

    def __len__(self) -> int:
        """Entries kept, those past their end included."""
        return len(self._entries)

    def predict(self, prompt: Sequence[HostedBlock], now: float) -> HostedPrediction:
        """What ``prompt`` would read if it were sent now. Changes nothing. O(blocks).

        Raises:
            InvalidRequestError: a negative length, or a TTL that the provider does not have.
        """
        return self._read(self._places(prompt), now)[1]

    def send(self, prompt: Sequence[HostedBlock], now: float) -> HostedPrediction:
        """``prompt`` is sent: what it reads is refreshed, the rest is being written. O(blocks). As :meth:`predict`."""
        places = self._places(prompt)
        read, prediction = self._read(places, now)
        for place in places:
            if place.written is not None:
                self._entries.begin(place.prefix, place.written, now)
        if read is not None and read.written is None:
            self._entries.begin(read.prefix, self._lifetime(None), now)
            self._entries.answered(read.prefix)
        return prediction

    def observe(self, prompt: Sequence[HostedBlock], cached_tokens: int, written_tokens: int | None = None) -> None:
        """The answer to a prompt that was sent has begun, or is over, with these usage numbers. O(blocks).

        What it wrote can be read now. Longer prefixes than it read, which it did not write, are gone. If it neither
        read nor wrote anything, nothing of it is held.

        Args:
            written_tokens: ``cache_creation_input_tokens``; ``None`` where the provider does not tell.

        Raises:
            InvalidRequestError: a count is negative, or as :meth:`predict`.
        """
        for name, count in (("cached_tokens", cached_tokens), ("written_tokens", written_tokens or 0)):
            if count < 0:
                raise InvalidRequestError(name, f"is {count}", "give an int of 0 or more")
        nothing = written_tokens == 0 and not cached_tokens
        for place in self._places(prompt):
            if nothing or (place.written is None and self._limits.cacheable(place.tokens) > cached_tokens):
                self._entries.forget(place.prefix)
            elif place.written is not None:
                self._entries.answered(place.prefix)

    def failed(self, prompt: Sequence[HostedBlock], now: float) -> None:
        """A prompt that was sent got no answer: what it alone was writing is not there. O(blocks)."""
        for place in self._places(prompt):
            if self._entries.state(place.prefix, now) == "pending":
                self._entries.forget(place.prefix)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the entries are broken. O(entries)."""
        self._entries.check_invariants()

    # -- inside

    def _read(self, places: Sequence[_Place], now: float) -> tuple[_Place | None, HostedPrediction]:
        """The longest prefix that is looked for and can be read, and what it promises."""
        pending = False
        for place in self._looked_for(places):
            state = self._entries.state(place.prefix, now)
            if state in ("cached", "unknown"):
                return place, HostedPrediction(self._limits.cacheable(place.tokens), state)
            pending = pending or state == "pending"
        return None, HostedPrediction(0, "pending" if pending else "cold")

    def _looked_for(self, places: Sequence[_Place]) -> list[_Place]:
        """Places at which the provider looks for an entry, the longest prefix first."""
        if self._limits.max_breakpoints is None:
            return [place for place in reversed(places) if place.written is not None]
        back = self._limits.lookback or 1
        marks = [number for number, place in enumerate(places) if place.written is not None]
        seen = {number for mark in marks for number in range(max(mark - back + 1, 0), mark + 1)}
        return [places[number] for number in sorted(seen, reverse=True) if self._long_enough(places[number].tokens)]

    def _places(self, prompt: Sequence[HostedBlock]) -> list[_Place]:
        digest = blake2b(self._scope, digest_size=16).digest()
        tokens = 0
        places = []
        for number, block in enumerate(prompt):
            if block.tokens < 0:
                raise InvalidRequestError(f"prompt[{number}].tokens", f"is {block.tokens}", "use an int of 0 or more")
            digest = blake2b(block.key, digest_size=16, key=digest).digest()
            tokens += block.tokens
            writes = self._limits.max_breakpoints is None or block.mark is not None
            lifetime = self._lifetime(block.mark) if writes and self._long_enough(tokens) else None
            places.append(_Place(digest, tokens, lifetime))
        return places

    def _long_enough(self, tokens: int) -> bool:
        return self._limits.cacheable(tokens) > 0

    def _lifetime(self, ttl: str | None) -> Lifetime:
        lifetime = self._limits.lifetime(ttl)
        if lifetime is None and ttl is not None and self._limits.lifetimes:
            raise InvalidRequestError("mark", f"has the TTL {ttl!r}", f"use one of {dict(self._limits.lifetimes)}")
        return lifetime or UNPUBLISHED
