"""The embedded engine: the real llama.cpp server (PyPI wheel ``xllamacpp``) as a supervised child process.

The supervisor imports nothing of llama.cpp; :mod:`prefixpilot.engines.llamacpp_server` does, in the child.

What llama.cpp does with prompts (measured with xllamacpp 2026.10): reuse is counted token by token; an identical
prompt is cached but for its last token; ``usage.prompt_tokens_details.cached_tokens`` is reported, in streams too if
``stream_options.include_usage`` is set; the request's ``model`` may be any name. With one slot and the host-RAM store
on, earlier prompts come back; with the store off (``cache_ram_mib=0``) only the newest prompt counts. It is not a radix
tree: it asks the store only where less than half of the slot's newest prompt would be kept, and takes from it only
where a quarter of the stored prompt would be.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urlsplit

import prefixpilot
from prefixpilot.engines.llamacpp_saved import SavedSlots
from prefixpilot.engines.llamacpp_server import ServerSettings
from prefixpilot.engines.models import check_gguf
from prefixpilot.errors import ConfigError, EngineError, MissingExtraError

INSTALL = 'pip install "prefixpilot[llamacpp]"'
CONTEXT_TOKENS = 8192
CACHE_RAM_MIB = 2048
MAX_SLOT_BYTES = 1 << 30
LOG_LINES = 200
LOG_LINE_BYTES = 2000


def default_threads() -> int:
    """Cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


class LogTail:
    """Drains a child's log in a thread of its own, so that the child never blocks, and keeps the newest lines."""

    def __init__(self, stream: IO[bytes], lines: int = LOG_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._stream = stream
        self._thread = threading.Thread(target=self._drain, name="engine-log", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._stream:
            while line := self._stream.readline(LOG_LINE_BYTES):
                self._lines.append(line.decode("utf-8", "replace").rstrip())

    def last(self, count: int) -> tuple[str, ...]:
        """The newest ``count`` lines, oldest first."""
        return tuple(self._lines)[-count:]

    def finish(self, timeout_s: float) -> None:
        """Wait until the stream has ended."""
        self._thread.join(timeout_s)


class Announcement:
    """The one line that the child writes to its stdout, read in a thread so that the wait for it has a bound."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._line = b""
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="engine-announcement", daemon=True).start()

    def _read(self) -> None:
        with self._stream:
            self._line = self._stream.readline(65536)
        self._ended.set()

    def wait(self, timeout_s: float) -> dict[str, str] | None:
        """The message; empty if the child ended without one; ``None`` if it has not come yet."""
        if not self._ended.wait(timeout_s):
            return None
        message: dict[str, str] = json.loads(self._line) if self._line else {}
        return message


class EmbeddedEngine:
    """llama.cpp's OpenAI-compatible server on a free loopback port, for as long as this object is started.

    A plain blocking API: start it before an event loop, or in a worker thread. The child ends with this process,
    however this process ends. Start it, read ``base_url``, stop it; or use it as a context manager. It can be started
    again, then with an empty cache and on another port.

    Args:
        model: path of a GGUF file; see :func:`prefixpilot.engines.models.resolve_model`.
        context_tokens: KV size of a slot in tokens; a longer prompt gets llama.cpp's error.
        threads: compute threads; ``None``: the cores that this process may use.
        parallel: slots: requests computed at the same time, each with a KV cache of its own. A prompt finds the prefix
            of one slot or of one stored prompt; what a prompt takes from the store goes on in its slot, so the rest of
            the stored prompt is gone. More slots keep more prompts whole (in the demo, mode on, 4 slots: 4,314 tokens
            cached; 1 slot: 3,905) and take ``context_tokens`` of KV memory each.
        cache_ram_mib: bound, in MiB, of the host-RAM store of earlier prompts' KV (23 KiB a token for SmolLM2-135M).
        start_timeout_s, stop_timeout_s: bounds of ``start`` and of the polite half of ``stop``, in seconds.
        python: the interpreter that runs the child.
        slot_directory: what the slots hold is kept there from a ``stop`` to the next ``start`` of the same model;
            ``None``: it is gone.
        max_slot_bytes: of the files there.

    Raises:
        ConfigError: a setting that cannot be used, or no GGUF file at ``model``.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_tokens: int = CONTEXT_TOKENS,
        threads: int | None = None,
        parallel: int = 4,
        cache_ram_mib: int = CACHE_RAM_MIB,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 5.0,
        python: str = sys.executable,
        slot_directory: Path | None = None,
        max_slot_bytes: int = MAX_SLOT_BYTES,
    ) -> None:
        threads = default_threads() if threads is None else threads
        for name, value, least in (
            ("context_tokens", context_tokens, 1),
            ("threads", threads, 1),
            ("parallel", parallel, 1),
            ("cache_ram_mib", cache_ram_mib, 0),
        ):
            if value < least:
                raise ConfigError(name, f"is {value}", f"use an int of {least} or more")
        self.model = check_gguf(model).absolute()
        directory = None if slot_directory is None else slot_directory.absolute()
        at = None if directory is None else str(directory)
        self._settings = ServerSettings(str(self.model), context_tokens, threads, parallel, cache_ram_mib, at)
        stamp = _stamp(self.model, self._settings)
        self._saved = None if directory is None else SavedSlots(directory, stamp, max_slot_bytes)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._python = python
        self._child: subprocess.Popen[bytes] | None = None
        self._log: LogTail | None = None
        self._url: str | None = None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``, without ``/v1``. Raises EngineError before ``start`` and after ``stop``."""
        if self._url is None:
            raise EngineError("the embedded engine is not running; call start()")
        return self._url

    @property
    def pid(self) -> int | None:
        """Process id of the child, ``None`` while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child is not None and self._child.poll() is None

    @property
    def context_tokens(self) -> int:
        return self._settings.context_tokens

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The child's newest log lines, oldest first."""
        return () if self._log is None else self._log.last(lines)

    def start(self) -> EmbeddedEngine:
        """Start the child and return when it answers.

        Raises:
            MissingExtraError: xllamacpp is not installed.
            EngineError: the child ended or was not ready in time (its last log lines are in the message), or it is
                already started.
        """
        if self._child is not None:
            raise EngineError("the embedded engine is already started; call stop() first")
        deadline = time.monotonic() + self._start_timeout_s
        try:
            announcement = self._spawn()
            self._url = self._announced_url(announcement, deadline)
            self._wait_until_healthy(self._url, deadline)
            if self._saved is not None:
                self._saved.restore(self._url)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Save its slots, if they are to be kept, and end the child: SIGTERM, and SIGKILL once the bound has passed.
        Does nothing if there is none."""
        if self._saved is not None and self._url is not None and self.running:
            self._saved.save(self._url)
        child, self._child, self._url = self._child, None, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
        if self._log is not None:
            self._log.finish(self._stop_timeout_s)

    def __enter__(self) -> EmbeddedEngine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self) -> Announcement:
        command = [self._python, "-P", "-m", "prefixpilot.engines.llamacpp_server", self._settings.to_json()]
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=_child_environment())
        except OSError as error:
            raise EngineError(f"the embedded engine could not be started: {error}") from error
        assert self._child.stdout is not None and self._child.stderr is not None
        self._log = LogTail(self._child.stderr)
        return Announcement(self._child.stdout)

    def _announced_url(self, announcement: Announcement, deadline: float) -> str:
        message = announcement.wait(max(0.0, deadline - time.monotonic()))
        if message is None:
            raise self._failure(f"was not ready after {self._start_timeout_s:g} s")
        if "missing" in message:
            raise MissingExtraError(message["missing"], INSTALL)
        if "url" not in message:
            raise self._failure("ended before it was ready")
        return message["url"].rstrip("/")

    def _wait_until_healthy(self, url: str, deadline: float) -> None:
        while not _healthy(url):
            if not self.running:
                raise self._failure("ended before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(f"was not healthy after {self._start_timeout_s:g} s")
            time.sleep(0.02)

    def _failure(self, what: str) -> EngineError:
        assert self._child is not None and self._log is not None
        try:
            status = f" with exit status {self._child.wait(0.5)}"
            self._log.finish(0.5)
        except subprocess.TimeoutExpired:
            status = ""
        lines = "\n".join(f"  {line}" for line in self.log_tail()) or "  (it logged nothing)"
        return EngineError(f"the embedded engine {what}{status} (model {self.model}); its last log lines:\n{lines}")


def _stamp(model: Path, settings: ServerSettings) -> str:
    """What saved slots are good for: the model file, the engine, and its slots."""
    try:
        engine = version("xllamacpp")
    except PackageNotFoundError:
        engine = "none"
    file = model.stat()
    return f"{model} {file.st_size} {file.st_mtime_ns} {engine} {settings.context_tokens} {settings.parallel}"


def _child_environment() -> dict[str, str]:
    """Ours, with the folder of this package first on the path, so that the child finds it wherever we found it."""
    package_root = str(Path(prefixpilot.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    path = package_root if not inherited else package_root + os.pathsep + inherited
    return {**os.environ, "PYTHONPATH": path}


def _healthy(url: str) -> bool:
    """Whether GET /health says 200."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
