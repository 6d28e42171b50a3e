"""What commands write: whole files or none, and summaries."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

from prefixpilot.errors import ConfigError

STDOUT = "-"


class Output:
    """A stream of JSON lines, ASCII only. Errors name the file."""

    def __init__(self, name: str, stream: IO[bytes] | gzip.GzipFile) -> None:
        self._name = name
        self._stream = stream

    def write_line(self, value: Any) -> None:
        """Write one JSON value and ``\\n``.

        Raises:
            ConfigError: the file cannot take it.
        """
        with _naming(self._name):
            self._stream.write(json.dumps(value).encode("ascii") + b"\n")


@contextmanager
def open_output(path: str | None) -> Iterator[Output]:
    """Write to ``path``, compressed if it ends with ``.gz``; to stdout for ``-`` and ``None``.

    A file appears, or is replaced, when the block has ended without an error; until then its lines are in a temporary
    file beside it. What is no regular file (a pipe, a device) is written to directly.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None or path == STDOUT:
        yield Output("stdout", sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    target = Path(path).resolve()
    direct = target.exists() and not target.is_file()
    written = target if direct else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with _naming(path):
        streams = _open(written, compressed=path.endswith(".gz"))
    try:
        yield Output(path, streams[0])
        with _naming(path):
            for stream in streams:
                stream.close()
            if not direct:
                _replace(written, target)
    except BaseException:
        for stream in streams:
            with suppress(OSError):
                stream.close()
        if not direct:
            written.unlink(missing_ok=True)
        raise


def _open(path: Path, *, compressed: bool) -> list[IO[bytes] | gzip.GzipFile]:
    """Streams to be closed in this order; the first one takes the lines."""
    raw = path.open("wb")
    return [gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0), raw] if compressed else [raw]


def _replace(written: Path, target: Path) -> None:
    if target.exists():
        shutil.copymode(target, written)
    written.replace(target)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file an operating system error is about. A reader of stdout that went away is not one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(path, error.strerror or str(error), "give a file that can be written") from None


def summary_stream(*written: str | None) -> TextIO:
    """Where a summary goes: stdout, unless lines of a file given by one of ``written`` go there."""
    return sys.stderr if STDOUT in written else sys.stdout


def print_summary(text: str, stream: TextIO) -> None:
    """Print ``text``, with escapes for what the terminal cannot show."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def table(rows: list[tuple[str, str]]) -> str:
    """Names and values, one a line, aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def bound_row(bound: int | None, total: int, why_not: str) -> tuple[str, str]:
    """The bound on what any order and schedule can save, for a :func:`table`."""
    if bound is None:
        return "bound", f"not computed: {why_not}"
    share = bound / total if total else 0.0
    return "bound", f"{bound:,} tokens ({share:.4f}): no order and no schedule saves more, in a cache of any size"
