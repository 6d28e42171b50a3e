"""What is asked of an engine when quality is measured: to answer, and to say how likely a given answer is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from prefixpilot.bench.quality.cases import Messages


class Scored(NamedTuple):
    """What an engine made of a prompt.

    Attributes:
        answer: what it says, the likeliest token each time.
        log_likelihood: of the reference's tokens behind the prompt, in nats, their sum.
        tokens: of the reference that were scored; at least one.
        prompt_tokens: in front of them.
    """

    answer: str
    log_likelihood: float
    tokens: int
    prompt_tokens: int


class Bounds(NamedTuple):
    """Tokens at most.

    Attributes:
        answer: of an answer.
        reference: of the reference answer that are scored, its first ones.
    """

    answer: int = 32
    reference: int = 32


class QualityEngine(Protocol):
    """Answers and scores. Not for several threads."""

    @property
    def name(self) -> str:
        """For the report, and to tell whether results are of the same engine."""
        ...

    def measure(self, messages: Messages, reference: str, bounds: Bounds) -> Scored:
        """Ask, and score the reference.

        Raises:
            EngineError: it failed, or does not tell what is needed.
        """
        ...
