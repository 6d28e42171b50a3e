"""Our own model of the engine's cache, as the view asks it: prompts in tokens, and what selects a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import Facts, Prediction
from prefixpilot.residency.answers import AnsweredPrompts, Extent, PagedPrompt
from prefixpilot.residency.estimated import EstimatedCache

_MEMORY: Final = 0.9
"""Weight of what was seen of answers before, against the newest one."""
_BELIEVED: Final = 0.5
"""Share of answers that has to come back as they were generated, for any to be believed in."""


class OwnModel:
    """Predicts, and is corrected by each report. Not thread-safe.

    A prompt that goes on from an earlier one finds that one's answer in the cache too, if its text makes the tokens
    that were generated: where answers do not come back so, the model stops taking them to.

    Attributes:
        dimensions: page size and capacity, as given.

    Args:
        page_size: tokens in a page.
        capacity_tokens: of the engine's cache; ``None``: learnt.
    """

    def __init__(self, page_size: int, capacity_tokens: int | None) -> None:
        self.dimensions = (page_size, capacity_tokens)
        self._page_size = page_size
        self._cache = EstimatedCache(page_size, capacity_tokens)
        self._answers = AnsweredPrompts()
        self._come_back = 1.0

    @property
    def capacity_tokens(self) -> int | None:
        """Given or believed; ``None`` as long as nothing is known of it."""
        return self._cache.capacity_tokens

    def predict(self, prompt: EnginePrompt, facts: Facts) -> Prediction:
        """Cached tokens that the engine would report now. O(tokens)."""
        paged = self._paged(prompt, facts)
        tokens, usable = self._cache.predict(paged.segments(self._believed(paged))), self._whole(prompt.tokens - 1)
        return Prediction(tokens, "model", self._page_size, usable=usable)

    def observe(
        self,
        prompt: EnginePrompt,
        facts: Facts,
        cached_tokens: int | None,
        predicted: int | None,
        completion_tokens: int | None = None,
    ) -> None:
        """The engine has had this prompt, and generated so many tokens. O(tokens).

        Args:
            cached_tokens: ``None``: it did not say how much of it was cached.
            predicted: when it was sent, if it was.
            completion_tokens: ``None``: it did not say.
        """
        paged = self._paged(prompt, facts)
        if cached_tokens is not None:
            predicted = self._judge_answers(paged, cached_tokens, predicted)
        segments = paged.segments(self._believed(paged))
        reported = self._cache.predict(segments) if cached_tokens is None else cached_tokens
        computed = max((completion_tokens or 0) - 1, 0)  # nothing came after the last one
        self._cache.observe(segments, reported, predicted=predicted, generated_tokens=computed)
        if self._cache.answer is not None:
            self._answers.note(paged, self._cache.answer)

    def _paged(self, prompt: EnginePrompt, facts: Facts) -> PagedPrompt:
        """A model's name may be that of an adapter: prompts of another name are other prompts."""
        extra = () if facts.salt is None else ((facts.salt,),)
        return PagedPrompt(prompt.token_ids, self._page_size, extra, facts.model or None)

    def _believed(self, paged: PagedPrompt) -> Sequence[Extent]:
        return self._answers.extents(paged) if self._come_back >= _BELIEVED else ()

    def _judge_answers(self, paged: PagedPrompt, cached: int, predicted: int | None) -> int | None:
        """Whether its last answer came back as it was generated; if not, what is to be predicted without it."""
        extents = self._answers.extents(paged)
        if not extents or cached < self._whole(extents[-1].start):
            return predicted  # the hit ended before it
        last = extents[-1]
        came_back = cached >= self._whole(last.end) or self._whole(last.start) == self._whole(last.end)
        self._come_back = _MEMORY * self._come_back + (1 - _MEMORY) * came_back
        if came_back:
            return predicted
        self._answers.forget(last.place)
        without = self._cache.predict(paged.segments(self._believed(paged)))
        return without if predicted is None else min(predicted, without)

    def _whole(self, tokens: int) -> int:
        return tokens // self._page_size * self._page_size
