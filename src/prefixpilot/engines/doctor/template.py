"""Whether a chat template keeps turn n a prefix of turn n+1. Pure: renderings in, a finding out.

A template that moves the tools behind the newest message, writes the date, or takes the reasoning out of earlier turns
changes what the engine has already computed. A rendering is a text, or a list of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from prefixpilot.engines.doctor.findings import Finding

Rendering: TypeAlias = str | Sequence[int]

_TALK: Final = (
    ("user", "Which bus goes to the harbour?"),
    ("assistant", "Line 4, every ten minutes."),
    ("user", "And at night?"),
    ("assistant", "Line N4, once an hour."),
    ("user", "Where does it stop?"),
)
NAME: Final = "chat template"


class Turn(NamedTuple):
    """A conversation at one of its turns.

    Attributes:
        messages: the newest is the user's.
    """

    messages: list[dict[str, Any]]


def turns() -> tuple[Turn, ...]:
    """The same short conversation at its first, second and third turn."""
    return tuple(
        Turn([{"role": role, "content": text} for role, text in _TALK[:length]])
        for length in range(1, len(_TALK) + 1, 2)
    )


def judge(closed: Sequence[Rendering | None], opened: Sequence[Rendering | None]) -> Finding:
    """What renderings of :func:`turns` say.

    Args:
        closed: without what opens the next answer (``add_generation_prompt`` false).
        opened: with it, as it is sent.
    """
    worst: Finding | None = None
    if None in opened:
        return Finding(NAME, "unknown", "the engine shows no rendered prompt", "run again with --probe")
    for end, turn, following in zip(closed, opened, opened[1:], strict=False):
        assert turn is not None and following is not None
        same = common_length(turn, following)
        if same == len(turn):
            continue
        if end is not None and same >= common_length(end, turn):
            worst = worst or _opens(len(turn) - same)
        else:
            return _changes(turn, following, same)
    return worst or Finding(NAME, "ok", "turn n is a prefix of turn n+1")


def _opens(lost: int) -> Finding:
    what = f"only what opens the answer ({lost} at the end) changes from turn to turn: answers are computed anew"
    return Finding(NAME, "warn", what, "a template that keeps what it writes in front of an answer in later turns")


def _changes(turn: Rendering, following: Rendering, same: int) -> Finding:
    unit = "characters" if isinstance(turn, str) else "tokens"
    what = f"turn n+1 leaves turn n after {same} of {len(turn)} {unit}: the rest of the history is computed anew"
    if isinstance(turn, str) and isinstance(following, str):
        what += f" ({_around(turn, same)!r} becomes {_around(following, same)!r})"
    return Finding(NAME, "fail", what, "another --chat-template: one that renders earlier messages the same each time")


def _around(text: str, at: int) -> str:
    return text[max(0, at - 12) : at + 20]


def common_length(one: Rendering, other: Rendering) -> int:
    """How much two renderings have in common at their heads. O(n)."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))
