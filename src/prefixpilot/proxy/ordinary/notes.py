"""What is told of an ordinary prompt in mode explain: which format stands in which string, and why it stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prefixpilot.apis.base import Pointer, Role, Segment
from prefixpilot.formats.base import Recogniser, Region
from prefixpilot.formats.marks import asked

HISTORY: Final = "history: sent before, or older than the last answer"
NOT_PROVED: Final = "edges not proved: the words of this format are there, but not where its units begin and end"
OFF: Final = "order is off here: by a setting or header, in the hold-out, or because earlier turns are not in the body"
SAME: Final = "no gain: no other order is predicted to be cached"
FORGED: Final = "a label stands in the text of a document too, so that the old order could not be told"
SERIES: Final = "order carries meaning: dates above the units, or labels that count"
BOUND: Final = "a bound on displacement, and annotations among the units"
FEW: Final = "fewer than two units stand in full"


@dataclass(frozen=True, slots=True)
class Note:
    """What became of units that stand together, or of a string in which a format was looked for. Holds no text.

    Attributes:
        pointer: of the string in the body.
        role: whose words they are.
        format: name of the recogniser.
        units: how many were found; 0 if none.
        moved: they are sent in another order.
        replaced: how many became annotations, in whole or in part.
        why: nothing moved; empty if something did.
    """

    pointer: Pointer
    role: Role
    format: str
    units: int
    moved: bool = False
    replaced: int = 0
    why: str = ""


def fixed(region: Region, role: Role) -> str:
    """Why the units of a region that is not movable stay."""
    if len(region.units) < 2:
        return "one unit alone"
    if role == "tool":
        return "results of tools keep their order"
    return "position is the id, or order carries meaning, in this format"


def below(tokens: int, least: int) -> str:
    """Why a short region stays."""
    return f"below the threshold: about {tokens} tokens, of at least {least}"


def costly(cost: int, saved: int) -> str:
    """Why an order that would have to be told stays."""
    return f"no gain: to tell the old order costs {cost} tokens, and the move is predicted to save {max(0, saved)}"


def of_history(segments: Iterable[Segment], regions: Sequence[Sequence[Region]]) -> list[Note]:
    """Notes of a message that is sent as it was, or as the client has it."""
    return [
        Note(segment.pointer, segment.role, region.format, len(region.units), why=HISTORY)
        for segment, found in zip(segments, regions, strict=True)
        for region in found
    ]


def not_proved(segments: Iterable[Segment], recognisers: Sequence[Recogniser], noted: Iterable[Note]) -> list[Note]:
    """Notes of strings in which nothing was found, though words of a format are there. O(length of the prompt)."""
    found = {note.pointer for note in noted}
    return [
        Note(segment.pointer, segment.role, recogniser.name, 0, why=NOT_PROVED)
        for segment in segments
        if segment.pointer not in found and not segment.sealed
        for recogniser in asked(segment, recognisers)
        if getattr(recogniser, "marks", ())
    ]
