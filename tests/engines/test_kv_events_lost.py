"""A publisher that is gone without a word, and one of which something should have come: neither is taken for one that
has nothing to say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from tests.engines.line import Line
from tests.engines.listening import Remembers
from tests.engines.test_kv_events import BROKEN, CATCHING_UP, WHOLE, Clock, endpoint_of, page, subscribed

from prefixpilot.engines import event_sockets
from prefixpilot.engines.base import SourceStatus
from prefixpilot.engines.endpoints import EventEndpoint
from prefixpilot.engines.kv_events import PATIENCE, KvEventSubscriber
from prefixpilot.testing.event_publisher import EventPublisher

Followed = tuple[EventPublisher, KvEventSubscriber]
IN_ANOTHER_PROCESS = """
import sys
from prefixpilot.cache_events import PageHash, PagesStored
from prefixpilot.testing.event_publisher import EventPublisher
with EventPublisher() as publisher:
    print(publisher.endpoint, publisher.replay_endpoint, flush=True)
    for line in sys.stdin:
        publisher.publish([PagesStored((PageHash(line.encode()),), None, (1,), 1)])
"""


@pytest.fixture
def seen() -> Remembers:
    return Remembers()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sockets, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(event_sockets, "GONE_MS", 700)


@contextmanager
def through(line: Line, publisher: EventPublisher, seen: Remembers) -> Iterator[KvEventSubscriber]:
    """A subscriber whose events, but not the replays, come over this line."""
    endpoint = EventEndpoint(f"tcp://127.0.0.1:{line.port}", publisher.replay_endpoint, publisher.topic, connect=True)
    with line, KvEventSubscriber([endpoint], seen) as subscriber:
        publisher.publish([page(0)])
        assert seen.wait_batches(1) and seen.wait_continuity(WHOLE)
        yield subscriber


def port_of(publisher: EventPublisher) -> int:
    return int(publisher.endpoint.rpartition(":")[2])


@pytest.mark.usefixtures("impatient")
def test_a_line_that_is_cut_is_no_connection_and_is_made_anew(seen: Remembers) -> None:
    with EventPublisher() as publisher, through(line := Line(port_of(publisher)), publisher, seen):
        line.cut = True
        publisher.publish([page(1)])
        assert seen.wait_continuity(CATCHING_UP)
        assert "no connection" in seen.told[-1].reason and not seen.told[-1].connected
        line.cut = False
        assert seen.wait_batches(2) and seen.wait_continuity(WHOLE)
        assert line.connections > 1
    assert (seen.sequences, seen.told[-1].restarts, seen.told[-1].lost) == ([0, 1], 0, 0)


@pytest.mark.usefixtures("impatient")
def test_a_publisher_that_has_nothing_to_say_stays_connected(seen: Remembers) -> None:
    with EventPublisher() as publisher, through(line := Line(port_of(publisher)), publisher, seen):
        seen.wait(lambda s: s.log[-1] is CATCHING_UP, 2.5)  # several times the bound
        assert (line.connections, seen.log[-1]) == (1, WHOLE)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_held_is_no_connection_until_it_goes_on(seen: Remembers) -> None:
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None and engine.stdin is not None
        endpoint, replay = engine.stdout.readline().split()
        try:
            with subscribed(EventEndpoint(endpoint, replay), seen):
                engine.stdin.write("one\n")
                engine.stdin.flush()
                assert seen.wait_batches(1) and seen.wait_continuity(WHOLE)
                os.kill(engine.pid, signal.SIGSTOP)
                assert seen.wait_continuity(CATCHING_UP)
                assert "no connection" in seen.told[-1].reason
                os.kill(engine.pid, signal.SIGCONT)
                assert seen.wait_continuity(WHOLE)
        finally:
            engine.kill()
    assert (seen.sequences, seen.told[-1].restarts) == ([0], 0)


# -- what should have come, as the listener has it


def status_when(subscriber: KvEventSubscriber, holds: Callable[[SourceStatus], bool], seen: Remembers) -> SourceStatus:
    for _ in range(1000):
        (status,) = subscriber.statuses()
        if holds(status):
            return status
        seen.wait(lambda s: False, 0.02)
    raise AssertionError(status)


@contextmanager
def followed(seen: Remembers, *, replay: bool = True, clock: Clock | None = None) -> Iterator[Followed]:
    """A publisher of which one batch has come."""
    with (
        EventPublisher(replay=replay) as publisher,
        KvEventSubscriber([endpoint_of(publisher)], seen, clock=clock or time.monotonic) as subscriber,
    ):
        status_when(subscriber, lambda status: status.connected, seen)
        while not seen.batches:
            publisher.publish([page(0)])
            seen.wait(lambda s: bool(s.batches), 0.2)
        assert seen.wait(lambda s: len(s.batches) == publisher.published)
        status_when(subscriber, lambda status: status.continuity in (WHOLE, BROKEN), seen)
        publisher.publish([])
        assert seen.wait(lambda s: len(s.batches) == publisher.published)
        yield publisher, subscriber


def doubted(seen: Remembers) -> int:
    """How often what was whole no longer was."""
    log = [entry for entry in seen.log if entry in (WHOLE, CATCHING_UP)]
    return sum(pair == (WHOLE, CATCHING_UP) for pair in pairwise(log))


def test_a_publisher_that_says_that_there_is_nothing_is_believed_and_asked_less_and_less(seen: Remembers) -> None:
    with followed(seen) as (publisher, subscriber):
        before = doubted(seen)
        for missed, times in ((PATIENCE - 1, 0), (PATIENCE, 1), (2 * PATIENCE - 1, 1), (2 * PATIENCE, 2)):
            seen.missed = missed
            assert seen.wait(lambda s, times=times: doubted(s) - before >= times)  # type: ignore[misc]
            seen.wait(lambda s, times=times: doubted(s) - before > times, 0.4)  # type: ignore[misc]
            assert doubted(seen) - before == times
            assert seen.wait_continuity(WHOLE)
        seen.missed = 0
        publisher.publish([])
        assert seen.wait(lambda s: len(s.batches) == publisher.published)
        seen.missed = PATIENCE  # something has come: it is as it was at the beginning
        assert seen.wait(lambda s: doubted(s) - before == 3) and seen.wait_continuity(WHOLE)
        assert not status_when(subscriber, lambda status: not status.silent, seen).reason


def test_what_was_not_published_to_us_is_asked_for(seen: Remembers) -> None:
    with followed(seen) as (publisher, _):
        count = len(seen.batches)
        publisher.drop = lambda number: True
        publisher.publish([page(7)])
        assert publisher.wait_sent(publisher.published - 1)
        seen.missed = PATIENCE
        assert seen.wait_batches(count + 1)
        seen.missed = 0
        assert seen.wait_continuity(WHOLE)
    assert seen.batches[-1].events == (page(7),)


def test_a_publisher_that_does_not_answer_is_doubted_until_it_does(seen: Remembers) -> None:
    now = Clock()
    with followed(seen, clock=now) as (publisher, subscriber):
        publisher.mute_replay = True
        seen.missed = PATIENCE
        assert seen.wait_continuity(CATCHING_UP)
        assert "told nothing of them" in seen.told[-1].reason
        status_when(subscriber, lambda status: status.silent, seen)
        now.add(6.0)
        status = status_when(subscriber, lambda status: status.unanswered > 0, seen)
        assert status.continuity is CATCHING_UP and "does not answer" in status.reason
        publisher.mute_replay, seen.missed = False, 0
        now.add(6.0)
        assert seen.wait_continuity(WHOLE)
        assert status_when(subscriber, lambda status: not status.silent, seen).reason == ""


def test_without_replays_it_is_doubted_until_it_tells_more(seen: Remembers) -> None:
    with followed(seen, replay=False) as (publisher, subscriber):
        assert seen.batches[0].sequence == 0  # nothing was missed before
        seen.missed = PATIENCE
        assert seen.wait_continuity(CATCHING_UP)
        assert "told nothing of them" in seen.told[-1].reason and "replay" not in seen.told[-1].reason
        seen.missed = 0
        seen.wait(lambda s: False, 0.3)
        assert subscriber.statuses()[0].continuity is CATCHING_UP
        publisher.publish([page(9)])
        assert seen.wait_continuity(WHOLE)


def test_one_that_is_not_there_is_not_doubted_as_well(seen: Remembers) -> None:
    with followed(seen) as (publisher, subscriber):
        publisher.stop()
        status_when(subscriber, lambda status: not status.connected, seen)
        seen.missed = PATIENCE
        seen.wait(lambda s: False, 0.3)
        (status,) = subscriber.statuses()
        assert not status.silent and "no connection" in status.reason
