"""Subscribes to the KV events of vLLM and SGLang over ZeroMQ. Nothing here can hold an engine up.

The engine publishes on a PUB socket, which drops what a slow subscriber does not take, and repeats batches from its
ROUTER socket on request. A batch comes as three frames: topic, number (8 bytes, big end first), MessagePack. A replay
is asked for by an empty frame and a number; it comes as an empty frame and a batch each, with -1 as the last number.
Order and losses are :mod:`prefixpilot.engines.sequencer`'s, the format is :mod:`prefixpilot.engines.wire`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final

from prefixpilot.cache_events import CacheCleared, EventBatch
from prefixpilot.engines import wire
from prefixpilot.engines.base import Continuity, EventListener, SourceStatus
from prefixpilot.engines.endpoints import EventEndpoint, check_endpoint, rank_address, seen_from_here
from prefixpilot.engines.event_sockets import opened, received, subscribe
from prefixpilot.engines.sequencer import Action, Anew, Ask, Deliver, Sequencer
from prefixpilot.engines.why import Standing, reason
from prefixpilot.errors import ConfigError, EngineError, EventError, MissingExtraError

try:
    import zmq
    from zmq.utils.monitor import parse_monitor_message
except ImportError:
    raise MissingExtraError("pyzmq", 'pip install "prefixpilot[proxy,kv-events]"') from None

Clock = Callable[[], float]
"""Seconds that only rise."""
POLL_MS: Final = 100
REPLAY_S: Final = 5.0
"""How long the engine may be silent in a replay before it is asked again, or given up."""
CHECK_S: Final = 1.0
"""How often an engine is asked that is connected and has published nothing to us."""
PATIENCE: Final = 3
"""How often in a row a batch may lack that should have come: one that is late is a busy machine, and waits that are
counted do not overlap."""
END: Final = (1 << 64) - 1
_HANDSHAKE_FAILED: Final = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_PEER_EVENTS: Final = zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | _HANDSHAKE_FAILED
_WORSE: Final = (Continuity.WHOLE, Continuity.CATCHING_UP, Continuity.BROKEN)


class _Source:
    """One rank of one endpoint: its sockets and its order. Lives on the subscriber's thread once that runs."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: EventEndpoint, rank: int, clock: Clock, field: str
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._rank = rank
        self._clock = clock
        self._replay = None if endpoint.replay is None else rank_address(endpoint.replay, rank)
        self._address = rank_address(endpoint.endpoint, rank)
        self._shown = seen_from_here(self._address, endpoint.host) if endpoint.we_connect else self._address
        self.order = Sequencer(replay=endpoint.replay is not None)
        self._counts = {"batches": 0, "replayed": 0, "unreadable": 0, "unknown": 0}
        self._undecoded = 0
        self._sequence = -1
        self._reported = Continuity.WHOLE
        self._peers = 0
        self._refused = False
        self._answered = False
        self._unanswered = 0
        self._silent = False
        self._patience = PATIENCE
        self._deadline = 0.0
        self._dealer: zmq.Socket[bytes] | None = None
        self._subscription = opened(context, zmq.SUB)
        self._monitor: zmq.Socket[bytes] = self._subscription.get_monitor_socket(_PEER_EVENTS)
        try:  # monitored from its first moment on: no connection is missed
            subscribe(self._subscription, endpoint, self._address, field)
        except ConfigError:
            self.close()
            raise

    def sockets(self) -> Iterable[zmq.Socket[bytes]]:
        yield self._subscription
        yield self._monitor
        if self._dealer is not None:
            yield self._dealer

    def begin(self, listener: EventListener) -> None:
        self._run(self.order.started(), listener)

    def turn(self, listener: EventListener) -> None:
        """Take what has come, hand on what is due. Live batches first: they are what a socket may drop."""
        for frames in received(self._subscription):
            if len(frames) != 3 or len(frames[1]) != 8:
                self._counts["unreadable"] += 1
                continue
            self._run(self.order.live(int.from_bytes(frames[1], "big"), frames[2]), listener)
        self._take_replies(listener)
        for frames in received(self._monitor):
            self._note_peer(int(parse_monitor_message(frames)["event"]), listener)
        if self._clock() > self._deadline:
            self._run(self._overdue(), listener)

    def doubt(self, times: int, listener: EventListener) -> None:
        """So often in a row something should have come. A publisher that says that there is nothing is believed, and
        asked again only after twice as many."""
        if times < self._patience or not self._peers or self.order.asking:
            return
        self._silent, self._patience = True, 2 * times
        self._run(self.order.doubted(), listener)

    def status(self) -> SourceStatus:
        order = self.order
        return SourceStatus(
            source=self._endpoint.endpoint,
            rank=self._rank,
            continuity=self._continuity,
            sequence=self._sequence,
            lost=order.lost,
            gaps=order.gaps,
            restarts=order.restarts,
            reason="" if self._continuity is Continuity.WHOLE else reason(self._standing()),
            connected=self._peers > 0,
            unanswered=self._unanswered,
            silent=self._silent,
            **self._counts,
        )

    @property
    def _continuity(self) -> Continuity:
        """What was replayed is not all as long as nobody is connected who tells more."""
        found = self.order.continuity
        return Continuity.CATCHING_UP if found is Continuity.WHOLE and not self._peers else found

    def _standing(self) -> Standing:
        return Standing(
            address=self._shown,
            replay=None if self._replay is None else seen_from_here(self._replay, self._endpoint.host),
            continuity=self._continuity,
            batches=self._counts["batches"],
            lost=self.order.lost,
            connects=not self._endpoint.we_connect,
            connected=self._peers > 0,
            answered=self._answered,
            unanswered=self._unanswered,
            unreadable=self._undecoded,
            foreign=self._counts["unreadable"] - self._undecoded,
            silent=self._silent,
        )

    def close(self) -> None:
        self._subscription.disable_monitor()
        for socket in self.sockets():
            socket.close(linger=0)

    def _take_replies(self, listener: EventListener) -> None:
        """A reply that belongs to an older question cannot come: each question has a socket of its own."""
        dealer = self._dealer
        for frames in received(dealer) if dealer is not None else ():
            self._deadline, self._unanswered = self._clock() + REPLAY_S, 0
            if len(frames) != 4 or len(frames[2]) != 8:
                self._counts["unreadable"] += 1
                continue
            sequence = int.from_bytes(frames[2], "big")
            ended = sequence == END
            self._silent = self._silent and not ended
            self._run(self.order.replay_ended() if ended else self.order.replayed(sequence, frames[3]), listener)
            if ended or self._dealer is not dealer:
                break
        if not self.order.asking:
            self._deadline = min(self._deadline, self._clock() + CHECK_S)

    def _note_peer(self, event: int, listener: EventListener) -> None:
        if event == zmq.Event.CONNECTED:
            self._answered = True
            return
        if event & _HANDSHAKE_FAILED:  # of who is no engine; its disconnection follows, and is none of a peer
            self._refused = True
            return
        if event == zmq.Event.DISCONNECTED and self._refused:
            self._refused = False
            return
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._peers += 1
        else:
            self._peers = max(self._peers - 1, 0)
            self.order.disconnected()
        self._run(self.order.connected() if self._peers else [], listener)

    def _overdue(self) -> list[Action]:
        """A replay that does not come; or a publisher of which nothing was heard: it may not know of us yet."""
        self._deadline = self._clock() + CHECK_S
        if self.order.asking:
            self._unanswered += 1
            return self.order.replay_failed()
        return [] if self.order.heard or not self._peers else self.order.check()

    def _run(self, actions: Sequence[Action], listener: EventListener) -> None:
        """Bad news goes before the batches, good news after them."""
        self._report(listener, only_worse=True)
        for action in actions:
            if isinstance(action, Ask):
                self._ask(action.start)
            elif isinstance(action, Anew):
                listener.on_batch(EventBatch(self._endpoint.endpoint, self._rank, -1, (CacheCleared(),)))
            else:
                self._deliver(action, listener)
        self._report(listener, only_worse=False)

    def _report(self, listener: EventListener, *, only_worse: bool) -> None:
        continuity = self._continuity
        worse = _WORSE.index(continuity) > _WORSE.index(self._reported)
        if worse or (not only_worse and continuity is not self._reported):
            self._reported = continuity
            listener.on_status(self.status())

    def _ask(self, start: int) -> None:
        if self._dealer is not None:
            self._dealer.close(linger=0)
        self._dealer = opened(self._context, zmq.DEALER)
        assert self._replay is not None
        self._dealer.connect(seen_from_here(self._replay, self._endpoint.host))
        self._dealer.send_multipart((b"", start.to_bytes(8, "big")))
        self._deadline = self._clock() + REPLAY_S

    def _deliver(self, action: Deliver, listener: EventListener) -> None:
        self._sequence, self._silent, self._patience = action.sequence, False, PATIENCE
        self._counts["batches"] += 1
        self._counts["replayed"] += action.replayed
        try:
            decoded = wire.decode(action.payload)
        except EventError:
            self._counts["unreadable"] += 1
            self._undecoded += 1
            self.order.unreadable()
            self._report(listener, only_worse=True)
            decoded = wire.DecodedBatch((), None, 0)
        self._counts["unknown"] += decoded.unknown
        if any(isinstance(event, CacheCleared) for event in decoded.events):
            self.order.cleared()
        events = (CacheCleared(), *decoded.events) if action.fresh else decoded.events
        if self._counts["batches"] == 1 and self._continuity is not Continuity.WHOLE:
            listener.on_status(self.status())  # it is no longer as nothing had come
        listener.on_batch(EventBatch(self._endpoint.endpoint, self._rank, action.sequence, events))


class KvEventSubscriber:
    """An :class:`~prefixpilot.engines.base.EventSource` over ZeroMQ: one thread for all endpoints and ranks.

    Args:
        endpoints: where engines publish.
        listener: is called on the thread.
        clock: for tests.
        stop_timeout_s: bound of ``stop``.
        field: the setting that errors name.

    Raises:
        ConfigError: an endpoint that cannot be.
    """

    def __init__(
        self,
        endpoints: Sequence[EventEndpoint],
        listener: EventListener,
        *,
        clock: Clock = time.monotonic,
        stop_timeout_s: float = 5.0,
        field: str = "events",
    ) -> None:
        self._field = field
        self._endpoints = tuple(check_endpoint(each, f"{field}[{i}]") for i, each in enumerate(endpoints))
        self._listener = listener
        self._clock = clock
        self._stop_timeout_s = stop_timeout_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._statuses: tuple[SourceStatus, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether it is started and its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How each source stands: one for each rank of each endpoint, in order. From any thread."""
        if self.alive:
            return self._statuses
        return tuple(s._replace(continuity=Continuity.BROKEN, reason="not listening") for s in self._statuses)

    def start(self) -> KvEventSubscriber:
        """See :class:`~prefixpilot.engines.base.EventSource`."""
        if self._thread is not None:
            raise EngineError("the subscriber is already started")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sources: list[_Source] = []
        try:
            for endpoint in self._endpoints:
                sources.extend(
                    _Source(context, endpoint, rank, self._clock, self._field) for rank in range(endpoint.ranks)
                )
        except BaseException:
            _close(context, sources)
            raise
        self._statuses = tuple(source.status() for source in sources)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._listen, args=(context, sources), name="kv-events", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """See :class:`~prefixpilot.engines.base.EventSource`. It can be started again. Does nothing if not started."""
        thread = self._thread
        if thread is None:
            return
        self._stopping.set()
        thread.join(self._stop_timeout_s)
        if thread.is_alive():
            raise EngineError(f"the listener of KV events did not return within {self._stop_timeout_s:g} s")
        self._thread = None

    def __enter__(self) -> KvEventSubscriber:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _listen(self, context: zmq.Context[zmq.Socket[bytes]], sources: list[_Source]) -> None:
        try:
            for source in sources:
                source.begin(self._listener)
            while not self._stopping.is_set():
                self._wait(sources)
                for source in sources:
                    source.turn(self._listener)
                unheard = self._listener.unheard()
                for source in sources if unheard else ():
                    source.doubt(unheard, self._listener)
                self._statuses = tuple(source.status() for source in sources)
        finally:
            _close(context, sources)

    @staticmethod
    def _wait(sources: Iterable[_Source]) -> None:
        poller = zmq.Poller()
        for source in sources:
            for socket in source.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(POLL_MS)


def _close(context: zmq.Context[zmq.Socket[bytes]], sources: Iterable[_Source]) -> None:
    for source in sources:
        source.close()
    context.term()
