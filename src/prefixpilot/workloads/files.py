"""Files of public data sets: whole JSON documents, JSON Lines and CSV, each error with its place."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixpilot.errors import TraceError
from prefixpilot.workloads.questions import Entry


def one_of(path: Path, *names: str) -> Path:
    """The file itself, or the first of ``names`` (glob patterns) that the folder holds, at any depth.

    Raises:
        TraceError: there is none.
    """
    if path.is_file():
        return path
    found = next((file for name in names for file in sorted(path.rglob(name)) if file.is_file()), None)
    if found is None:
        raise TraceError(str(path), f"holds no {' or '.join(names)}", "give the folder into which the data set came")
    return found


def read_json(path: Path) -> Any:
    """A JSON document. Memory: the document.

    Raises:
        TraceError: it cannot be read, or is no JSON.
    """
    return _parsed(str(path), _text(path))


def read_entries(path: Path) -> list[Entry]:
    """The objects of a JSON array. Raises as :func:`read_json`, and if it is no array."""
    value = read_json(path)
    if not isinstance(value, list):
        raise TraceError(str(path), f"is {type(value).__name__}, not a list", "give the file as it is published")
    return [Entry(f"{path}[{i}]", item) for i, item in enumerate(value)]


def read_lines(path: Path) -> list[Entry]:
    """The objects of a file of JSON Lines; empty lines are passed over. NaN, which some sets write, is read."""
    lines = _text(path).split("\n")
    return [Entry(f"{path}:{n}", _parsed(f"{path}:{n}", line)) for n, line in enumerate(lines, 1) if line.strip()]


def read_rows(path: Path, columns: Sequence[str]) -> list[Entry]:
    """The rows of a CSV file with a head line.

    Raises:
        TraceError: it cannot be read, or lacks one of ``columns``.
    """
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [Entry(f"{path}:{reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(str(path), str(error), "give the file as it is published") from None
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(f"{path}:1", f"has no column {missing[0]}", "give the file as it is published")
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(str(path), error.strerror or str(error), "give a file that can be read") from None
    except UnicodeDecodeError as error:
        raise TraceError(str(path), f"is not UTF-8 (byte {error.start})", "give the file as it is published") from None


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(where, f"is not JSON ({error})", "give the file as it is published") from None
