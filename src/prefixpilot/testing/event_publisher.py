"""Publishes KV events over ZeroMQ as vLLM does: PUB, a bounded memory for replays, and a ROUTER that serves it."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from prefixpilot.cache_events import CacheEvent
from prefixpilot.errors import EngineError, MissingExtraError
from prefixpilot.testing.event_wire import EventShape, encode

try:
    import zmq
except ImportError:
    raise MissingExtraError("pyzmq", 'pip install "prefixpilot[kv-events]"') from None

POLL_MS: Final = 20
STOP_S: Final = 5.0
END: Final = b"\xff" * 8


class EventPublisher:
    """One rank's publisher. Start it, ``publish``, stop it; or use it as a context manager.

    By default it binds ``tcp://*`` and its replays to free ports of the loopback interface; ``endpoint`` and ``replay``
    then name them. Given a concrete host, it connects there, as engines do.

    Attributes, which may be set at any time:
        drop: whether a batch is kept from the subscribers (it stays in the memory for replays); by its number.
        mute_replay: leave replay requests without an answer.
        held: while it is true, nothing goes out and nothing is kept for replays; later all of it is, in order.

    Args:
        endpoint: ``tcp://HOST:PORT`` to connect to; ``None``: bind a free port.
        replay: whether to serve replays.
        buffer_steps: batches that are kept for replays.
        shape: who writes.
        topic: what stands in the first frame.
        rank: data-parallel rank that payloads name; ``None``: they do not.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        replay: bool = True,
        buffer_steps: int = 10_000,
        shape: EventShape = EventShape.VLLM,
        topic: str = "kv-events",
        rank: int | None = 0,
    ) -> None:
        self.drop: Callable[[int], bool] = lambda sequence: False
        self.mute_replay = False
        self.held = False
        self._target = endpoint
        self._wants_replay = replay
        self._shape = shape
        self._topic = topic
        self._rank = rank
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._queue: queue.Queue[tuple[int, bytes, bool]] = queue.Queue()
        self._due: tuple[int, bytes, bool] | None = None
        self._next = 0
        self._lock = threading.Lock()
        self._sent = threading.Condition()
        self._served = -1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._ports: tuple[int | None, int | None] = (None, None)

    @property
    def endpoint(self) -> str:
        """As an engine's configuration names it."""
        return self._target or f"tcp://*:{self._port(0)}"

    @property
    def replay_endpoint(self) -> str | None:
        """As an engine's configuration names it; ``None`` if replays are not served."""
        return f"tcp://*:{self._port(1)}" if self._wants_replay else None

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def published(self) -> int:
        """How many batches there were; the next one has this number."""
        return self._next

    def publish(self, events: Sequence[CacheEvent]) -> int:
        """Queue one batch; returns its number. From any thread."""
        return self.publish_bytes(encode(events, self._shape, time=time.time(), rank=self._rank))

    def publish_bytes(self, payload: bytes) -> int:
        """Queue a payload as it is, well-formed or not."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._queue.put((number, payload, self.drop(number)))
            return number

    def wait_sent(self, number: int, timeout_s: float = STOP_S) -> bool:
        """Block until a batch has gone out; False once the bound has passed."""
        with self._sent:
            return self._sent.wait_for(lambda: self._served >= number, timeout_s)

    def start(self) -> EventPublisher:
        if self._thread is not None:
            raise EngineError("the publisher is already started")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        pub.set_hwm(100_000)
        pub_port, replay_port = self._ports
        if self._target is None:
            pub_port = _bind(pub, pub_port)
        else:
            pub.connect(self._target)
        self._ports = (pub_port, _bind(router, replay_port) if self._wants_replay else None)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._serve, args=(context, pub, router), name="publisher", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Raises EngineError past the bound."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        thread.join(STOP_S)
        if thread.is_alive():
            raise EngineError("the publisher did not end in time")

    def restart(self) -> None:
        """As an engine that crashes and comes back: the same ports, nothing remembered, numbers from 0."""
        self.stop()
        with self._lock:
            self._next = 0
            self._buffer.clear()
            self._queue, self._due = queue.Queue(), None
        with self._sent:
            self._served = -1
        self.start()

    def __enter__(self) -> EventPublisher:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _port(self, which: int) -> int:
        port = self._ports[which]
        if port is None:
            raise EngineError("the publisher is not started; call start()")
        return port

    def _serve(
        self, context: zmq.Context[zmq.Socket[bytes]], pub: zmq.Socket[bytes], router: zmq.Socket[bytes]
    ) -> None:
        try:
            while not self._stopping.is_set():
                if self._wants_replay and router.poll(0):
                    self._replay(router)
                self._send_next(pub)
        finally:
            pub.close(linger=0)
            router.close(linger=0)
            context.term()

    def _send_next(self, pub: zmq.Socket[bytes]) -> None:
        """The next batch, if there is one; it stays due while publishing is held, also where that began meanwhile."""
        if self._due is None:
            with suppress(queue.Empty):
                self._due = self._queue.get(timeout=POLL_MS / 1000)
        if self._due is None or self.held:
            self._stopping.wait(POLL_MS / 1000 if self.held else 0)
            return
        (number, payload, dropped), self._due = self._due, None
        if not dropped:
            pub.send_multipart((self._topic.encode(), number.to_bytes(8, "big"), payload))
        self._buffer.append((number, payload))
        with self._sent:
            self._served = number
            self._sent.notify_all()

    def _replay(self, router: zmq.Socket[bytes]) -> None:
        frames = router.recv_multipart()
        if len(frames) != 3 or self.mute_replay:
            return
        start = int.from_bytes(frames[2], "big")
        for number, payload in self._buffer:
            if number >= start:
                router.send_multipart((frames[0], b"", self._topic.encode(), number.to_bytes(8, "big"), payload))
        router.send_multipart((frames[0], b"", b"", END, b""))


def _bind(socket: zmq.Socket[bytes], port: int | None) -> int:
    """Bind on the loopback interface; a free port if none is given."""
    if port is None:
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))
    socket.bind(f"tcp://127.0.0.1:{port}")
    return port
