"""What rules for volatile text find and do. Every rule is opt-in, and says what it would do before it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from prefixpilot.apis.base import Pointer
from prefixpilot.errors import ConfigError
from prefixpilot.pieces import Form, Span

Rule = Literal["clock", "ids", "memory", "billing-header", "tool-order"]
ClockMode = Literal["off", "round", "move"]


@dataclass(frozen=True, slots=True)
class VolatileRules:
    """Which rules are on; all are off unless switched on.

    Attributes:
        clock: ``round``: the time of day is taken out of dates in system text, and the exact words stand in the newest
            user message; ``move``: the line with the time moves behind the rest of its text.
        ids: lines that hold nothing but a request, session or trace id move behind the rest of their text.
        memory: sections of memories, as recalled for one turn, move behind the rest of their text.
        billing_header: Claude Code's billing header goes, where the upstream is not Anthropic.
        tool_order: ``tools`` in a canonical order that stays for the conversation.
    """

    clock: ClockMode = "off"
    ids: bool = False
    memory: bool = False
    billing_header: bool = False
    tool_order: bool = False

    def __post_init__(self) -> None:
        if self.clock not in ("off", "round", "move"):
            raise ConfigError("clock", f"is {self.clock!r}", "use one of: off, round, move")
        for name in ("ids", "memory", "billing_header", "tool_order"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use true or false")

    @property
    def any(self) -> bool:
        """Whether one of them is on."""
        return any(getattr(self, field.name) not in (False, "off") for field in fields(self))


class Change(NamedTuple):
    """One thing that a rule does, for a dry run. Holds no text of the prompt.

    Attributes:
        rule: which.
        pointer: of the string, or of the array.
        span: the characters concerned; of an array, its elements.
        what: a sentence for people.
    """

    rule: Rule
    pointer: Pointer
    span: Span
    what: str


class TextForm(NamedTuple):
    """What stands in the place of one string."""

    pointer: Pointer
    form: Form


class Line(NamedTuple):
    """A line of a text: its content, and the break behind it (empty behind the last one)."""

    content: Span
    ending: Span


def lines(text: str) -> Iterator[Line]:
    """All lines, the last one too if it is empty: contents and breaks, joined, are the text. O(length).

    >>> [text[slice(*line.content)] for text in ["a\\r\\nb\\n"] for line in lines(text)]
    ['a', 'b', '']
    """
    at = 0
    while True:
        found = text.find("\n", at)
        if found < 0:
            yield Line(Span(at, len(text)), Span(len(text), len(text)))
            return
        content = found - 1 if found > at and text[found - 1] == "\r" else found
        yield Line(Span(at, content), Span(content, found + 1))
        at = found + 1
