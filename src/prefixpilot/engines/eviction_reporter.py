"""Tells the proxy which requests an engine has evicted, from inside the engine, without ever making it wait.

``report`` puts ids into a bounded queue and returns; a thread sends them to ``POST /evict``. What does not fit, or
cannot be delivered, is dropped and counted: a notice that is missing costs a plan, an engine that waits costs everyone.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from prefixpilot.errors import ConfigError

MOST_QUEUED: Final = 10_000
MOST_AT_ONCE: Final = 1_000
TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1
PAUSE_S: Final = 1.0
"""After a failure: nothing is sent for so long."""


class EvictionReporter:
    """Start it, ``report``, stop it.

    Args:
        url: the proxy's, as ``http://HOST:PORT``.
        token: its admin token, if it has one.
        most_queued: bound of the queue, in ids.

    Raises:
        ConfigError: no such URL.
    """

    def __init__(self, url: str, *, token: str | None = None, most_queued: int = MOST_QUEUED) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError("url", f"is {url!r}", "write it as http://HOST:PORT, the proxy's")
        self._https = parts.scheme == "https"
        self._netloc = parts.netloc
        self._path = f"{parts.path.rstrip('/')}/evict"
        self._headers = {"content-type": "application/json", "connection": "close"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._queue: queue.Queue[str] = queue.Queue(maxsize=most_queued)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.dropped = 0

    def report(self, request_ids: Sequence[str]) -> None:
        """Queue ids. Never blocks and never raises; drops what does not fit. From one thread."""
        for request_id in request_ids:
            try:
                self._queue.put_nowait(request_id)
            except queue.Full:
                self.dropped += 1

    def start(self) -> EvictionReporter:
        """Does nothing if it is started."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._send_all, name="prefixpilot-evictions", daemon=True)
            self._thread.start()
        return self

    def stop(self, timeout_s: float = 2 * TIMEOUT_S) -> None:
        """What is queued is sent first, if the proxy takes it at once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(timeout_s)

    def __enter__(self) -> EvictionReporter:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _send_all(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            ids = self._next()
            if ids and not self._send(ids):
                self.dropped += len(ids)
                if self._stopping.wait(PAUSE_S):
                    return

    def _next(self) -> list[str]:
        """What is queued, in order; waits a moment for the first."""
        ids: list[str] = []
        try:
            ids.append(self._queue.get(timeout=POLL_S))
            while len(ids) < MOST_AT_ONCE:
                ids.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return ids

    def _send(self, ids: Sequence[str]) -> bool:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._netloc, timeout=TIMEOUT_S)
        try:
            connection.request("POST", self._path, json.dumps({"request_ids": list(ids)}), self._headers)
            delivered = connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        self.sent += len(ids) if delivered else 0
        return delivered
