"""A test for recognisers, ours and yours.

A recogniser is an object with a ``name`` and a ``find``. This one knows memos between lines of equals signs:

>>> import re
>>> from prefixpilot.formats.base import Region, Unit
>>> from prefixpilot.pieces import Span
>>> class Memos:
...     name = "memos"
...     memo = re.compile(r"^== (?P<label>[^\\n=]+) ==\\n(?P<body>[^=]*)(?=^==)", re.MULTILINE)
...
...     def find(self, segment, edges):
...         if segment.sealed or segment.role != "user" or not segment.text.rstrip().endswith("\\n== end =="):
...             return ()
...         memos = list(self.memo.finditer(segment.text))
...         units = tuple(Unit(Span(*m.span()), Span(*m.span("body")), m["body"], m["label"]) for m in memos)
...         together = all(a.end() == b.start() for a, b in zip(memos, memos[1:]))
...         if len(units) < 2 or not together:
...             return ()
...         return (Region(self.name, units, movable=True, ranked=False, repeats="keep-label"),)

What it finds in a sample, and that it fails on nothing like it, is checked with one call, in a test of yours:

>>> sample = "Use these.\\n== fees ==\\nTen crowns.\\n== hours ==\\nNine to five.\\n== end =="
>>> check_recogniser(Memos(), sample, ["Ten crowns.\\n", "Nine to five.\\n"])
>>> check_recogniser(Memos(), sample, ["Ten crowns."])
Traceback (most recent call last):
prefixpilot.errors.InvariantError: memos: finds the bodies ['Ten crowns.\\n', 'Nine to five.\\n']
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from prefixpilot.apis.base import Role, Segment
from prefixpilot.errors import InvariantError
from prefixpilot.formats.base import Edges, NoEdges, Recogniser, Region, Unit
from prefixpilot.pieces import apply, fill, permuted

_MARKS: Final = "<>[]{}()'\"`\\/:=-#*\n\t \0\udc80"
_CUTS: Final = 64


def check_recogniser(
    recogniser: Recogniser, text: str, bodies: Sequence[str], role: Role = "user", edges: Edges | None = None
) -> None:
    """Checks a recogniser on a sample of its format.

    It must find ``bodies``; what it finds must be well-formed (:func:`check_regions`), also in cut and spoilt copies of
    the sample, where it must not raise; movable units, put in another order and back, give the sample again, and in the
    other order they are found as the same units; and in a sealed string it must find nothing. O(length) calls of the
    recogniser at most, about 200.

    Args:
        text: the string, as an application makes it.
        bodies: the decoded texts of the units in it, in order, those of all regions.
        role: whose string it is.
        edges: what has been met, for formats without marks; nothing, if it is left out.

    Raises:
        InvariantError: one of these does not hold; says which.
    """
    known: Edges = edges or NoEdges()
    regions = _find(recogniser, text, role, known)
    found = [unit.text for region in regions for unit in region.units]
    _demand(found == list(bodies), recogniser, f"finds the bodies {found}")
    _demand(not recogniser.find(_segment(text, role, sealed=True), known), recogniser, "finds units in a sealed string")
    for region in regions:
        if region.movable:
            _check_moving(recogniser, text, region, role, known)
    for spoilt in _spoilt(text, regions):
        _find(recogniser, spoilt, role, known)


def check_regions(text: str, regions: Sequence[Region]) -> None:
    """Checks that regions of ``text`` are well-formed.

    Units stand in order, inside of ``text``, without overlap; bodies inside their units; the text of a unit is its
    body, decoded; a movable region has at least two units; no unit is empty.

    Raises:
        InvariantError: one of these does not hold; says which.
    """
    at = 0
    for region in regions:
        if not region.units or (region.movable and len(region.units) < 2):
            raise InvariantError(f"{region.format}: a region has {len(region.units)} units")
        for unit in region.units:
            (start, end), body = unit.span, unit.body
            if not at <= start < end <= len(text) or not start <= body.start <= body.end <= end:
                raise InvariantError(f"{region.format}: {unit.span} with body {unit.body} behind {at} of {len(text)}")
            if not _is_body(text, unit, region):
                raise InvariantError(f"{region.format}: the text of {unit.span} is not its body")
            at = end


def _is_body(text: str, unit: Unit, region: Region) -> bool:
    raw = text[unit.body.start : unit.body.end]
    if region.literal == "text":
        return unit.text == raw
    try:
        return bool(json.loads(f'"{raw}"') == unit.text)
    except ValueError:
        return False


def _check_moving(recogniser: Recogniser, text: str, region: Region, role: Role, edges: Edges) -> None:
    """Turns the order of the units around, finds them again, and turns it back."""
    spans = [unit.span for unit in region.units]
    order = list(range(len(spans)))[::-1]
    turned = apply(fill(len(text), permuted(spans, order)), text)
    again = [other for other in _find(recogniser, turned, role, edges) if len(other.units) == len(spans)]
    texts = [[unit.text for unit in other.units] for other in again]
    _demand([region.units[i].text for i in order] in texts, recogniser, "does not find units that have changed places")
    back = [unit.span for unit in again[texts.index([region.units[i].text for i in order])].units]
    _demand(apply(fill(len(turned), permuted(back, order)), turned) == text, recogniser, "cannot be put back in order")


def _spoilt(text: str, regions: Sequence[Region]) -> Iterator[str]:
    """Copies of a sample with something cut, doubled or put in, most of them at the borders of units."""
    edges = sorted(
        {place for region in regions for unit in region.units for span in (unit.span, unit.body) for place in span}
    )
    step = max(1, len(text) // _CUTS)
    for at in range(0, len(text) + 1, step):
        yield text[:at]
        yield text[at:]
        yield text[:at] + text[at + step :]
    for i, at in enumerate(edges):
        yield text[:at] + text
        yield text[:at] + _MARKS[i % len(_MARKS)] + text[at:]
    yield text + text
    yield _MARKS + text + _MARKS


def _find(recogniser: Recogniser, text: str, role: Role, edges: Edges) -> tuple[Region, ...]:
    """What is found, checked."""
    try:
        regions = recogniser.find(_segment(text, role), edges)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvariantError(f"{recogniser.name}: raises {error!r} on {text[:200]!r}") from error
    check_regions(text, regions)
    return tuple(regions)


def _segment(text: str, role: Role, sealed: bool = False) -> Segment:
    return Segment(("sample",), text, role, 0, sealed, call_id="call" if role == "tool" else None)


def _demand(holds: bool, recogniser: Recogniser, otherwise: str) -> None:
    if not holds:
        raise InvariantError(f"{recogniser.name}: {otherwise}")
