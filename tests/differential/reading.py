"""What is the same and what is not between the bytes of a client and the bytes that reached the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from .clients import Pointer

Kind = Literal[
    "evidence lost", "users mixed", "wrong pairing", "frozen prefix", "changed", "order", "unclear words", "refused"
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_PIECES: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]+')


class Violation(AssertionError):  # noqa: N818 - it is a finding, and pytest shows it as a failed assertion
    """A promise is broken."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Number(str):
    """A number as it was written."""

    __slots__ = ()


def read(data: bytes) -> Any:
    """JSON, numbers as written. Raises Violation for what no strict parser takes."""
    try:
        return json.loads(data, parse_float=Number, parse_int=Number, object_pairs_hook=_once)
    except ValueError as error:
        raise Violation("changed", f"the engine got no strict JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


class Changed(NamedTuple):
    """A string that is another one."""

    pointer: Pointer
    theirs: str
    ours: str


class Added(NamedTuple):
    """An element of an array that the client did not send, at the engine's index."""

    pointer: Pointer
    place: int
    value: Any


Difference = Changed | Added


def differences(theirs: Any, ours: Any, pointer: Pointer = ()) -> Iterator[Difference]:
    """Where two values differ. Raises Violation where anything but a string changed or one element was added."""
    if theirs is ours or (type(theirs) is type(ours) and theirs == ours and not isinstance(theirs, dict | list)):
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if list(theirs) != list(ours):
            raise Violation("changed", f"{pointer} had the members {list(theirs)} and has {list(ours)}")
        for key in theirs:
            yield from differences(theirs[key], ours[key], (*pointer, key))
    elif isinstance(theirs, list) and isinstance(ours, list):
        yield from _in_lists(theirs, ours, pointer)
    elif type(theirs) is str and type(ours) is str:
        yield Changed(pointer, theirs, ours)
    else:
        raise Violation("changed", f"{pointer} was {theirs!r} and is {ours!r}")


def _in_lists(theirs: Sequence[Any], ours: Sequence[Any], pointer: Pointer) -> Iterator[Difference]:
    if len(ours) == len(theirs) + 1:
        at = next((i for i, value in enumerate(theirs) if value != ours[i]), len(theirs))
        yield Added(pointer, at, ours[at])
        ours = [*ours[:at], *ours[at + 1 :]]
    if len(ours) != len(theirs):
        raise Violation("changed", f"{pointer} had {len(theirs)} elements and has {len(ours)}")
    for i, value in enumerate(theirs):
        yield from differences(value, ours[i], (*pointer, i))


def at(value: Any, pointer: Pointer) -> Any:
    """The value at a pointer."""
    for step in pointer:
        value = value[step]
    return value


def check_text(theirs: str, ours: str, changed: int) -> None:
    """Whether so many strings were written anew, and every other character stands as the client wrote it, white space
    outside strings aside (a member that was taken out leaves with its own)."""
    mine, engine = _pieces(theirs), _pieces(ours)
    other = sum(a != b for a, b in zip(mine, engine, strict=False))
    if len(mine) != len(engine) or other != changed:
        raise Violation("changed", f"{other} pieces of the text are written otherwise, {changed} strings were changed")


def _pieces(text: str) -> list[str]:
    whole = (piece if piece[0] == '"' else "".join(piece.split()) for piece in _PIECES.findall(text))
    return [piece for piece in whole if piece]
