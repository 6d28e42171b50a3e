"""Who asks in the benchmarks of the proxy: one thread, some connections, whole requests made beforehand.

One process for all connections: with eight processes on the core that is left, the proxy's own CPU time a request was
higher, too (`docs/decisions/0033`).
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

NUMBER: Final = b"0000000000000000"
"""Stands in each request; every request that is sent has another number in its place."""
TIMEOUT_S: Final = 20.0
"""Within which an answer must come, or the next piece of it; else TimeoutError."""


class Sent(NamedTuple):
    """What was asked, all answered: milliseconds of each request, sorted, and seconds in all."""

    times: list[float]
    seconds: float

    @property
    def per_s(self) -> float:
        """Requests a second."""
        return len(self.times) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return self.times[min(len(self.times) - 1, int(len(self.times) * share))]


class Connection:
    """One connection, with at most one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._answer = b""
        self.due = 0.0

    def send(self, request: bytes, due: float) -> None:
        """``due``: from when its time counts."""
        self.due = due
        self.socket.sendall(request)

    def answered(self) -> bool:
        """Read what has come; whether the answer is whole. Raises RuntimeError: it is no 200."""
        data = self.socket.recv(65536)
        self._answer += data
        end = self._answer.find(b"\r\n\r\n")
        if not data or (end >= 0 and not self._answer.startswith(b"HTTP/1.1 200")):
            raise RuntimeError(f"no answer, or another one: {self._answer[:300]!r}")
        if end < 0:
            return False
        length = int(self._answer[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(self._answer) < end + 4 + length:
            return False
        self._answer = b""
        return True


class Sender:
    """Sends to one port after another."""

    def __init__(self) -> None:
        self._number = os.getpid() * 10**8

    def _next(self, made: list[bytes]) -> bytes:
        self._number += 1
        return made[self._number % len(made)].replace(NUMBER, b"%016d" % self._number)

    def count(self, port: int, made: list[bytes], clients: int, count: int, ready: Callable[[], None]) -> Sent:
        """So many requests, as fast as they are answered. Each connection has served one before ``ready`` is called."""
        return self._sent(port, made, clients, ready, iter(range(count)))

    def seconds(self, port: int, made: list[bytes], clients: int, seconds: float, ready: Callable[[], None]) -> Sent:
        """For so long, as fast as they are answered."""

        def left() -> Iterator[int]:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                yield 0

        return self._sent(port, made, clients, ready, left())

    def at_rate(self, port: int, made: list[bytes], rate: float, seconds: float, ready: Callable[[], None]) -> Sent:
        """One client, so many requests a second. A time counts from when its request was due, or from the answer
        before it where that came later."""
        connection, times = Connection(port), list[float]()
        with connection.socket:
            self._ask(connection, self._next(made), 0.0)
            ready()
            begun = now = time.perf_counter()
            while now < begun + seconds:
                due = max(now, begun + len(times) / rate)
                request = self._next(made)
                time.sleep(max(0.0, due - time.perf_counter()))
                now = self._ask(connection, request, due)
                times.append((now - due) * 1e3)
        return Sent(sorted(times), now - begun)

    def _ask(self, connection: Connection, request: bytes, due: float) -> float:
        """When it was answered."""
        connection.send(request, due)
        while not connection.answered():
            pass
        return time.perf_counter()

    def _sent(self, port: int, made: list[bytes], clients: int, ready: Callable[[], None], left: Iterator[int]) -> Sent:
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            connections = [Connection(port) for _ in range(clients)]
            for each in connections:
                stack.enter_context(each.socket)
                selector.register(each.socket, selectors.EVENT_READ, each)
                self._ask(each, self._next(made), 0.0)
            ready()
            begun = time.perf_counter()
            times = self._run(made, selector, connections, left)
            return Sent(sorted(times), time.perf_counter() - begun)

    def _run(
        self, made: list[bytes], selector: selectors.DefaultSelector, idle: list[Connection], left: Iterator[int]
    ) -> list[float]:
        times: list[float] = []
        idle, under_way = list(idle), 0
        while True:
            while idle and next(left, None) is not None:
                idle.pop().send(self._next(made), time.perf_counter())
                under_way += 1
            if not under_way:
                return times
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"none of {under_way} requests was answered within {TIMEOUT_S:.0f} s")
            for key, _ in ready:
                connection: Connection = key.data
                if connection.answered():
                    times.append((time.perf_counter() - connection.due) * 1e3)
                    idle.append(connection)
                    under_way -= 1
