"""The contract between sources of cache events and whoever keeps a picture of a cache."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from prefixpilot.cache_events import EventBatch


class Continuity(Enum):
    """Whether all that an engine has published of its cache has been handed on.

    WHOLE: all of it, since the engine started or since its cache was last cleared.
    CATCHING_UP: something may be missing and is being asked for, or the connection is gone. It may become either.
    BROKEN: something is missing and will not come: the engine does not keep it any more, or it could not be read. The
        engine's next ``CacheCleared``, or its restart, makes it WHOLE.
    """

    WHOLE = "whole"
    CATCHING_UP = "catching up"
    BROKEN = "broken"


class SourceStatus(NamedTuple):
    """How one source of events (one rank of one endpoint) stands. Counts are since it was subscribed to.

    Attributes:
        source: the endpoint, as the user named it.
        rank: data-parallel rank, by the port.
        continuity: see there.
        sequence: of the last batch handed on; -1 before the first.
        batches: handed on, replayed ones among them.
        replayed: came by replay.
        lost: batches that are known to be lost.
        gaps: how often batches were missing, whether or not they could be asked for.
        restarts: how often the engine began anew.
        unreadable: batches that could not be decoded (their events count as lost).
        unknown: events of a kind that is not known here; they were left out.
        reason: what stands in the way of WHOLE, for people; empty if nothing does.
        connected: whether a publisher is connected now.
        unanswered: how often in a row the engine was asked for what is missing, and did not answer.
        silent: it should have told something by now, as the listener has it, and has not.
    """

    source: str
    rank: int
    continuity: Continuity
    sequence: int
    batches: int
    replayed: int
    lost: int
    gaps: int
    restarts: int
    unreadable: int
    unknown: int
    reason: str
    connected: bool = True
    unanswered: int = 0
    silent: bool = False

    @property
    def heard(self) -> bool:
        """Whether anything has come of it, or it is known that there is nothing."""
        return self.batches > 0 or self.continuity is Continuity.WHOLE


class EventListener(Protocol):
    """Takes what sources tell. A source calls it on a thread of its own, one call after the other; several sources of
    one subscriber share that thread. A call should take little time: while it lasts, batches wait in a queue that is
    bounded (what does not fit is asked for again), and never in the engine. It must not raise: an exception ends
    the subscriber, which then says so (``alive``).
    """

    def on_batch(self, batch: EventBatch) -> None:
        """The next batch of a source. Sequences of a source rise by one, but where ``on_status`` said BROKEN before.

        An engine's restart shows as a ``CacheCleared`` in front of the events of its first batch; its sequences begin
        anew then. Where it is known before that batch, one of number -1 with nothing but a ``CacheCleared`` tells it.
        """
        ...

    def on_status(self, status: SourceStatus) -> None:
        """A source's continuity has changed. Called before the batch that came after the change; and before the first
        batch of all, if what was missed before that is not known."""
        ...

    def unheard(self) -> int:
        """How many times in a row a batch should have come, by all that the listener knows, and none has come of any
        source; 0: nothing is amiss. O(1). Where that is too often, sources are CATCHING_UP until they tell more, or say
        that there is nothing."""
        ...


class EventSource(Protocol):
    """Something that tells a listener of an engine's cache from ``start`` to ``stop``."""

    @property
    def alive(self) -> bool:
        """Whether it is started and its thread runs."""
        ...

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How each of its sources stands. From any thread."""
        ...

    def start(self) -> object:
        """Begin to listen; returns at once, whether or not an engine is there yet. Raises ConfigError where an
        endpoint cannot be used, EngineError if it is started already."""
        ...

    def stop(self) -> None:
        """End the thread and close all sockets, within a bound. Afterwards the listener is not called any more.
        Raises EngineError past the bound (a listener that does not return)."""
        ...
