"""The supervisor of the embedded engine, with real child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from prefixpilot.engines.llamacpp import EmbeddedEngine, LogTail, default_threads
from prefixpilot.errors import ConfigError, EngineError, MissingExtraError

BOUND_S = 30.0
LISTEN = "0A"
"""As the kernel writes the state of a socket."""


def wait_until(condition: Callable[[], bool], timeout_s: float = BOUND_S) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process of this id runs; one that ended but was not reaped yet does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:4]
    except (FileNotFoundError, ProcessLookupError):
        return False


def listener(url: str) -> str | None:
    """The socket that listens there, by its number, which no other has: a port may be a neighbour's a moment later."""
    end = f"0100007F:{urlsplit(url).port or 0:04X}"
    sockets = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    return next((fields[9] for fields in sockets if fields[1] == end and fields[3] == LISTEN), None)


@pytest.fixture
def broken_model(tmp_path: Path) -> Path:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    return path


@pytest.mark.parametrize(
    ("name", "value"), [("context_tokens", 0), ("threads", 0), ("parallel", 0), ("cache_ram_mib", -1)]
)
def test_settings_are_checked(broken_model: Path, name: str, value: int) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name}: is {value}"):
        EmbeddedEngine(broken_model, **settings)


def test_a_missing_model_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        EmbeddedEngine(tmp_path / "nothing.gguf")


def test_threads_default_to_the_cores_that_we_may_use() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)


def test_no_address_unless_it_runs(broken_model: Path) -> None:
    engine = EmbeddedEngine(broken_model)
    with pytest.raises(EngineError, match=r"call start\(\)"):
        _ = engine.base_url
    assert (engine.pid, engine.running, engine.log_tail()) == (None, False, ())
    engine.stop()


@pytest.mark.engine
def test_a_child_that_dies_is_an_error_with_its_last_log_lines(broken_model: Path) -> None:
    engine = EmbeddedEngine(broken_model, start_timeout_s=BOUND_S)
    with pytest.raises(EngineError, match=r"(?s)ended before it was ready.*broken\.gguf.*last log lines:\n.*load"):
        engine.start()
    assert engine.pid is None


def test_a_child_that_says_nothing_is_ended_at_the_bound(broken_model: Path, tmp_path: Path) -> None:
    python = script(tmp_path, "echo $$ >pid; exec sleep 60")
    engine = EmbeddedEngine(broken_model, start_timeout_s=0.5, python=python)
    with pytest.raises(EngineError, match=r"not ready after 0\.5 s"):
        engine.start()
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_child_that_ignores_sigterm_is_killed(broken_model: Path, tmp_path: Path) -> None:
    python = script(tmp_path, "echo $$ >pid; trap '' TERM; while :; do sleep 0.1; done")
    engine = EmbeddedEngine(broken_model, start_timeout_s=0.5, stop_timeout_s=0.3, python=python)
    with pytest.raises(EngineError, match="not ready"):
        engine.start()
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_missing_xllamacpp_names_the_extra(broken_model: Path, tmp_path: Path) -> None:
    python = script(tmp_path, f'shift; exec "{sys.executable}" -S -P "$@"')  # -S: without installed packages
    with pytest.raises(MissingExtraError, match=r'pip install "prefixpilot\[llamacpp\]"'):
        EmbeddedEngine(broken_model, start_timeout_s=BOUND_S, python=python).start()


def test_a_missing_interpreter_is_an_engine_error(broken_model: Path) -> None:
    with pytest.raises(EngineError, match="could not be started"):
        EmbeddedEngine(broken_model, python="/nowhere/python").start()


def test_a_flood_of_log_neither_blocks_nor_grows() -> None:
    reading, writing = os.pipe()
    tail = LogTail(os.fdopen(reading, "rb"), lines=3)
    with os.fdopen(writing, "wb") as flood:
        for i in range(20_000):
            flood.write(b"line %d of many that fill the pipe\n" % i)
    tail.finish(BOUND_S)
    assert tail.last(2) == ("line 19998 of many that fill the pipe", "line 19999 of many that fill the pipe")
    assert len(tail.last(100)) == 3


@pytest.mark.engine
def test_start_stop_and_start_again(tiny_model: Path) -> None:
    engine = EmbeddedEngine(tiny_model, context_tokens=512)
    with engine:
        url, pid = engine.base_url, engine.pid
        assert pid is not None and engine.running
        assert (socket := listener(url)) is not None
        with pytest.raises(EngineError, match="already started"):
            engine.start()
        assert engine.running
    assert (alive(pid), engine.running) == (False, False)
    assert listener(url) != socket
    assert any("model loaded" in line for line in engine.log_tail(100))
    with engine:
        assert listener(engine.base_url) is not None


PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it, their children too
from prefixpilot.engines.llamacpp import EmbeddedEngine
engine = EmbeddedEngine(sys.argv[1], context_tokens=512).start()
print(engine.pid, engine.base_url, flush=True)
{then}
"""


@contextlib.contextmanager
def parent_process(model: Path, then: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    command = [sys.executable, "-c", PARENT.format(then=then), str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        try:
            yield parent, int(pid), url
        finally:
            parent.kill()


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_ends_with_its_parent(tiny_model: Path, number: signal.Signals) -> None:
    with parent_process(tiny_model, "time.sleep(600)") as (parent, pid, url):
        assert alive(pid)
        assert (socket := listener(url)) is not None
        parent.send_signal(number)
        assert parent.wait(BOUND_S) != 0
        assert wait_until(lambda: not alive(pid) and listener(url) != socket)


@pytest.mark.engine
def test_the_child_ends_with_a_parent_that_forgets_it(tiny_model: Path) -> None:
    with parent_process(tiny_model, "sys.exit(0)") as (parent, pid, _):
        assert parent.wait(BOUND_S) == 0
        assert wait_until(lambda: not alive(pid))


def script(folder: Path, body: str) -> str:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\ncd "{folder}"\n{body}\n')
    path.chmod(0o755)
    return str(path)
