"""Run a sequence of prompts through a cache model and add up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache.base import Access, PrefixCache, Segment


@dataclass(frozen=True, slots=True)
class Window:
    """A run of consecutive requests.

    Attributes:
        first: index of its first request.
        requests: how many it has.
        total_tokens, cached_tokens: sums over it.
    """

    first: int
    requests: int
    total_tokens: int
    cached_tokens: int

    @property
    def hit_rate(self) -> float:
        """Cached share of the prompt tokens; 0.0 where there are none."""
        return _share(self.cached_tokens, self.total_tokens)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What every request of a replay did, in the order sent."""

    accesses: tuple[Access, ...]

    @property
    def total_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(a.total_tokens for a in self.accesses)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the cache served."""
        return sum(a.cached_tokens for a in self.accesses)

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that the engine had to compute."""
        return sum(a.prefilled_tokens for a in self.accesses)

    @property
    def evicted_tokens(self) -> int:
        """Tokens that went to make room."""
        return sum(a.evicted_tokens for a in self.accesses)

    @property
    def hit_rate(self) -> float:
        """Cached share of all prompt tokens; 0.0 where there are none."""
        return _share(self.cached_tokens, self.total_tokens)

    def windows(self, n: int = 20) -> tuple[Window, ...]:
        """The hit rate over time: at most ``n`` runs of requests whose counts differ by one at most.

        Raises:
            ConfigError: ``n`` below 1.
        """
        if n < 1:
            raise ConfigError("windows", f"is {n}", "use an int of 1 or more")
        n = min(n, len(self.accesses))
        bounds = [i * len(self.accesses) // n for i in range(n + 1)] if n else []
        return tuple(_window(self.accesses, a, b) for a, b in pairwise(bounds))


def replay(cache: PrefixCache, prompts: Iterable[Sequence[Segment]]) -> ReplayResult:
    """Access ``cache`` with each prompt in turn. The cache is not cleared first.

    Raises:
        InvalidInputError: a segment has a negative length.
    """
    return ReplayResult(tuple(cache.access(prompt) for prompt in prompts))


def _window(accesses: Sequence[Access], first: int, end: int) -> Window:
    part = accesses[first:end]
    return Window(first, len(part), sum(a.total_tokens for a in part), sum(a.cached_tokens for a in part))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
