"""Which of the recorded branches a request goes on with (invariant 4b; the rules are decision 0011). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from prefixpilot.proxy.memory.history import Chain, History
from prefixpilot.proxy.memory.records import BlockKey, Brought, Restoration, Turn
from prefixpilot.proxy.memory.reply import Likeness

Path: TypeAlias = list[Turn]
"""A turn and its ancestors, oldest first."""


def decide(
    candidates: Sequence[Turn], history: History, others: Iterable[Turn], brought: Brought | None = None
) -> Restoration:
    """The branch that a request goes on with; of several that nothing tells apart, what they share.

    O(turns x branches).

    Args:
        candidates: recorded turns of one user message of the request; at least one.
        others: all turns of the conversation.
        brought: the blocks that come with the request, if the candidates are turns of its newest user message.
    """
    index = {chain: i for i, chain in history.chains.items()}
    paths = _not_contradicted([turn.path() for turn in _newest_forms(candidates)], index, history, list(others))
    paths = _distinct(_by_replies(paths, index, history))
    if brought is not None:
        best = _by_blocks(paths, brought)
        return Restoration.of(_latest(best), index, ambiguous=False, assumed=len(best) > 1)
    if len({frozenset(_keys(path)) for path in paths}) == 1:
        return Restoration.of(_latest(paths), index, ambiguous=False, assumed=len(paths) > 1)
    return Restoration.of(_shared(paths), index, ambiguous=True, assumed=False)


def _newest_forms(candidates: Sequence[Turn]) -> list[Turn]:
    """One turn, the one sent last, of those that are forms of the same: as it was first sent, and as it was sent again
    when the window had overflowed. O(1) if the window never has."""
    if all(turn.stem is None for turn in candidates):
        return list(candidates)
    by_stem: dict[bytes, Turn] = {}
    for turn in sorted(candidates, key=lambda turn: turn.last_sent):
        by_stem[turn.stem or turn.identity] = turn
    return list(by_stem.values())


def _not_contradicted(
    paths: list[Path], index: Mapping[Chain, int], history: History, others: Sequence[Turn]
) -> list[Path]:
    """The paths up to the first turn whose reply belongs to another turn; whole ones only, if there are some."""
    cut = []
    for path in paths:
        wrong = (n for n, turn in enumerate(path) if _contradicted(turn, index[turn.chain], history, others))
        cut.append(path[: next(wrong, len(path))])
    whole = [path for path, left in zip(paths, cut, strict=True) if len(path) == len(left)]
    return whole or cut


def _contradicted(turn: Turn, i: int, history: History, others: Sequence[Turn]) -> bool:
    """Whether the client's reply is not this turn's but that of another turn with an equal user message: the window
    on the history has moved, and equal messages have come to stand in each other's place. A reply that is nobody's
    says nothing: clients trim, translate and summarise."""
    said = history.reply_to(i)
    return turn.compare(said) is Likeness.OTHER and any(
        other.chain != turn.chain
        and other.message == turn.message
        and other.compare(said) in (Likeness.EQUAL, Likeness.HEAD)
        for other in others
    )


def _by_replies(paths: list[Path], index: Mapping[Chain, int], history: History) -> list[Path]:
    """The paths that the replies speak for most: none of them belies it, and the fewest are less than equal."""
    shared = len(_shared(paths))
    verdicts = [[turn.compare(history.reply_to(index[turn.chain])) for turn in path[shared:]] for path in paths]
    possible = [i for i, found in enumerate(verdicts) if Likeness.OTHER not in found] or range(len(paths))
    doubts = [sum(likeness is not Likeness.EQUAL for likeness in found) for found in verdicts]
    fewest = min(doubts[i] for i in possible)
    return [paths[i] for i in possible if doubts[i] == fewest]


def _distinct(paths: list[Path]) -> list[Path]:
    """One path, the latest, of those that put equal bytes into the prompt."""
    by_text: dict[tuple[tuple[Chain, str], ...], Path] = {}
    for path in sorted(paths, key=_age):
        by_text[tuple((turn.chain, turn.text) for turn in path if turn.text)] = path
    return list(by_text.values())


def _by_blocks(paths: list[Path], brought: Brought) -> list[Path]:
    """The paths whose last turn was given just these blocks; else those that hold them all; else all."""
    exact = [path for path in paths if path and path[-1].given == brought.given]
    return exact or [path for path in paths if _keys(path).issuperset(brought.keys)] or paths


def _keys(path: Path) -> set[BlockKey]:
    return {key for turn in path for key in turn.labels}


def _age(path: Path) -> int:
    return path[-1].last_sent if path else 0


def _latest(paths: list[Path]) -> Path:
    return max(paths, key=_age)


def _shared(paths: Sequence[Path]) -> Path:
    """The turns with which all paths begin."""
    shared = []
    for turns in zip(*paths, strict=False):
        if any(turn is not turns[0] for turn in turns):
            break
        shared.append(turns[0])
    return shared
