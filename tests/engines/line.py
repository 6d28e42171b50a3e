"""A TCP line between two ends, which can be cut without a word to either of them."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class Line:
    """Takes connections at ``port`` and passes bytes to and from ``target``, both on the loopback interface.

    Attributes:
        cut: while it is true, nothing passes; connections stay, and new ones get no further.
        connections: taken so far.
    """

    def __init__(self, target: int) -> None:
        self.cut = False
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._other: dict[socket.socket, socket.socket] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="line")

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Line:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)
        for end in (self._listener, *self._other):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.cut:
                self._stopping.wait(0.02)
                continue
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._take()
                elif isinstance(key.fileobj, socket.socket):
                    self._pass(key.fileobj)

    def _take(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        self.connections += 1
        self._other |= {near: far, far: near}
        for end in (near, far):
            self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, end: socket.socket) -> None:
        if end not in self._other:
            return
        try:
            data = end.recv(65536)
            if data:
                self._other[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (end, self._other[end]):
                self._selector.unregister(each)
                del self._other[each]
                each.close()
