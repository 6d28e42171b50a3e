"""The subscriber over real sockets, against the publisher double: order, gaps, replays, restarts, ill will, ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.engines.listening import Remembers

from prefixpilot.cache_events import CacheCleared, EventBatch, PageHash, PagesStored
from prefixpilot.engines.base import Continuity, EventSource, SourceStatus
from prefixpilot.engines.endpoints import EventEndpoint
from prefixpilot.engines.kv_events import KvEventSubscriber
from prefixpilot.errors import ConfigError, EngineError
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.event_wire import EventShape

WHOLE, CATCHING_UP, BROKEN = Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN


def page(number: int) -> PagesStored:
    return PagesStored((PageHash(number.to_bytes(8, "big")),), None, (number,), 1)


def endpoint_of(publisher: EventPublisher) -> EventEndpoint:
    return EventEndpoint(publisher.endpoint, publisher.replay_endpoint, publisher.topic)


def subscribed(endpoint: EventEndpoint, listener: Remembers) -> KvEventSubscriber:
    return KvEventSubscriber([endpoint], listener)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def publisher() -> Iterator[EventPublisher]:
    with EventPublisher() as publisher:
        yield publisher


@pytest.fixture
def seen() -> Remembers:
    return Remembers()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_a_late_subscriber_gets_all_from_the_first_batch_on(publisher: EventPublisher, seen: Remembers) -> None:
    for number in range(50):
        publisher.publish([page(number)])
    assert publisher.wait_sent(49)
    with subscribed(endpoint_of(publisher), seen) as subscriber:
        assert seen.wait_batches(50)
        publisher.publish([page(50), CacheCleared()])
        assert seen.wait_batches(51)
    assert seen.batches[0] == EventBatch(publisher.endpoint, 0, 0, (page(0),))
    assert seen.batches[-1].events == (page(50), CacheCleared())
    assert seen.sequences == list(range(51))
    assert seen.log[0] is CATCHING_UP
    assert WHOLE in seen.log
    assert seen.threads == {"kv-events"}
    (status,) = subscriber.statuses()
    assert (status.continuity, status.reason) == (BROKEN, "not listening")


def test_a_gap_is_replayed_in_order(publisher: EventPublisher, seen: Remembers) -> None:
    publisher.publish([page(0)])
    with subscribed(endpoint_of(publisher), seen) as subscriber:
        assert seen.wait_continuity(WHOLE)
        publisher.publish([page(1)])
        assert seen.wait_batches(2)
        publisher.drop = lambda number: number in (2, 3)
        for number in range(2, 6):
            publisher.publish([page(number)])
        assert seen.wait_batches(6)
        assert seen.wait_continuity(WHOLE)
        (status,) = subscriber.statuses()
    assert seen.sequences == list(range(6))
    assert (seen.told[-1].lost, status.source) == (0, publisher.endpoint)


def test_a_lost_window_breaks_the_picture_until_the_cache_is_cleared(seen: Remembers) -> None:
    with EventPublisher(buffer_steps=3) as publisher:
        for number in range(10):
            publisher.publish([page(number)])
        assert publisher.wait_sent(9)
        with subscribed(endpoint_of(publisher), seen):
            assert seen.wait_batches(3)
            assert seen.wait_continuity(BROKEN)
            assert seen.told[-1].lost == 7
            publisher.publish([CacheCleared()])
            assert seen.wait_continuity(WHOLE)
    assert seen.sequences == [7, 8, 9, 10]


@pytest.mark.parametrize("connects", [False, True])
def test_a_restart_empties_the_cache_before_its_first_batch(seen: Remembers, connects: bool) -> None:
    target = f"tcp://127.0.0.1:{free_port()}" if connects else None
    with EventPublisher(target) as publisher, subscribed(endpoint_of(publisher), seen) as subscriber:
        for number in range(3):
            publisher.publish([page(number)])
        assert seen.wait_batches(3)
        publisher.restart()
        publisher.publish([page(7)])
        assert seen.wait(lambda s: s.batches[-1].events[-1] == page(7))
        while (status := subscriber.statuses()[0]).continuity is not WHOLE or not status.restarts:
            seen.wait(lambda s: False, 0.02)
    assert status.restarts == 1
    told, first = [b for b in seen.batches[3:] if b.sequence < 0], [b for b in seen.batches[3:] if b.sequence >= 0]
    assert first == [EventBatch(publisher.endpoint, 0, 0, (CacheCleared(), page(7)))]
    assert told in ([], [EventBatch(publisher.endpoint, 0, -1, (CacheCleared(),))])  # a live batch may tell it first


def test_a_stranger_on_the_port_takes_no_connection_away(seen: Remembers) -> None:
    """Where an engine connects to us: what is no ZeroMQ, a scan of ports among it, comes and goes."""
    port = free_port()
    with EventPublisher(f"tcp://127.0.0.1:{port}") as publisher:
        with subscribed(endpoint_of(publisher), seen) as subscriber:
            publisher.publish([page(0)])
            assert seen.wait_batches(1)
            assert seen.wait_continuity(WHOLE)
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                    stranger.sendall(said)
            time.sleep(0.3)  # for its end to be noticed
            publisher.publish([page(1)])
            assert seen.wait_batches(2)
            assert subscriber.statuses()[0].connected
        assert seen.wait_continuity(WHOLE)
    whole = [status.continuity for status in seen.told].index(WHOLE)
    assert {status.continuity for status in seen.told[whole:]} == {WHOLE}


def test_a_restart_is_told_before_the_engine_publishes_again(publisher: EventPublisher, seen: Remembers) -> None:
    with subscribed(endpoint_of(publisher), seen):
        publisher.publish([page(0)])
        assert seen.wait_batches(1)
        assert seen.wait_continuity(WHOLE)
        publisher.stop()
        assert seen.wait_continuity(CATCHING_UP)
        publisher.start()
        assert seen.wait_continuity(WHOLE)
    assert seen.told[-1].restarts == 0
    assert seen.sequences == [0]


def test_a_new_engine_that_publishes_nothing_is_told_too(publisher: EventPublisher, seen: Remembers) -> None:
    with subscribed(endpoint_of(publisher), seen) as subscriber:
        publisher.publish([page(0)])
        assert seen.wait_batches(1) and seen.wait_continuity(WHOLE)
        publisher.restart()
        assert seen.wait_batches(2)
        assert seen.batches[1] == EventBatch(publisher.endpoint, 0, -1, (CacheCleared(),))
        while (status := subscriber.statuses()[0]).continuity is not WHOLE:
            seen.wait(lambda s: False, 0.02)
    assert (status.restarts, status.reason) == (1, "")


def reason_of(endpoint: EventEndpoint, holds: str) -> SourceStatus:
    """The status of a source once its reason says so."""
    seen = Remembers()
    with subscribed(endpoint, seen) as subscriber:
        for _ in range(400):
            (status,) = subscriber.statuses()
            if holds in status.reason:
                return status
            seen.wait(lambda s: False, 0.05)
    raise AssertionError(status.reason)


def test_an_endpoint_at_which_nobody_listens_is_told() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    for replay in (None, address):
        status = reason_of(EventEndpoint(address, replay, connect=True), "nobody answers there")
        assert f"nothing has come from {address}" in status.reason and "lost" not in status.reason
        assert (status.connected, status.heard, status.batches) == (False, False, 0)


def test_another_service_is_told_from_a_publisher() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        status = reason_of(EventEndpoint(address, connect=True), "no publisher of events")
        assert not status.connected


def test_the_port_of_replays_given_for_that_of_events_is_told(publisher: EventPublisher) -> None:
    assert publisher.replay_endpoint is not None
    status = reason_of(EventEndpoint(publisher.replay_endpoint), "no publisher of events")
    assert not status.connected


def test_a_replay_endpoint_at_which_nobody_listens_is_told(publisher: EventPublisher) -> None:
    now, seen = Clock(), Remembers()
    replay = f"tcp://127.0.0.1:{free_port()}"
    with KvEventSubscriber([EventEndpoint(publisher.endpoint, replay)], seen, clock=now) as subscriber:
        while not subscriber.statuses()[0].connected:
            seen.wait(lambda s: False, 0.02)
        now.add(6.0)
        while not (status := subscriber.statuses()[0]).unanswered:
            seen.wait(lambda s: False, 0.02)
    assert f"asked for at {replay}, where nobody answers" in status.reason


def test_what_was_replayed_is_not_all_where_nobody_publishes(publisher: EventPublisher, seen: Remembers) -> None:
    """The port of replays is right, that of events is not."""
    publisher.publish([page(0)])
    endpoint = EventEndpoint(f"tcp://127.0.0.1:{free_port()}", publisher.replay_endpoint, connect=True)
    with subscribed(endpoint, seen) as subscriber:
        assert seen.wait_batches(1)
        for _ in range(20):
            seen.wait(lambda s: False, 0.02)
        (status,) = subscriber.statuses()
    assert WHOLE not in seen.log and status.continuity is CATCHING_UP
    assert "no connection" in status.reason


def test_a_publisher_without_replays_that_has_told_nothing_yet_is_no_loss() -> None:
    with EventPublisher(replay=False) as publisher:
        status = reason_of(endpoint_of(publisher), "without a replay endpoint")
        assert status.connected and not status.heard


def test_batches_that_cannot_be_read_are_told_as_such(publisher: EventPublisher, seen: Remembers) -> None:
    with subscribed(endpoint_of(publisher), seen):
        assert seen.wait_continuity(WHOLE)
        publisher.publish_bytes(b"\xc1 no MessagePack")
        assert seen.wait_continuity(BROKEN)
        assert "1 batches of" in (said := seen.told[-1].reason) and "came and cannot be read" in said
        assert "keep" not in said


def test_a_foreign_host_that_we_would_have_to_bind_comes_with_the_reason(seen: Remembers) -> None:
    with pytest.raises(ConfigError, match="an engine whose endpoint names a host connects to it") as caught:
        subscribed(EventEndpoint("tcp://192.0.2.1:5557"), seen).start()
    assert "tcp://*:PORT" in caught.value.remedy


def test_the_engine_may_connect_to_us_and_come_later(seen: Remembers) -> None:
    target = f"tcp://127.0.0.1:{free_port()}"
    replay = f"tcp://127.0.0.1:{free_port()}"
    with subscribed(EventEndpoint(target), seen), EventPublisher(target, replay=False) as publisher:
        assert not EventEndpoint(target, replay).we_connect
        for number in range(200):
            publisher.publish([page(number)])
            publisher.wait_sent(number)
            if seen.batches:
                break
        assert seen.wait_batches(1)


def test_batches_that_were_not_published_to_us_are_found(seen: Remembers) -> None:
    """A publisher that connects may not know of us yet when it publishes; nothing live comes after."""
    with EventPublisher() as publisher, subscribed(endpoint_of(publisher), seen):
        assert seen.wait_continuity(WHOLE)
        publisher.drop = lambda number: True
        publisher.publish([page(0)])
        assert seen.wait_batches(1)


def test_payloads_of_ill_will_are_counted_and_the_next_batch_is_read(
    publisher: EventPublisher, seen: Remembers
) -> None:
    with subscribed(endpoint_of(publisher), seen) as subscriber:
        publisher.publish([page(0)])
        assert seen.wait_batches(1)
        for payload in (b"", b"\xc1", b"\x91" * 100_000, b"\x92\x00\xdd\xff\xff\xff\xff", bytes(100_000)):
            publisher.publish_bytes(payload)
        publisher.publish([page(6)])
        assert seen.wait_batches(7)
        assert subscriber.alive
        assert (seen.told[-1].continuity, seen.told[-1].unreadable) == (BROKEN, 1)
    assert [batch.events for batch in seen.batches] == [(page(0),), (), (), (), (), (), (page(6),)]


def test_frames_that_are_no_batch_are_passed_over(seen: Remembers) -> None:
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.PUB)
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    try:
        with subscribed(EventEndpoint(f"tcp://127.0.0.1:{port}", connect=True), seen) as subscriber:
            while not any(status.unreadable > 2 for status in subscriber.statuses()):
                for frames in ([b""], [b"", b"short", b""], [b"", bytes(8), b"", b""]):
                    pub.send_multipart(frames)
                pub.poll(20, zmq.POLLIN)
            assert subscriber.alive
    finally:
        pub.close(linger=0)
        context.term()
    assert seen.batches == []


def test_several_endpoints_and_ranks_share_one_thread(seen: Remembers) -> None:
    with EventPublisher(shape=EventShape.SGLANG) as first, EventPublisher(replay=False) as second:
        endpoints = [endpoint_of(first), endpoint_of(second)]
        with KvEventSubscriber(endpoints, seen) as subscriber:
            assert seen.wait(lambda s: any(status.source == second.endpoint for status in s.told))
            first.publish([page(1)])
            assert seen.wait_batches(1)
            while len(seen.sequences) < 2:
                second.publish([page(2)])
                seen.wait(lambda s: len(s.batches) > 1, 0.05)
            assert [status.source for status in subscriber.statuses()] == [first.endpoint, second.endpoint]
    assert {batch.source for batch in seen.batches} == {first.endpoint, second.endpoint}
    assert seen.threads == {"kv-events"}


def test_each_rank_has_a_port_and_an_order_of_its_own(seen: Remembers) -> None:
    with neighbours() as (zero, one):
        base = zero.rpartition(":")[2]
        endpoint = EventEndpoint(f"tcp://127.0.0.1:{base}", ranks=2)
        with (
            KvEventSubscriber([endpoint], seen),
            EventPublisher(zero, replay=False) as a,
            EventPublisher(one, replay=False) as b,
        ):
            while {batch.rank for batch in seen.batches} != {0, 1}:
                a.publish([page(1)])
                b.publish([page(2)])
                seen.wait(lambda s: False, 0.05)
    assert {batch.rank: batch.events for batch in seen.batches} == {0: (page(1),), 1: (page(2),)}


class neighbours:  # noqa: N801
    """Two free ports, one after the other, as endpoints."""

    def __enter__(self) -> tuple[str, str]:
        for _ in range(50):
            port = free_port()
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
            except OSError:
                continue
        raise OSError("no two free ports")

    def __exit__(self, *error: object) -> None:
        pass


def test_a_replay_that_is_not_answered_is_given_up(publisher: EventPublisher, seen: Remembers) -> None:
    now = Clock()
    publisher.mute_replay = True
    publisher.drop = lambda number: number == 0
    with KvEventSubscriber([endpoint_of(publisher)], seen, clock=now):
        while not seen.batches:
            publisher.publish([page(0)])
            seen.wait(lambda s: False, 0.05)
            now.add(6.0)
        assert seen.told[-1].continuity is BROKEN
    assert (seen.sequences[0], seen.told[-1].lost) == (1, 1)


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def add(self, seconds: float) -> None:
        self._now += seconds


def test_a_listener_that_raises_ends_the_subscriber_which_says_so(publisher: EventPublisher) -> None:
    caught: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, caught.append
    try:
        subscriber = subscribed(endpoint_of(publisher), Raises())
        subscriber.start()
        publisher.publish([page(0)])
        assert publisher.wait_sent(0)
        deadline = threading.Event()
        for _ in range(200):
            if not subscriber.alive:
                break
            deadline.wait(0.05)
        assert not subscriber.alive
        assert subscriber.statuses()[0].reason == "not listening"
        subscriber.stop()
    finally:
        threading.excepthook = before
    assert [args.exc_type for args in caught] == [ZeroDivisionError]


class Raises(Remembers):
    def on_batch(self, batch: EventBatch) -> None:
        raise ZeroDivisionError


def test_a_listener_that_does_not_return_bounds_the_stop(publisher: EventPublisher) -> None:
    stuck = Stuck()
    subscriber = KvEventSubscriber([endpoint_of(publisher)], stuck, stop_timeout_s=0.05).start()
    publisher.publish([page(0)])
    assert stuck.entered.wait(20)
    with pytest.raises(EngineError, match="did not return"):
        subscriber.stop()
    stuck.leave.set()
    while subscriber.alive:
        stuck.entered.wait(0.01)
    subscriber.stop()


class Stuck(Remembers):
    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = threading.Event(), threading.Event()

    def on_batch(self, batch: EventBatch) -> None:
        self.entered.set()
        self.leave.wait(20)


def test_it_starts_once_and_can_be_started_again(publisher: EventPublisher, seen: Remembers) -> None:
    source: EventSource = subscribed(endpoint_of(publisher), seen)
    source.stop()
    for _ in range(2):
        source.start()
        with pytest.raises(EngineError, match="already"):
            source.start()
        assert source.alive
        source.stop()
        assert not source.alive


def test_an_address_that_is_taken_is_a_config_error(seen: Remembers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot be bound"):
            subscribed(EventEndpoint(address), seen).start()


def test_an_endpoint_is_checked_before_it_is_used(seen: Remembers) -> None:
    with pytest.raises(ConfigError, match=r"events\[0\].endpoint"):
        subscribed(EventEndpoint("localhost:5557"), seen)
