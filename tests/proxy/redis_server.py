"""A Redis of a test's own, on a free loopback port: what an operator would run, started and ended by the test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

BOUND_S = 10.0
BINARIES = ("redis-server", "valkey-server")


class RedisServer:
    """``start`` and ``stop`` as often as wanted; always on the same port. What it holds is on disk if ``lasting``."""

    def __init__(self, directory: Path) -> None:
        binary = next(filter(None, map(shutil.which, BINARIES)), None)
        if binary is None:
            pytest.skip("no redis-server or valkey-server is installed (apt-get install redis-server)")
        self._binary = binary
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *, lasting: bool = False, **options: str) -> RedisServer:
        kept = {"appendonly": "yes", "appendfsync": "always"} if lasting else {"appendonly": "no"}
        given = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._directory),
            "save": "",
            **kept,
            **options,
        }
        words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
        self._process = subprocess.Popen([self._binary, *words], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + BOUND_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16)[:1] in (b"+", b"-")
        except OSError:
            return False

    def kill(self) -> None:
        """As ``kill -9``."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(BOUND_S)
