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
        starts: every head begins with one of these: where to look for heads. Empty: everywhere.
        probes: a text with none of these holds no such run.
        head: of a unit, up to where its content begins. Groups, all optional: ``label`` (words that name the unit),
            ``number``, ``key`` (the closing mark must have the same), ``alike`` (equal in all units of a run),
            ``attributes`` and ``keys`` (of a tag, of header lines: their names are equal in all units of a run).
        closing: what ends a unit; without it the joint does.
        joint: the exact text between two units that have no closing mark. Between others stands white space, the
            same in a whole run.
        front: what must stand in front of the first head; tried on the last lines there, so it ends in
            ``\\Z``. Its group ``frame``, if any, must come back in ``back``.
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
        movable, ranked, repeats: see :class:`prefixpilot.formats.base.Region`.
    """

    name: str
    starts: tuple[str, ...]
    head: re.Pattern[str]
    probes: tuple[str, ...] = ("",)
    closing: re.Pattern[str] | None = None
    joint: str = "\n\n"
    front: re.Pattern[str] = LINE_START
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
