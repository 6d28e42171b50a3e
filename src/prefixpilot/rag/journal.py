"""What is done of a batch, as a file: one JSON line for each call that has ended, on disk before the next step.

``{"request_id", "digest", "response"}``, or ``"error"`` in the place of ``"response"``. Of several lines of a request
the last one counts. A run that was killed may leave a last line without an end; it is cut off when the file is opened
again. Everything else that cannot be read is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from prefixpilot.errors import ConfigError, TraceError

try:
    import fcntl
except ImportError:  # not on this system: two runs on one file are then the caller's to prevent
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Done:
    """One call that has ended.

    Attributes:
        digest: of the request as it was given, in hex.
        response: the completion; ``None`` if the call failed.
        error: why it failed.
    """

    request_id: str
    digest: str
    response: Mapping[str, Any] | None = None
    error: str | None = None


class Journal:
    """The file of a batch, open and locked until ``close``. One writer at a time. A context manager.

    Attributes:
        done: what it held when it was opened, by request id.

    Raises:
        ConfigError: the file cannot be written, or another run has it.
        TraceError: one of its lines cannot be read; names it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file = self._open()
        try:
            self.done = self._read()
        except BaseException:
            self._file.close()
            raise

    def write(self, done: Done) -> None:
        """Append a line; it is on disk when this returns. Raises ``ConfigError`` if the disk refuses it."""
        fields: dict[str, Any] = {"request_id": done.request_id, "digest": done.digest}
        fields.update({"response": done.response} if done.error is None else {"error": done.error})
        line = json.dumps(fields).encode("ascii") + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Give the file free."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        try:
            file = self._path.open("a+b")
        except OSError as error:
            raise self._refused(error) from None
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise ConfigError("done", f"{self._path} is in use", "wait for the other run, or end it") from None
        return file

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError("done", f"{self._path}: {error.strerror or error}", "give a file that can be written")

    def _read(self) -> dict[str, Done]:
        self._file.seek(0)
        done: dict[str, Done] = {}
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            end += len(line)
            read = self._parse(number, line)
            done[read.request_id] = read
        self._file.truncate(end)
        return done

    def _parse(self, number: int, line: bytes) -> Done:
        try:
            value = json.loads(line)
            done = Done(value["request_id"], value["digest"], value.get("response"), value.get("error"))
        except (ValueError, KeyError, TypeError, AttributeError):
            done = Done("", "")
        if not done.request_id or (done.response is None) == (done.error is None):
            raise TraceError(f"{self._path}:{number}", "is no line of a batch", "give another file, or delete this one")
        return done
