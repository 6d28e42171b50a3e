"""Puts the numbered batches of one engine in order: gaps, replays, lost windows, restarts. Pure: no socket, no clock.

An engine numbers its batches from 0 and keeps the newest of them for replay. What arrives live may lack some (a slow or
late subscriber) and never comes twice; what is replayed comes in order, from where it was asked, up to the newest. A
number that falls means that the engine has begun anew, except for a live batch that a replay has overtaken: it carries
the same bytes. After a lost connection the last batch is asked for again: other bytes, or none, are taken for a new
engine (its memory may also not reach back that far: then it is told as new and its beginning as lost, which is safe).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from typing import Final, NamedTuple

from prefixpilot.engines.base import Continuity

WAITING_BATCHES: Final = 10_000
WAITING_BYTES: Final = 64 << 20
OVERTAKEN: Final = 20_000
"""How many replayed batches are remembered, so that their live twins are known."""


class Deliver(NamedTuple):
    """Hand this batch on. ``fresh``: it is the first of an engine that began anew, so the cache is empty before it."""

    sequence: int
    payload: bytes
    fresh: bool
    replayed: bool


class Ask(NamedTuple):
    """Ask the engine for all batches from ``start`` on, and forget what was asked before."""

    start: int


class Anew(NamedTuple):
    """The engine has begun anew, and holds nothing; none of its batches are there yet."""


Action = Deliver | Ask | Anew


class Sequencer:
    """Order of the batches of one source. Every method returns what to do, in order.

    Live batches that come while a replay is asked for wait, within bounds; what does not fit is a gap later on.

    Attributes:
        expected: number of the batch to hand on next.
        lost, gaps, restarts: counts, as in :class:`~prefixpilot.engines.base.SourceStatus`.

    Args:
        replay: whether the engine can be asked to replay.
        waiting_batches, waiting_bytes: bounds of what waits.
    """

    def __init__(
        self, *, replay: bool, waiting_batches: int = WAITING_BATCHES, waiting_bytes: int = WAITING_BYTES
    ) -> None:
        self.expected = 0
        self.lost = self.gaps = self.restarts = 0
        self._replay = replay
        self._gap_at = -1
        self._limits = (waiting_batches, waiting_bytes)
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._overtaken: OrderedDict[int, bytes] = OrderedDict()
        self._newest_live = -1
        self._last: bytes | None = None
        self._asked: int | None = None
        self._quiet = False
        self._heard = False
        self._probing = False
        self._progress = False
        self._fresh = False
        self._whole_life = replay
        self._suspended = not replay

    @property
    def asking(self) -> bool:
        """Whether a replay has been asked for and has not ended."""
        return self._asked is not None

    @property
    def waiting(self) -> int:
        """Live batches that wait for a replay."""
        return len(self._waiting)

    @property
    def continuity(self) -> Continuity:
        """See there."""
        if not self._whole_life:
            return Continuity.BROKEN
        return Continuity.CATCHING_UP if (self.asking and not self._quiet) or self._suspended else Continuity.WHOLE

    @property
    def heard(self) -> bool:
        """Whether a live batch has come on this connection. Before the first, a publisher may not know of us yet."""
        return self._heard

    def started(self) -> list[Action]:
        """The source is listened to from now on: what was before is asked for."""
        return [self._ask(0)] if self._replay else []

    def disconnected(self) -> None:
        """The engine's connection is gone: nothing is known of it until it says more. What waits will be replayed."""
        self._suspended, self._heard = True, False
        if self._replay:
            self._drop_waiting()

    def connected(self) -> list[Action]:
        """There is a connection again: is it the same engine? Without a replay, its next number tells."""
        return [self._probe()] if self._suspended and self._replay else []

    def check(self) -> list[Action]:
        """Nothing has come for a while: is there something that was not published to us? Continuity stays as it is."""
        if self.asking or self._suspended or not self._replay:
            return []
        ask = self._ask(self.expected)
        self._quiet = True
        return [ask]

    def doubted(self) -> list[Action]:
        """Something should have come by now: nothing is sure until it does, or until the engine says that there is
        nothing. One that was asked already need not be asked again."""
        if self.asking or self._suspended:
            return []
        self._suspended = True
        return [self._probe()] if self._replay else []

    def live(self, sequence: int, payload: bytes) -> list[Action]:
        """A batch came as it was published."""
        self._heard = True
        newest, self._newest_live = self._newest_live, sequence
        if sequence <= newest:
            return self._restart(sequence, payload)
        if self.asking:
            self._wait(sequence, payload)
            return []
        if self._suspended and self._replay:
            self._wait(sequence, payload)
            return [self._probe()]
        if sequence < self.expected:
            return [] if self._is_twin(sequence, payload) else self._restart(sequence, payload)
        if sequence == self.expected:
            return [self._deliver(sequence, payload, replayed=False)]
        self._wait(sequence, payload)
        return self._drain(hopeful=self._replay)

    def replayed(self, sequence: int, payload: bytes) -> list[Action]:
        """The engine repeats a batch, in answer to the newest ``Ask``."""
        if not self.asking:
            return []
        if self._probing:
            self._probing = False
            if sequence != self.expected - 1 or payload != self._last:
                return self._begin_anew()
            return []
        if sequence < self.expected:
            return []
        if sequence > self.expected:
            if self._progress:  # the replay itself has a hole
                return [self._ask(self.expected)]
            self._note_gap()
            self._lose(sequence - self.expected)
            self.expected = sequence
        return [self._deliver(sequence, payload, replayed=True)]

    def replay_ended(self) -> list[Action]:
        """The engine has repeated all it keeps from where it was asked."""
        if not self.asking:
            return []
        if self._probing:  # it does not have the batch that it has sent us
            return self._begin_anew()
        return self._end_asking(hopeful=self._progress)

    def replay_failed(self) -> list[Action]:
        """No answer in time, or half of one. What waits is handed on; if nothing does, it is asked again."""
        if not self.asking:
            return []
        if self._progress or not self._waiting:
            return [self._probe() if self._probing or self._suspended else self._ask(self.expected)]
        return self._end_asking(hopeful=False)

    def unreadable(self) -> None:
        """The batch that was handed on last could not be read: what it said is lost."""
        self._lose(1)

    def cleared(self) -> None:
        """The batch that was handed on last emptied the cache: what was missed before it does not matter any more."""
        self._whole_life = True

    def _wait(self, sequence: int, payload: bytes) -> None:
        most, most_bytes = self._limits
        if len(self._waiting) < most and self._waiting_bytes + len(payload) <= most_bytes:
            self._waiting.append((sequence, payload))
            self._waiting_bytes += len(payload)

    def _ask(self, start: int) -> Ask:
        self._asked, self._probing, self._progress, self._quiet = start, start < self.expected, False, False
        return Ask(start)

    def _probe(self) -> Ask:
        """Ask from the batch that came last: the same engine still has it, or has more. Until then, nothing is sure."""
        self._suspended = False
        return self._ask(max(self.expected - 1, 0))

    def _end_asking(self, *, hopeful: bool) -> list[Action]:
        self._asked, self._probing = None, False
        return [] if self._suspended else self._drain(hopeful)

    def _drain(self, hopeful: bool) -> list[Action]:
        """Hand on what waits. ``hopeful``: what lacks in it may be had by asking."""
        actions: list[Action] = []
        while self._waiting:
            sequence, payload = self._waiting[0]
            if sequence > self.expected:
                self._note_gap()
                if hopeful:
                    return [*actions, self._ask(self.expected)]
            self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            if sequence >= self.expected:
                self._lose(sequence - self.expected)
                actions.append(self._deliver(sequence, payload, replayed=False))
                hopeful = self._replay
            elif not self._is_twin(sequence, payload):
                return [*actions, *self._restart(sequence, payload)]
        return actions

    def _deliver(self, sequence: int, payload: bytes, *, replayed: bool) -> Deliver:
        fresh, self._fresh = self._fresh, False
        self.expected, self._last = sequence + 1, payload
        self._progress, self._suspended = True, self._suspended and self._replay
        if sequence == 0:
            self._whole_life = True
        if replayed:
            self._overtaken[sequence] = _digest(payload)
            if len(self._overtaken) > OVERTAKEN:
                self._overtaken.popitem(last=False)
        return Deliver(sequence, payload, fresh, replayed)

    def _is_twin(self, sequence: int, payload: bytes) -> bool:
        """Whether a replay has overtaken this live batch."""
        return self._overtaken.pop(sequence, None) == _digest(payload)

    def _restart(self, sequence: int, payload: bytes) -> list[Action]:
        """A live batch shows that the engine has begun anew."""
        self._forget()
        self._newest_live = sequence
        self._wait(sequence, payload)
        if sequence and self._replay:
            return [Anew(), self._ask(0)]
        return self._drain(hopeful=False)

    def _begin_anew(self) -> list[Action]:
        """A replay shows it; what waits will be replayed."""
        self._forget()
        return [Anew(), self._ask(0)]

    def _forget(self) -> None:
        self.restarts += 1
        self.expected, self._last, self._gap_at = 0, None, -1
        self._fresh, self._whole_life, self._suspended, self._asked = True, True, False, None
        self._drop_waiting()
        self._overtaken.clear()

    def _drop_waiting(self) -> None:
        self._newest_live = -1
        self._waiting.clear()
        self._waiting_bytes = 0

    def _note_gap(self) -> None:
        """Batches are missing from the expected one on. One gap, however often it is met or asked for."""
        if self._gap_at != self.expected:
            self._gap_at = self.expected
            self.gaps += 1

    def _lose(self, batches: int) -> None:
        if batches:
            self.lost += batches
            self._whole_life = False


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
