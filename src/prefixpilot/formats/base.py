"""What a recogniser finds in a string: regions of equal-shaped units, and what may be done with them.

A recogniser proves its edges or finds nothing. It gives offsets only, so that whatever is done with a unit is done
with the very characters that the application wrote, label included; labels are never renumbered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from prefixpilot.apis.base import Segment
from prefixpilot.pieces import Span

Repeats = Literal["safe", "keep-label", "repeat-only", "no"]
"""What a second unit with an equal body may become: a reference that keeps the label (all but ``no``); ``repeat-only``:
only a byte-equal later one, in another message."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One document, memory or result as the application rendered it.

    Attributes:
        span: all of it: label, wrapper and metadata, without the joint to its neighbours.
        body: the bare text in it.
        text: the body, decoded (JSON escapes, CDATA): equal texts are the same document, whatever their labels say.
        label: words that name it, as the model sees them (``Source 3``, ``fees.pdf``); ``None`` if it has none.
    """

    span: Span
    body: Span
    text: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """Units that stand together.

    Attributes:
        format: name of the recogniser that found it.
        units: at least one, in order, not overlapping. Spans are all inside one string.
        movable: they may change places among themselves.
        ranked: the old order can be read from the labels (numbers, scores), so that no annotation has to tell it.
        repeats: see :data:`Repeats`.
    """

    format: str
    units: tuple[Unit, ...]
    movable: bool
    ranked: bool
    repeats: Repeats


class Edges(Protocol):
    """What has been seen at the edges of texts in other requests; proves joints that no mark shows (a blank line)."""

    def proved(self, before: str, after: str) -> bool:
        """Whether ``before`` and ``after``, that stand next to each other here, have been met apart: each of them
        beside something else."""
        ...


class Recogniser(Protocol):
    """One format, or a family of them. Stateless.

    A user's own recogniser is an object with these two; :func:`check_recogniser` tests it on a sample.
    """

    @property
    def name(self) -> str: ...

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """The regions of this format in a string, in order, not overlapping; empty if there is none, or any doubt.

        O(length); never raises on any text.
        """
        ...
