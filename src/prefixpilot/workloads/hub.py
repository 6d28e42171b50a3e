"""Rows of a data set on the hub, by `datasets`. The only file that imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixpilot.errors import MissingExtraError, TraceError
from prefixpilot.workloads.questions import Entry


class Hub:
    """One data set.

    Args:
        repository: ``OWNER/NAME``, or a folder in the same layout.
    """

    def __init__(self, repository: str) -> None:
        self._repository = repository

    def rows(self, split: str, name: str | None = None, *, turned: bool = False) -> list[Entry]:
        """The rows of a part. Memory: all of them.

        Args:
            name: of the configuration, if there are several.
            turned: make lists of objects of what stands there as objects of lists.

        Raises:
            MissingExtraError: ``datasets`` is not installed.
            TraceError: the hub cannot be reached, or has no such part.
        """
        try:
            import datasets
        except ImportError:
            raise MissingExtraError("datasets", 'pip install "prefixpilot[datasets]"') from None
        where = "/".join(filter(None, (self._repository, name, split)))
        try:
            found = datasets.load_dataset(self._repository, name, split=split)
            rows = [_turned(row) if turned else row for row in found]
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise TraceError(where, reason, "give the path of the files instead") from None
        return [Entry(f"{where}[{i}]", row) for i, row in enumerate(rows)]


def _turned(value: Any) -> Any:
    """Objects whose members are all lists of one length become lists of objects, at any depth."""
    if isinstance(value, list):
        return [_turned(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    columns = list(value.values())
    if columns and all(isinstance(c, list) for c in columns) and len({len(c) for c in columns}) == 1:
        return [_turned(dict(zip(value, row, strict=True))) for row in zip(*columns, strict=True)]
    return {name: _turned(item) for name, item in value.items()}
