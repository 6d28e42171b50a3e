"""What the recognisers find in recorded bodies, against what stands beside them.

    python benchmarks/formats.py DIR

``DIR`` holds one JSON file for each format: ``api``, ``requests`` (bodies) and, for each of them, ``expect`` with
``blocks``, ``bodies``, ``where`` (the JSON pointer of the string that holds each block) and ``movable``. It prints
how many blocks were found with exact edges, how many of those have another ``movable``, how many bodies a found edge
cuts, and how many are gone after the units of every movable region were reversed (these three must be 0).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefixpilot.apis.base import Api
from prefixpilot.apis.chat import Chat
from prefixpilot.apis.messages import Messages
from prefixpilot.apis.responses import Responses
from prefixpilot.formats.base import NoEdges, Region
from prefixpilot.formats.catalogue import RECOGNISERS, in_message
from prefixpilot.pieces import apply, fill, permuted

APIS: Final[dict[str, Api]] = {api.name: api for api in (Chat(), Messages(), Responses())}


@dataclass
class Score:
    """Counts of one format, over all its bodies."""

    expected: int = 0
    found: int = 0
    bodies: int = 0
    others: int = 0
    moving_differs: int = 0
    cut: int = 0
    lost: int = 0
    names: tuple[str, ...] = ()


def at(body: Any, pointer: str) -> Any:
    """The value that a JSON pointer names."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        body = body[int(part)] if isinstance(body, list) else body[part]
    return body


def found_in(api: str, body: dict[str, Any]) -> dict[str, tuple[str, tuple[Region, ...]]]:
    """The regions in each string of a body, by its JSON pointer."""
    prompt = APIS[api].read(body)
    found: dict[str, tuple[str, tuple[Region, ...]]] = {}
    for message in prompt.messages if prompt else ():
        for segment, region in in_message(message, RECOGNISERS, NoEdges()):
            pointer = "".join(f"/{step}" for step in segment.pointer)
            found[pointer] = (segment.text, (*found.get(pointer, ("", ()))[1], region))
    return found


def judge(score: Score, api: str, body: dict[str, Any], expect: dict[str, Any]) -> None:
    """Adds one body to the score."""
    found = found_in(api, body)
    units = {
        (pointer, text[unit.span.start : unit.span.end]): (unit, region)
        for pointer, (text, hits) in found.items()
        for region in hits
        for unit in region.units
    }
    expected = set(zip(expect["where"], expect["blocks"], strict=True))
    score.expected += len(expect["blocks"])
    score.others += len(set(units) - expected)
    for where, block, bare in zip(expect["where"], expect["blocks"], expect["bodies"], strict=True):
        if (hit := units.get((where, block))) is not None:
            unit, region = hit
            score.found += 1
            score.bodies += at(body, where)[unit.body.start : unit.body.end] in (bare, bare.strip())
            score.moving_differs += region.movable != expect["movable"]
    score.names = tuple(sorted({*score.names, *(region.format for _, hits in found.values() for region in hits)}))
    for pointer, (text, hits) in found.items():
        bodies = [bare for where, bare in zip(expect["where"], expect["bodies"], strict=True) if where == pointer]
        score.cut += sum(cuts(text, bare, region) for bare in bodies for region in hits if region.movable)
        moved = reversed_units(text, hits)
        score.lost += sum(bare not in moved for bare in bodies)


def cuts(text: str, bare: str, region: Region) -> bool:
    """Whether an edge of a unit lies inside a body."""
    start = text.find(bare)
    edges = {edge for unit in region.units for edge in unit.span}
    return any(start < edge < start + len(bare.rstrip()) for edge in edges)


def reversed_units(text: str, hits: tuple[Region, ...]) -> str:
    """The text with the units of each movable region in reverse order."""
    slots = []
    for region in hits:
        if region.movable:
            count = len(region.units)
            slots += permuted([unit.span for unit in region.units], range(count - 1, -1, -1))
    return apply(fill(len(text), slots), text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="*", help="names of formats")
    arguments = parser.parse_args()
    columns = "blocks found  bodies  others  moving differs  cut  lost  recognisers"
    print(f"{'format':28}{columns}")
    bad = 0
    for path in sorted(arguments.directory.glob("*.json")):
        if arguments.only and path.stem not in arguments.only:
            continue
        sample = json.loads(path.read_text("utf-8"))
        score = Score()
        for body, expect in zip(sample["requests"], sample["expect"], strict=True):
            judge(score, sample["api"], body, expect)
        bad += score.cut + score.lost + score.moving_differs
        print(
            f"{path.stem:28}{score.found:6}/{score.expected:<6}{score.bodies:6}{score.others:8}{score.moving_differs:16}"
            f"{score.cut:5}{score.lost:6}  {', '.join(score.names)}"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
