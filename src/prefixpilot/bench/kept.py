"""A file that holds what is done of a long run, so that it can go on after an interruption."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prefixpilot.errors import ConfigError


class KeptLines:
    """JSON Lines, each written and synced when it is complete. A last line that was cut off is dropped.

    Not for two processes at once.

    Args:
        path: made if it is not there.
        head: the first line, which says what the others are of; a file of another head is refused.

    Attributes:
        found: the lines that were there, without the head.

    Raises:
        ConfigError: the file is of another run, or cannot be used.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self._path = path
        head = json.loads(json.dumps(head))
        lines = _whole_lines(path)
        if lines and lines[0] != head:
            kind = "/".join(head)
            raise ConfigError("out", f"{path} is of another {kind}", "give another folder, or remove the file")
        self.found = lines[1:]
        if not lines:
            self._write(head, "w")

    def add(self, value: dict[str, Any]) -> None:
        """One more line."""
        self._write(value, "a")

    def _write(self, value: dict[str, Any], mode: str) -> None:
        try:
            with self._path.open(mode, encoding="ascii") as file:
                file.write(json.dumps(value) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError("out", f"{self._path}: {error.strerror}", "give a folder that can be written") from None


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the file; what a killed run left of its last one is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        raise ConfigError("out", f"{path} is not JSON Lines", "give another folder, or remove the file") from None
