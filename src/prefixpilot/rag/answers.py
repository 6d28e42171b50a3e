"""What an engine answered: text, token counts that may be unknown, and where its citations lead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from prefixpilot.annotations import written_label
from prefixpilot.core import ContextBlock, Plan


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them. ``None`` is unknown, which is not zero.

    Attributes:
        prompt_tokens: of the whole prompt.
        cached_tokens: of those, how many came from its prefix cache.
        completion_tokens: of the answer.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def prefilled_tokens(self) -> int | None:
        """Prompt tokens that had to be computed."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens

    def plus(self, other: Usage) -> Usage:
        """Both together; what is unknown of one is unknown of both."""
        return Usage(
            _sum(self.prompt_tokens, other.prompt_tokens),
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.completion_tokens, other.completion_tokens),
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def usage_of(usage: Any) -> Usage:
    """The ``usage`` member of a completion, as data that ``json`` reads; ``None`` if the engine sent none."""
    if not isinstance(usage, Mapping):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(_count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens")))


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn, answered.

    Attributes:
        text: what the model said.
        plan: of this turn's blocks. ``plan.labels[i]`` is the label of the i-th block that the caller gave.
        usage: of all calls of this turn together.
        sources: every block that stands in full in this conversation, by its label (``Doc 3``).
        calls: how many calls the turn took: one, and one more for each round of tools.
    """

    text: str
    plan: Plan
    usage: Usage
    sources: Mapping[str, ContextBlock] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    calls: int = 1

    @property
    def cited(self) -> Mapping[str, ContextBlock]:
        """The sources whose written label (``[Doc 3]``) stands in the text, in the order of ``sources``."""
        templates = self.plan.templates
        return {label: block for label, block in self.sources.items() if written_label(label, templates) in self.text}
