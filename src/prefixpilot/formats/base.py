"""What a recogniser finds in a string: regions of equal-shaped units, and what may be done with them.

A recogniser proves its edges or finds nothing. It gives offsets only, so that whatever is done with a unit is done
with the very characters that the application wrote, label included; labels are never renumbered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from prefixpilot.apis.base import Segment
from prefixpilot.pieces import Span

Repeats = Literal["safe", "keep-label", "repeat-only", "no"]
"""What a second unit with an equal body may become: a reference that keeps the label (all but ``no``); ``repeat-only``:
only a byte-equal later one, in another message."""

Literals = Literal["text", "json"]
"""How words of ours must be written inside a body: as they are, or escaped as inside the quotes of a JSON string."""


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
        literal: what :func:`written` must be told before words of ours are put into a body. With ``json`` a body is
            what stands between the quotes of a JSON string: its text is the decoded one, and any part of it may be
            replaced only at the borders of escapes, so replace whole bodies.
    """

    format: str
    units: tuple[Unit, ...]
    movable: bool
    ranked: bool
    repeats: Repeats
    literal: Literals = "text"


def written(words: str, literal: Literals) -> str:
    """``words`` of ours as they must stand inside a body.

    >>> written('same as "fees" above', "json")
    'same as \\\\"fees\\\\" above'
    """
    return json.dumps(words)[1:-1] if literal == "json" else words


class Edges(Protocol):
    """What has been met in other requests; proves joints that no mark shows (a blank line)."""

    def joints(self, form: str, texts: Sequence[str], framed: bool) -> tuple[int, ...]:
        """Places in a sequence of texts that are proved to be borders of whole documents.

        Place ``k`` is the one before ``texts[k]``. What stands between two neighbouring places of the answer is one
        document, or several whole ones; it may change places with the others. What stands before the first and behind
        the last place is not to be moved.

        Args:
            form: whose texts these are (a recogniser's name): those of others prove nothing.
            texts: everything between the outer edges, cut at every place that might be a border.
            framed: marks show that the outer edges are borders. Otherwise words of a frame may stand at both ends.

        Returns:
            Rising; empty if less than one border is proved. O(texts). Changes nothing, never raises.
        """
        ...


class NoEdges:
    """Nothing has been met: no joint is proved."""

    def joints(self, form: str, texts: Sequence[str], framed: bool) -> tuple[int, ...]:
        """None."""
        return ()


class Recogniser(Protocol):
    """One format, or a family of them. Stateless.

    A user's own recogniser is an object with these two; :func:`check_recogniser` tests it on a sample. It may also have
    ``roles`` (whose strings it reads) and ``marks`` (:data:`prefixpilot.formats.marks.MarkGroups`: literals without
    which it finds nothing): then it is not asked where they are missing.
    """

    @property
    def name(self) -> str: ...

    def find(self, segment: Segment, edges: Edges) -> tuple[Region, ...]:
        """The regions of this format in a string, in order, not overlapping; empty if there is none, or any doubt.

        O(length); never raises on any text.
        """
        ...
