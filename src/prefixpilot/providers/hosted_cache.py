"""What of a request a hosted provider will probably read from its cache, corrected by its usage numbers.

Three kinds of providers, by their row of the table. Where a request carries *marks* (Anthropic; OpenAI from GPT-5.6
on), an entry is written at each mark, and looked for at each mark and at the blocks before it
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching). Where prompts are kept as *whole units*
(DeepSeek), one is written at the end of each prompt, and where two prompts were seen to part
(https://api-docs.deepseek.com/guides/kv_cache). Else (OpenAI before GPT-5.6, Gemini) every prefix of a prompt that
was sent can be read. All: nothing below the minimum, and whole increments.

Lengths come as estimates. The provider's own counts correct them: all are scaled by what it counted lately, and a
prefix whose length it has told is known to the token.

Usage numbers: ``cached_tokens`` of OpenAI; ``cache_read_input_tokens`` and ``cache_creation_input_tokens`` of
Anthropic, read and written; ``prompt_cache_hit_tokens`` of DeepSeek, whose ``prompt_cache_miss_tokens`` are the rest of
the prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from prefixpilot.errors import InvalidRequestError
from prefixpilot.providers.limits import CacheLimits, Lifetime
from prefixpilot.providers.ttl import CacheState, TtlModel

V = TypeVar("V")

UNPUBLISHED: Final = Lifetime(0.0, float("inf"))
"""Where a provider names no lifetime: an entry is never surely there, and never surely gone."""
FORGETS: Final = 0.9
"""Weight of the counts before, at each new one, in the scale of estimates."""
DOUBT_TOKENS: Final = 64
DOUBT: Final = 0.125
"""By so much, and by that share, an estimated length may exceed a report without contradicting it."""


class HostedBlock(NamedTuple):
    """A content block of a prompt, tools and system text included, in the order in which the provider reads them.

    Attributes:
        key: stands for its content.
        tokens: how many it has, 0 or more; estimated as a rule.
        mark: the TTL of a cache mark at its end, or that the whole request asks for; ``None`` for no mark.
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


class HostedPast(NamedTuple):
    """What was sent of a prompt before, whatever became of it. Tokens; 0 for nothing.

    Attributes:
        lapsed: of its longest prefix whose published lifetime is over, or may be.
        seen: of its longest prefix within its lifetime that the provider has said to hold.
        below: of its longest prefix that was sent before, if that is below the minimum.
    """

    lapsed: int
    seen: int
    below: int


@dataclass(frozen=True, slots=True)
class _Place:
    """The end of a block: digest and tokens of the prompt so far, and the lifetime of an entry written there."""

    prefix: bytes
    tokens: int
    written: Lifetime | None


class HostedCache:
    """The entries of one account and model. Times are seconds of one monotonic clock. Not thread-safe: one owner.

    Args:
        limits: what the provider says of its cache.
        scope: what else selects it: the model, the account.
        capacity: entries kept, 1 or more; the least recently used one is dropped first. As many prefixes that were
            sent, and as many lengths that the provider told, are remembered.

    Raises:
        ConfigError: ``capacity`` below 1.
    """

    def __init__(self, limits: CacheLimits, scope: bytes = b"", capacity: int = 100_000) -> None:
        self._limits = limits
        self._scope = scope
        self._capacity = capacity
        self._entries = TtlModel(capacity)
        self._sent: OrderedDict[bytes, None] = OrderedDict()
        self._lengths: OrderedDict[bytes, int] = OrderedDict()
        self._counted = self._estimated = 0.0

    def __len__(self) -> int:
        """Entries kept, those past their end included."""
        return len(self._entries)

    @property
    def scale(self) -> float:
        """Tokens that the provider counts for one that is estimated; 1 before it has counted."""
        return self._counted / self._estimated if self._estimated else 1.0

    def predict(self, prompt: Sequence[HostedBlock], now: float) -> HostedPrediction:
        """What ``prompt`` would read if it were sent now. Changes nothing. O(blocks).

        Raises:
            InvalidRequestError: a negative length, or a TTL that the provider does not have.
        """
        return self._read(self._places(prompt), now)[1]

    def past(self, prompt: Sequence[HostedBlock], now: float) -> HostedPast:
        """What was sent of ``prompt`` before. Changes nothing. O(blocks). As :meth:`predict`."""
        places = self._places(prompt)
        looked = self._looked_for(places)
        lapsed = next((p.tokens for p in looked if self._entries.lapsed(p.prefix, now)), 0)
        alive = (p.tokens for p in looked if self._entries.seen(p.prefix) and not self._entries.lapsed(p.prefix, now))
        sent = max((place.tokens for place in places if place.prefix in self._sent), default=0)
        below = 0 if self._long_enough(sent) else sent
        return HostedPast(self._limits.cacheable(lapsed), self._limits.cacheable(next(alive, 0)), below)

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
        if self._limits.shares:
            self._share(places, now)
        for place in places:
            _remember(self._sent, place.prefix, None, self._capacity)
        return prediction

    def observe(
        self,
        prompt: Sequence[HostedBlock],
        cached_tokens: int,
        written_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        """The answer to a prompt that was sent has begun, or is over, with these usage numbers. O(blocks).

        What it wrote can be read now. Longer prefixes than it read, which it did not write, are gone. If it neither
        read nor wrote anything, nothing of it is held.

        Args:
            written_tokens: ``cache_creation_input_tokens``; ``None`` where the provider does not tell.
            prompt_tokens: of the whole prompt, cached ones included; ``None`` where it is not known.

        Raises:
            InvalidRequestError: a count is negative, or as :meth:`predict`.
        """
        counts = (
            ("cached_tokens", cached_tokens),
            ("written_tokens", written_tokens),
            ("prompt_tokens", prompt_tokens),
        )
        for name, count in counts:
            if count is not None and count < 0:
                raise InvalidRequestError(name, f"is {count}", "give an int of 0 or more")
        nothing = written_tokens == 0 and not cached_tokens
        held = cached_tokens + (written_tokens or 0)
        for place in self._places(prompt):
            if place.written is not None or self._entries.pending(place.prefix):
                self._entries.answered(place.prefix, seen=0 < place.tokens <= held + DOUBT_TOKENS)
            elif self._contradicts(place, cached_tokens):
                self._entries.forget(place.prefix)
            if nothing:
                self._entries.forget(place.prefix)
        self._measure(prompt, held if written_tokens else None, prompt_tokens)

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
        if self._limits.everywhere:
            return [place for place in reversed(places) if place.written is not None]
        back = self._limits.lookback or len(places)
        marks = [number for number, place in enumerate(places) if place.written is not None]
        seen = {number for mark in marks for number in range(max(mark - back + 1, 0), mark + 1)}
        return [places[number] for number in sorted(seen, reverse=True) if self._long_enough(places[number].tokens)]

    def _share(self, places: Sequence[_Place], now: float) -> None:
        """What this prompt has in common with earlier ones becomes an entry: it was seen for the second time."""
        common = next((place for place in reversed(places) if place.prefix in self._sent), None)
        if (
            common is not None
            and self._entries.state(common.prefix, now) == "cold"
            and self._long_enough(common.tokens)
        ):
            self._entries.begin(common.prefix, self._lifetime(None), now)

    def _contradicts(self, place: _Place, cached_tokens: int) -> bool:
        """Whether a report says that an entry at this place was not read."""
        return self._limits.cacheable(place.tokens) > cached_tokens + max(DOUBT_TOKENS, DOUBT * place.tokens)

    def _measure(self, prompt: Sequence[HostedBlock], marked: int | None, whole: int | None) -> None:
        """Learn lengths: of the prefix up to the last mark, and of the whole prompt."""
        ends = [number for number, block in enumerate(prompt) if block.mark is not None]
        digests = self._digests(prompt)
        if marked and ends and not self._limits.everywhere:
            _remember(self._lengths, digests[ends[-1]], marked, self._capacity)
        if whole and prompt:
            _remember(self._lengths, digests[-1], whole, self._capacity)
            estimate = sum(block.tokens for block in prompt)
            self._counted = FORGETS * self._counted + whole
            self._estimated = FORGETS * self._estimated + max(estimate, 1)

    def _digests(self, prompt: Sequence[HostedBlock]) -> list[bytes]:
        digest = blake2b(self._scope, digest_size=16).digest()
        digests = []
        for block in prompt:
            digest = blake2b(block.key, digest_size=16, key=digest).digest()
            digests.append(digest)
        return digests

    def _places(self, prompt: Sequence[HostedBlock]) -> list[_Place]:
        tokens, scale = 0.0, self.scale
        places = []
        for number, (block, digest) in enumerate(zip(prompt, self._digests(prompt), strict=True)):
            if block.tokens < 0:
                raise InvalidRequestError(f"prompt[{number}].tokens", f"is {block.tokens}", "use an int of 0 or more")
            tokens = float(self._lengths.get(digest, tokens + block.tokens * scale))
            length = round(tokens)
            writes = self._writes(block, last=number == len(prompt) - 1)
            lifetime = self._lifetime(block.mark) if writes and self._long_enough(length) else None
            places.append(_Place(digest, length, lifetime))
        return places

    def _writes(self, block: HostedBlock, *, last: bool) -> bool:
        if self._limits.everywhere:
            return True
        marked = self._limits.max_breakpoints is not None and block.mark is not None
        return marked or (self._limits.max_breakpoints is None and last)

    def _long_enough(self, tokens: int) -> bool:
        return self._limits.cacheable(tokens) > 0

    def _lifetime(self, ttl: str | None) -> Lifetime:
        lifetime = self._limits.lifetime(ttl)
        if lifetime is None and ttl is not None and self._limits.lifetimes:
            raise InvalidRequestError("mark", f"has the TTL {ttl!r}", f"use one of {dict(self._limits.lifetimes)}")
        return lifetime or UNPUBLISHED


def _remember(kept: OrderedDict[bytes, V], key: bytes, value: V, capacity: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > capacity:
        kept.popitem(last=False)
