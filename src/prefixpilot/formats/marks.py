"""Which literal texts stand in a string: asked before any pattern is, so that a format costs nothing where it is not.

Most strings hold no format at all, and those that do hold one or two. A literal that must stand in every string with
a format (a *mark*) is looked for first, at the speed of ``memchr`` where it holds a rare character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from prefixpilot.apis.base import Segment
from prefixpilot.formats.base import Recogniser

MarkGroups = tuple[tuple[str, ...], ...]
"""One mark of each group stands in every string that a recogniser finds anything in. A newline in front of a mark is
also the beginning of the string."""

_RARE: Final = frozenset("<>[]{}`|#*└")
"""Characters that hardly any prose holds."""

_OPENINGS: Final = frozenset("\n<[")
_OPENING_LENGTH: Final = 3
_MOST_OPENINGS: Final = 4096


class _Plan(NamedTuple):
    """What is asked before a mark is looked for: a rare character in it, and how it begins behind its first one."""

    rare: str
    first: str
    opening: str


class Marks:
    """The marks in one text, each looked for once. Lives for one string.

    >>> marks = Marks("Title: Rye\\n\\n- one\\n- two")
    >>> marks.has("\\nTitle: "), marks.has("\\n- "), marks.has("<doc"), marks.has("Source: ")
    (True, True, False, False)
    """

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}"
        self._known: dict[str, bool] = {}
        self._openings: dict[str, frozenset[str] | None] = {}

    def hold(self, groups: MarkGroups) -> bool:
        """Whether one mark of each group stands in the text."""
        for group in groups:
            for mark in group:
                if self.has(mark):
                    break
            else:
                return False
        return True

    def has(self, mark: str) -> bool:
        """Whether ``mark`` stands in the text. O(length) the first time, O(1) from then on."""
        known = self._known.get(mark)
        if known is None:
            known = self._known[mark] = self._may_have(_plan(mark)) and mark in self._text
        return known

    def _may_have(self, plan: _Plan) -> bool:
        """Whether nothing that is known already speaks against a mark."""
        if plan.rare and not self._has_character(plan.rare):
            return False
        openings = self._opened(plan.first) if plan.opening else None
        if openings is None or plan.opening in openings:
            return True
        short = len(plan.opening) < _OPENING_LENGTH
        return short and any(opening.startswith(plan.opening) for opening in openings)

    def _has_character(self, character: str) -> bool:
        known = self._known.get(character)
        if known is None:
            known = self._known[character] = character in self._text
        return known

    def _opened(self, first: str) -> frozenset[str] | None:
        """The characters that stand behind each ``first``; ``None`` where there are so many that it does not pay."""
        if first not in self._openings:
            pieces = self._text.split(first, _MOST_OPENINGS)
            openings = frozenset([piece[:_OPENING_LENGTH] for piece in pieces])
            self._openings[first] = openings if len(pieces) <= _MOST_OPENINGS else None
        return self._openings[first]


def asked(segment: Segment, recognisers: Iterable[Recogniser]) -> Iterator[Recogniser]:
    """Those recognisers that may find something in a string: it is of a role of theirs, and their marks stand in it.

    ``roles`` and ``marks`` (:data:`MarkGroups`) are optional members of a recogniser: without them it is always asked.
    O(length) for each mark at most.
    """
    marks = Marks(segment.text)
    for one in recognisers:
        roles = getattr(one, "roles", None)
        if (roles is None or segment.role in roles) and marks.hold(getattr(one, "marks", ())):
            yield one


@lru_cache(maxsize=1024)
def _plan(mark: str) -> _Plan:
    first = mark[:1] if mark[:1] in _OPENINGS else ""
    rest = mark.lstrip(first)[:_OPENING_LENGTH] if first else ""
    opening = "" if first and first in rest else rest
    return _Plan(next((character for character in mark if character in _RARE), ""), first, opening)
