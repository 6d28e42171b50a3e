"""All recognisers, in a fixed order, and which of what they find counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prefixpilot.apis.base import Message, Segment
from prefixpilot.errors import ConfigError
from prefixpilot.formats.base import Edges, Recogniser, Region
from prefixpilot.formats.fenced import AIDER_TAGS, FenceRecogniser
from prefixpilot.formats.json_results import JSON_SHAPES, AnyJsonRecogniser, JsonRecogniser, ZepRecogniser
from prefixpilot.formats.labelled import LABELLED_SHAPES
from prefixpilot.formats.listed import LISTED_SHAPES
from prefixpilot.formats.marks import asked
from prefixpilot.formats.runs import RunRecogniser
from prefixpilot.formats.tagged import TAGGED_SHAPES
from prefixpilot.formats.tool_results import HEAD_SHAPES, HeadRecogniser
from prefixpilot.formats.trajectories import (
    CommandOutput,
    FileContents,
    Found,
    NumberedLines,
    Observation,
    WholeResult,
    results_in_parts,
)
from prefixpilot.formats.weak import WEAK

RECOGNISERS: Final[tuple[Recogniser, ...]] = (
    *(RunRecogniser(shape) for shape in (*TAGGED_SHAPES, *LABELLED_SHAPES, *LISTED_SHAPES)),
    FenceRecogniser("continue", path_above=False),
    FenceRecogniser("aider", path_above=True),
    RunRecogniser(AIDER_TAGS),
    ZepRecogniser(),
    *(JsonRecogniser(shape) for shape in JSON_SHAPES),
    *(HeadRecogniser(shape) for shape in HEAD_SHAPES),
    NumberedLines(),
    Observation(),
    CommandOutput(),
    FileContents(),
    AnyJsonRecogniser(),
    *WEAK,
    WholeResult(),
)
"""Where two find the same, the first in this order counts."""

ASKED_LAST: Final = frozenset({AnyJsonRecogniser.NAME, WholeResult.NAME, *(recogniser.name for recogniser in WEAK)})
"""Asked one after another, and only where no other recogniser has found anything in a string: their marks are weak."""


def named(names: Iterable[str]) -> tuple[Recogniser, ...]:
    """The recognisers of these formats, in the order of :data:`RECOGNISERS`.

    Raises:
        ConfigError: there is none of one of the names.
    """
    wanted = set(names)
    unknown = sorted(wanted - {recogniser.name for recogniser in RECOGNISERS})
    if unknown:
        raise ConfigError("formats", f"has {unknown[0]!r}, which no recogniser is called", "see the list of formats")
    return tuple(recogniser for recogniser in RECOGNISERS if recogniser.name in wanted)


def regions(segment: Segment, recognisers: Sequence[Recogniser], edges: Edges) -> tuple[Region, ...]:
    """What ``recognisers`` find in a string, in order, without overlap.

    The outermost region counts, then the longest, then that of the first recogniser; those of :data:`ASKED_LAST` are
    asked for what is left. A recogniser whose marks are not there costs nothing
    (:func:`prefixpilot.formats.marks.asked`). O(length) for each of the others, and O(regions log regions).
    """
    if segment.sealed:
        return ()
    able = list(asked(segment, recognisers))
    kept = _outermost(segment, [one for one in able if one.name not in ASKED_LAST], edges)
    last = iter([one for one in able if one.name in ASKED_LAST])
    while not kept and (recogniser := next(last, None)):
        kept = recogniser.find(segment, edges)
    return kept


def in_message(message: Message, recognisers: Sequence[Recogniser], edges: Edges) -> Iterator[Found]:
    """The regions of all strings of a message, in order, with those that only its parts together show (Cline).

    O(length) for each recogniser.
    """
    by_parts = {one.segment.pointer: one for one in results_in_parts(message)} if _has(recognisers, "cline") else {}
    for segment in message.segments:
        found = regions(segment, recognisers, edges)
        yield from (Found(segment, region) for region in found)
        if not found and segment.pointer in by_parts:
            yield by_parts[segment.pointer]


def _has(recognisers: Sequence[Recogniser], name: str) -> bool:
    return any(recogniser.name == name for recogniser in recognisers)


def _outermost(segment: Segment, recognisers: Sequence[Recogniser], edges: Edges) -> tuple[Region, ...]:
    found = [
        (region.units[0].span.start, -region.units[-1].span.end, rank, region)
        for rank, recogniser in enumerate(recognisers)
        for region in recogniser.find(segment, edges)
    ]
    kept: list[Region] = []
    for start, _, _, region in sorted(found, key=lambda candidate: candidate[:3]):
        if not kept or start >= kept[-1].units[-1].span.end:
            kept.append(region)
    return tuple(kept)
