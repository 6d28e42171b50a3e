"""Our own model of the engine's cache, as the view asks it: prompts in tokens, and what selects a cache."""

from __future__ import annotations

from prefixpilot.prefix_cache import Segment
from prefixpilot.proxy.cache.prompts import EnginePrompt
from prefixpilot.proxy.cache.watch import Facts, Prediction
from prefixpilot.residency.estimated import EstimatedCache, token_segments


class OwnModel:
    """Predicts, and is corrected by each report. Not thread-safe.

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

    @property
    def capacity_tokens(self) -> int | None:
        """Given or believed; ``None`` as long as nothing is known of it."""
        return self._cache.capacity_tokens

    def predict(self, prompt: EnginePrompt, facts: Facts) -> Prediction:
        """Cached tokens that the engine would report now. O(tokens)."""
        return Prediction(self._cache.predict(self._segments(prompt, facts)), "model", self._page_size)

    def observe(self, prompt: EnginePrompt, facts: Facts, cached_tokens: int | None, predicted: int | None) -> None:
        """The engine has had this prompt; ``None``: it did not say how much of it was cached. O(tokens)."""
        segments = self._segments(prompt, facts)
        reported = self._cache.predict(segments) if cached_tokens is None else cached_tokens
        self._cache.observe(segments, reported, predicted=predicted)

    def _segments(self, prompt: EnginePrompt, facts: Facts) -> list[Segment]:
        """A model's name may be that of an adapter: prompts of another name are other prompts."""
        extra = () if facts.salt is None else ((facts.salt,),)
        return token_segments(prompt.token_ids, self._page_size, extra, facts.model or None)
