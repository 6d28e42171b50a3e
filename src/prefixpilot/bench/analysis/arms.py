"""One arm: requests as they would be sent, through a model of the engine's prefix cache, added up."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Final

from prefixpilot.apis.base import Prompt
from prefixpilot.bench.analysis.report import ArmResult, Point, percentile
from prefixpilot.bench.analysis.tokens import PAGE_TOKENS, segments
from prefixpilot.prefix_cache import RadixPrefixCache
from prefixpilot.providers.limits import CacheLimits, builtin_limits, model_name

POINTS: Final = 120
"""Of a curve."""
_PREFIXES: Final = (
    ("claude", "anthropic"),
    ("gpt", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("gemini", "gemini"),
    ("deepseek", "deepseek"),
)


class Arm:
    """A way to send the log.

    Args:
        name: of the arm.
        cache_tokens: capacity of its cache; ``None``: no bound.
    """

    def __init__(self, name: str, cache_tokens: int | None) -> None:
        self.name = name
        self._cache = RadixPrefixCache(cache_tokens)
        self._tokens = self._cached = 0
        self._billed: float | None = 0.0
        self._prefilled = array("q")
        self._curve: list[Point] = []
        self._every = 1

    def take(self, prompt: Prompt) -> None:
        """The engine gets this prompt next."""
        access = self._cache.access(segments(prompt))
        reused = min(access.cached_tokens, access.total_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
        access = access._replace(cached_tokens=reused)  # whole pages, and at least the last token is computed
        self._tokens += access.total_tokens
        self._cached += access.cached_tokens
        self._prefilled.append(access.prefilled_tokens)
        if self._billed is not None:
            price = _prices(str(prompt.body.get("model")))
            self._billed = None if price is None else self._billed + price.billed(*access[:2])
        count = len(self._prefilled)
        if count % self._every == 0:
            self._curve.append(Point(count, self._tokens, self._cached))
            if len(self._curve) >= 2 * POINTS:
                self._curve, self._every = self._curve[1::2], 2 * self._every

    def result(self) -> ArmResult:
        """What came of it."""
        end = Point(len(self._prefilled), self._tokens, self._cached)
        curve = self._curve if self._curve[-1:] == [end] else [*self._curve, end]
        return ArmResult(
            self.name,
            self._tokens,
            self._cached,
            percentile(self._prefilled, 0.5),
            percentile(self._prefilled, 0.95),
            self._billed if self._prefilled else None,
            tuple(curve),
        )


class Prices:
    """What a provider bills for the tokens of a prompt, in uncached input tokens."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        self._read = 1.0 if limits.read is None else limits.read
        self._write = limits.write_price() or 1.0

    def billed(self, cached: int, total: int) -> float:
        """Of a prompt of which so many tokens were cached; what is written to the cache has its own price."""
        cached = self._limits.cacheable(cached)
        return cached * self._read + (total - cached) * self._write


@lru_cache(256)
def _prices(model: str) -> Prices | None:
    """By the name of the model; ``None`` for a model of one's own."""
    name = model_name(model).rpartition("/")[2]
    provider = next((provider for start, provider in _PREFIXES if name.startswith(start)), None)
    limits = None if provider is None else builtin_limits().of(provider, model)
    return None if limits is None else Prices(limits)
