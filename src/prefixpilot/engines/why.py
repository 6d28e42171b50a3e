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
        unreadable: batches among the lost that came, and could not be read.
        foreign: messages that were no batches at all.
        silent: it should have told something by now, and has not.
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
    unreadable: int = 0
    foreign: int = 0
    silent: bool = False


def reason(standing: Standing) -> str:
    """What stands in the way of WHOLE; empty if nothing does."""
    if standing.continuity is Continuity.WHOLE:
        return ""
    if not standing.batches:
        return _nothing_yet(standing)
    gone = "" if standing.connected else f"there is no connection to {standing.address}"
    if standing.continuity is Continuity.CATCHING_UP:
        return gone or _asking(standing)
    mended = "the next clearing of its cache, or its restart, mends it"
    return f"{_missing(standing)}; {mended}" + (f"; {gone}" if gone else "")


def _missing(standing: Standing) -> str:
    """What will not come, and why; what came and cannot be read was never asked for."""
    address, missed = standing.address, standing.lost - standing.unreadable
    unreadable = f"{standing.unreadable} batches of {address} came and cannot be read" if standing.unreadable else ""
    if unreadable and not missed:
        return unreadable
    told = f"{missed} batches of {address} are lost" if missed else f"what {address} told before is not known"
    return f"{told} ({_kept(standing)})" + (f"; {unreadable}" if unreadable else "")


def _kept(standing: Standing) -> str:
    if standing.replay is None:
        return "no replay endpoint is set"
    if standing.unanswered:
        return f"they were asked for at {standing.replay}, where nobody answers"
    return "the engine does not keep them"


def _nothing_yet(standing: Standing) -> str:
    nothing = f"nothing has come from {standing.address}"
    if not standing.connected:
        if standing.connects:
            return f"{nothing}: no engine has connected there"
        who = "what answers there is no publisher of events" if standing.answered else "nobody answers there"
        return f"{nothing}: {who}"
    if standing.foreign:
        return f"{nothing} yet but {standing.foreign} messages that are no batches of events"
    if standing.replay is None:
        return f"{nothing} yet; without a replay endpoint it is not known what was cached before"
    return f"{nothing} yet; {_asking(standing)}"


def _asking(standing: Standing) -> str:
    if standing.silent:
        return _silent(standing)
    if standing.unanswered:
        return f"what is missing is asked for at {standing.replay}, where nobody answers"
    if standing.replay is None:
        return f"batches of {standing.address} are missing, and no replay endpoint is set"
    return f"what is missing is being asked for at {standing.replay}"


def _silent(standing: Standing) -> str:
    told = f"requests were answered whose pages must have been stored, and {standing.address} told nothing of them"
    if standing.replay is None:
        return told
    return f"{told}; {standing.replay} {'does not answer' if standing.unanswered else 'is being asked'}"
