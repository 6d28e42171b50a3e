"""Our own model of a cache that tells nothing, corrected by what the engine reports.

The model is a paged cache (:mod:`prefixpilot.prefix_cache`). An engine that reports fewer cached tokens than the model
holds has evicted the first page that is missing, and with LRU all that was used before it: so its capacity is at most
the stack distance of that page (Mattson and others, Evaluation techniques for storage hierarchies, 1970), which is
how a capacity that nobody told is learnt.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Final

from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.prefix_cache import LRU, EvictionPolicy, PagedPrefixCache, Segment
from prefixpilot.residency.base import reported_tokens, require
from prefixpilot.residency.page_keys import page_keys

_PROOF_EVERY: Final = 8
"""Of the reports that were right, every so many are asked for what they prove of the capacity: it costs O(nodes)."""


class Verdict(Enum):
    """What an engine's report says of the model."""

    RIGHT = "right"
    """It held what it was predicted to hold."""
    LESS = "less"
    """It held less: what was missing has been evicted from the model."""
    MORE = "more"
    """It held more: the believed capacity was too small, if it is not a given one."""


def token_segments(
    token_ids: Sequence[int], page_size: int, extra_keys: Sequence[Hashable] = (), adapter: str | None = None
) -> list[Segment]:
    """A prompt of known tokens as :class:`EstimatedCache` takes it: one segment a full page, one for the rest.

    Arguments as in :func:`~prefixpilot.residency.page_keys.page_keys`. O(tokens).
    """
    segments = [Segment(key, page_size) for key in page_keys(token_ids, page_size, extra_keys, adapter)]
    rest = tuple(token_ids[len(segments) * page_size :])
    return [*segments, Segment(rest, len(rest))] if rest else segments


class EstimatedCache:
    """What an engine probably holds, by what was sent to it. Not thread-safe: one owner.

    Attributes:
        answer: to the prompt observed last, as it is held; ``None`` if nothing was generated.

    Args:
        page_size: tokens in a page; 1 for a cache that is exact to the token.
        capacity_tokens: the engine's capacity; ``None``: not known, and learnt.
        policy: what the engine evicts first. A capacity is learnt with LRU only.
        tolerance: share of a prompt by which a report may differ without saying anything, 0 or more; for prompts
            whose lengths are estimated.
        max_tokens: bound on what the model holds while no capacity is known.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(
        self,
        page_size: int,
        capacity_tokens: int | None = None,
        *,
        policy: EvictionPolicy = LRU,
        tolerance: float = 0.0,
        max_tokens: int = 8_000_000,
    ) -> None:
        if not tolerance >= 0:
            raise ConfigError("tolerance", f"is {tolerance}", "use a share of 0 or more")
        self._given = capacity_tokens is not None
        self._cache = PagedPrefixCache(max_tokens if capacity_tokens is None else capacity_tokens, page_size, policy)
        self._learns = policy is LRU and not self._given
        self._lru = policy is LRU
        self._tolerance = tolerance
        self._max = max_tokens
        self._learnt = False
        self._proved = 0
        self._reports = 0
        self.answer: Segment | None = None
        self._scale = 1.0

    @property
    def capacity_tokens(self) -> int | None:
        """The capacity that is given or believed; ``None`` as long as nothing is known of it."""
        return self._cache.capacity_tokens if self._given or self._learnt else None

    @property
    def used_tokens(self) -> int:
        """Tokens that the engine is believed to hold."""
        return self._cache.used_tokens

    def predict(self, prompt: Sequence[Segment]) -> int:
        """Cached tokens that the engine would report for ``prompt`` now. Changes nothing. O(segments).

        Raises:
            InvalidRequestError: a segment has a negative length.
        """
        return self._reported(prompt, self._cache.match_prefix(prompt), self._scale)

    def observe(
        self,
        prompt: Sequence[Segment],
        cached_tokens: int,
        *,
        prompt_tokens: int | None = None,
        predicted: int | None = None,
        generated_tokens: int = 0,
    ) -> Verdict:
        """The engine has had ``prompt`` and reported ``cached_tokens`` of it as cached: correct, then hold the prompt.

        O(segments) where the model was right, O(nodes held) where not.

        Args:
            prompt_tokens: length that the engine counted; how it differs from the prompt's is taken as a scale, for
                prompts whose lengths are estimated.
            predicted: what :meth:`predict` said when the prompt was sent, if others came between: the engine having
                less than what came in later says nothing.
            generated_tokens: of the answer, as far as they are computed; they are held too, behind the prompt, under a
                name that is ``answer`` afterwards.

        Raises:
            InvalidRequestError: a count is negative; nothing has changed then.
        """
        for name, count in (("cached_tokens", cached_tokens), ("generated_tokens", generated_tokens)):
            if count < 0:
                raise InvalidRequestError(name, f"is {count}", "give an int of 0 or more")
        total = sum(segment.tokens for segment in prompt)
        scale = prompt_tokens / total if prompt_tokens and total else 1.0
        verdict = self._judge(prompt, cached_tokens, predicted, scale, total)
        self._scale = scale if not self._reports else 0.9 * self._scale + 0.1 * scale
        self._reports += 1
        self.answer = Segment(("answer", self._reports), generated_tokens) if generated_tokens else None
        self._cache.access([*prompt, *([] if self.answer is None else [self.answer])])
        return verdict

    def clear(self) -> None:
        """The engine holds nothing any more. What was learnt of its capacity stays."""
        self._cache.clear()

    # -- inside

    def _reported(self, prompt: Sequence[Segment], held: int, scale: float) -> int:
        total = sum(segment.tokens for segment in prompt)
        return reported_tokens(round(held * scale), round(total * scale), self._cache.page_size)

    def _judge(
        self, prompt: Sequence[Segment], cached: int, predicted: int | None, scale: float, total: int
    ) -> Verdict:
        believed = self._reported(prompt, self._cache.match_prefix(prompt), scale)
        slack = self._tolerance * total * scale
        floor = believed if predicted is None else min(believed, predicted)
        if cached + slack < floor:
            self._less(prompt, round(cached / scale))
            return Verdict.LESS
        if cached > believed + slack:
            self._more()
            return Verdict.MORE
        if self._learns and cached and self._reports % _PROOF_EVERY == 0:
            page = self._cache.page_size
            last = round(cached / scale) - 1
            self._proved = max(self._proved, self._cache.newer_tokens(prompt, last) + page)
        return Verdict.RIGHT

    def _less(self, prompt: Sequence[Segment], held: int) -> None:
        """Of ``prompt`` no more than ``held`` tokens are there, and with LRU nothing that was used before the rest."""
        if self._lru:
            capacity = self._cache.capacity_tokens
            fits = max(self._cache.newer_tokens(prompt, held), self._cache.page_size)
            self._cache.resize(min(fits, self._max))
            if self._learns and fits >= self._proved:
                self._learnt = True
            else:
                # Less than it has been seen to hold: others use it too, or it was cleared. It is as large as before.
                self._cache.resize(capacity)
                self._proved = (self._proved + fits) // 2
        self._cache.truncate(prompt, held)

    def _more(self) -> None:
        capacity = self._cache.capacity_tokens
        if self._learnt and capacity is not None:
            self._cache.resize(min(capacity + max(capacity // 16, self._cache.page_size), self._max))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the model is broken. O(everything held)."""
        self._cache.check_invariants()
        capacity = self._cache.capacity_tokens
        require(capacity is not None, "estimated cache: it has no bound")
        require(self._given or (capacity or 0) <= self._max, "estimated cache: its bound is above the largest")
        require(self._scale > 0, "estimated cache: the scale is not positive")
