"""What stands in the way of following a source of events, in words for people. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prefixpilot.engines.base import Continuity


class Standing(NamedTuple):
    """How a source stands.

    Attributes:
        address, replay: where it publishes, as seen from here; where it repeats (``None``: nowhere).
        continuity: see there.
        batches, lost: handed on; known to be lost.
        connects: whether it connects to us.
        connected: whether a publisher is connected now.
        answered: whether anything at all has taken a connection there.
        unanswered: how often in a row it did not answer at ``replay``.
    """

    address: str
    replay: str | None
    continuity: Continuity
    batches: int
    lost: int
    connects: bool
    connected: bool
    answered: bool
    unanswered: int


def reason(standing: Standing) -> str:
    """What stands in the way of WHOLE; empty if nothing does."""
    if standing.continuity is Continuity.WHOLE:
        return ""
    if not standing.batches:
        return _nothing_yet(standing)
    gone = "" if standing.connected else f"there is no connection to {standing.address}"
    if standing.continuity is Continuity.CATCHING_UP:
        return gone or _asking(standing)
    lost = f"{standing.lost} batches of {standing.address} are lost" if standing.lost else _before(standing)
    kept = "no replay endpoint is set" if standing.replay is None else "the engine does not keep them"
    mended = "the next clearing of its cache, or its restart, mends it"
    return f"{lost} ({kept}); {mended}" + (f"; {gone}" if gone else "")


def _nothing_yet(standing: Standing) -> str:
    nothing = f"nothing has come from {standing.address}"
    if not standing.connected:
        if standing.connects:
            return f"{nothing}: no engine has connected there"
        who = "what answers there is no publisher of events" if standing.answered else "nobody answers there"
        return f"{nothing}: {who}"
    if standing.replay is None:
        return f"{nothing} yet; without a replay endpoint it is not known what was cached before"
    return f"{nothing} yet; {_asking(standing)}"


def _asking(standing: Standing) -> str:
    if standing.unanswered:
        return f"what is missing is asked for at {standing.replay}, where nobody answers"
    return f"what is missing is being asked for at {standing.replay}" if standing.replay else "batches are missing"


def _before(standing: Standing) -> str:
    return f"what {standing.address} told before is not known"
