"""The contract of a prefix-cache model, and the words it is written in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from prefixpilot.errors import ConfigError, InvalidInputError


class Segment(NamedTuple):
    """A run of tokens that is only ever compared as a whole.

    Two segments are the same tokens if and only if both fields are equal. One token id per segment, each of one token,
    models a cache token by token.

    Attributes:
        key: stands for the tokens.
        tokens: how many there are; 0 or more. A segment of 0 tokens is not part of the prompt.
    """

    key: Hashable
    tokens: int


class Access(NamedTuple):
    """What one prompt did to a cache, in tokens.

    Attributes:
        cached_tokens: its longest prefix that was held before.
        total_tokens: its length.
        evicted_tokens: what had to go so that the rest could be inserted.
        used_up: of earlier prompts that it went on with, and of which nothing else is left: how many prompts ago each
            came, 1 for the one before. Only caches of whole prompts use prompts up.
    """

    cached_tokens: int
    total_tokens: int
    evicted_tokens: int
    used_up: tuple[int, ...] = ()

    @property
    def prefilled_tokens(self) -> int:
        """What the engine had to compute."""
        return self.total_tokens - self.cached_tokens


class PrefixCache(Protocol):
    """A cache of prompt prefixes with a bound in tokens.

    Must hold after every call: whatever is held, all of its prefix is held; no more than ``capacity_tokens`` are held.
    """

    @property
    def capacity_tokens(self) -> int | None:
        """The bound; ``None`` for none."""
        ...

    @property
    def used_tokens(self) -> int:
        """How many tokens are held now."""
        ...

    def match_prefix(self, prompt: Sequence[Segment]) -> int:
        """Tokens of the longest held prefix of ``prompt``. Changes nothing, not even recency.

        Raises:
            InvalidInputError: a segment has a negative length.
        """
        ...

    def access(self, prompt: Sequence[Segment]) -> Access:
        """Match ``prompt``, then insert the rest, evicting what must go.

        What this prompt hit is never evicted for it. A prompt longer than the whole cache leaves its head there, as
        much as fits. Evicts no more than is needed.

        Raises:
            InvalidInputError: a segment has a negative length; nothing has changed then.
        """
        ...

    def clear(self) -> None:
        """Hold nothing."""
        ...

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the structure is broken. O(everything held); for tests."""
        ...


def nonempty_segments(prompt: Sequence[Segment]) -> list[Segment]:
    """The segments that have tokens. O(n).

    Raises:
        InvalidInputError: a segment has a negative length.
    """
    if any(segment.tokens < 0 for segment in prompt):
        index = next(i for i, segment in enumerate(prompt) if segment.tokens < 0)
        raise InvalidInputError(f"prompt[{index}].tokens", f"is {prompt[index].tokens}", "use an int of 0 or more")
    return [segment for segment in prompt if segment.tokens]


def check_capacity(capacity_tokens: int | None) -> int | None:
    """``capacity_tokens``, if it can be one.

    Raises:
        ConfigError: below 1.
    """
    if capacity_tokens is not None and capacity_tokens < 1:
        raise ConfigError("capacity_tokens", f"is {capacity_tokens}", "use an int of 1 or more, or None for no bound")
    return capacity_tokens
