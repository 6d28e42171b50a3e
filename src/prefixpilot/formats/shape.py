"""How a format writes its units, as data: what :mod:`prefixpilot.formats.runs` looks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from prefixpilot.formats.base import Repeats

ANYWHERE: Final = re.compile(r"")
"""As :attr:`Shape.front`: a run may begin at any head."""

LINE_START: Final = re.compile(r"(?m)^[ \t]*\Z")
"""As :attr:`Shape.front`: at the first head of a line."""

Numbers = Literal["free", "sequence", "unique"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a format writes a run of units.

    Attributes:
        name: of the format.
        starts: every head begins with one of these: where to look for heads.
        behind: every head stands right behind one of these, or at the beginning. Empty: anywhere.
        probes: a text with none of these holds no such run. A newline in front also is the beginning of a text.
        head: of a unit, up to where its content begins. Groups, all optional: ``label`` (words that name the unit),
            ``number``, ``key`` (the closing mark must have the same), ``alike`` (equal in all units of a run),
            ``attributes`` and ``keys`` (of a tag, of header lines: their names are equal in all units of a run).
        closing: what ends a unit; without it the joint does.
        closes: a literal that every closing mark begins with, or stands right behind. Empty: none is known.
        joint: the exact text between two units that have no closing mark. Between others stands white space, the
            same in a whole run.
        front: what must stand in front of the first head; tried on the last lines there, so it ends in
            ``\\Z``. Its group ``frame``, if any, must come back in ``back``.
        front_ends: with white space left out, the last character in front of the first head is one of these. Empty:
            it may be anything.
        back: what must follow the last unit. Behind a closing mark it is matched on the spot, else searched for and
            must be there exactly once.
        stop: ends a run where it first matches, whatever follows.
        lines: the last unit is one line, and a run may end with the text.
        numbers: ``sequence``: they count up from 0 or 1; ``unique``: none stands twice.
        least: characters that each body has at least.
        inner: where the body begins inside a unit; up to the last ``]]>``, or to the closing tag of group ``child``.
        heading: its group ``label`` names all units of the runs behind it.
        in_json: the body is what stands between the quotes of a JSON string.
        lone: a single unit counts too (it cannot move, but may be a repeat).
        ranked: labels may tell the order (``number``, a number among the ``attributes``, or ``score``). Whether those
            of a region do is seen there: they count up by one, or scores fall.
        movable, repeats: see :class:`prefixpilot.formats.base.Region`.
    """

    name: str
    starts: tuple[str, ...]
    head: re.Pattern[str]
    behind: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    closing: re.Pattern[str] | None = None
    closes: str = "</"
    joint: str = "\n\n"
    front: re.Pattern[str] = LINE_START
    front_ends: str = ""
    back: re.Pattern[str] | None = None
    stop: re.Pattern[str] | None = None
    lines: bool = False
    numbers: Numbers = "free"
    least: int = 0
    inner: re.Pattern[str] | None = None
    heading: re.Pattern[str] | None = None
    in_json: bool = False
    lone: bool = False
    movable: bool = True
    ranked: bool = False
    repeats: Repeats = "safe"

    def marks(self) -> tuple[tuple[str, ...], ...]:
        """See :data:`prefixpilot.formats.marks.MarkGroups`."""
        joined = self.closing is None and not self.lone
        starts = tuple(self.joint + start for start in self.starts) if joined else self.starts
        return tuple(group for group in (starts, self.probes) if group)
