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
STDOUTS = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Names of stdout; what it is redirected to is never replaced."""


class Output:
    """A stream of JSON lines, ASCII only. Errors name the file.

    A regular file appears, or is replaced, with ``commit``; until then its lines are in a temporary file beside it.
    What is no regular file (a pipe, a device) is written to directly.
    """

    def __init__(self, path: str | None) -> None:
        self._name = "stdout" if path is None or path in STDOUTS else path
        self._written: Path | None = None
        self._streams: list[IO[bytes] | gzip.GzipFile] = []
        if path is None or path in STDOUTS:
            self._stream: IO[bytes] | gzip.GzipFile = sys.stdout.buffer
            return
        with _naming(path):
            self._target = Path(path).resolve()
            direct = self._target.exists() and not self._target.is_file()
            written = self._target if direct else self._target.with_name(f".{self._target.name}.{os.getpid()}.tmp")
            self._streams = _open(written, compressed=path.endswith(".gz"))
        self._stream = self._streams[0]
        self._written = None if direct else written

    def write_line(self, value: Any) -> None:
        """Write one JSON value and ``\\n``.

        Raises:
            ConfigError: the file cannot take it.
        """
        with _naming(self._name):
            self._stream.write(json.dumps(value).encode("ascii") + b"\n")

    def copy(self, stream: IO[bytes]) -> None:
        """Write what another file of such lines holds. Raises ConfigError."""
        with _naming(self._name):
            shutil.copyfileobj(stream, self._stream)

    def close(self) -> None:
        """Everything is written. Raises ConfigError if the file cannot take it."""
        with _naming(self._name):
            self._stream.flush()
            for stream in self._streams:
                stream.close()

    def commit(self) -> None:
        """After ``close``: the file takes its name."""
        if self._written is not None:
            with _naming(self._name):
                if self._target.exists():
                    shutil.copymode(self._target, self._written)
                self._written.replace(self._target)

    def discard(self) -> None:
        """Leave nothing behind."""
        for stream in self._streams:
            with suppress(OSError):
                stream.close()
        if self._written is not None:
            self._written.unlink(missing_ok=True)


@contextmanager
def open_outputs(*paths: str | None) -> Iterator[tuple[Output, ...]]:
    """Write to files, compressed if their names end with ``.gz``; to stdout for ``-`` and ``None``.

    All of them appear, when the block has ended without an error and everything is written, or none.

    Raises:
        ConfigError: a file cannot be written.
    """
    outputs: list[Output] = []
    try:
        outputs.extend(map(Output, paths))  # keeps those before one that fails, to be discarded
        yield tuple(outputs)
        for output in outputs:
            output.close()
        for output in outputs:
            output.commit()
    except BaseException:
        for output in outputs:
            output.discard()
        raise


def check_distinct(trace: str, **written: str | None) -> None:
    """Refuse an output that is a file of the input, or that is another output, by whatever name.

    Raises:
        ConfigError: names the argument, by its keyword.
    """
    read = [Path(trace), Path(trace, "requests.jsonl"), Path(trace, "blocks.jsonl")]
    taken = {os.path.realpath(path): str(path) for path in read}
    for argument, path in written.items():
        if path is None or path in STDOUTS or (Path(path).exists() and not Path(path).is_file()):
            continue
        other = taken.get(os.path.realpath(path))
        if other is not None:
            raise ConfigError(f"--{argument.replace('_', '-')}", f"{path} is {other} too", "give different files")
        taken[os.path.realpath(path)] = path


def _open(path: Path, *, compressed: bool) -> list[IO[bytes] | gzip.GzipFile]:
    """Streams to be closed in this order; the first one takes the lines."""
    raw = path.open("wb")
    return [gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0), raw] if compressed else [raw]


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
    return sys.stderr if any(path in STDOUTS for path in written) else sys.stdout


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


def write_report(path: Path, text: str) -> None:
    """A file of a report, in the folder that ``--out`` names. Raises ConfigError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--out", f"{path}: {error.strerror}", "give a folder that can be written") from None
