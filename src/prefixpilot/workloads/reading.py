"""The one entry: a path in, a workload out. The content says which format it is."""

from __future__ import annotations

from itertools import chain
from os import PathLike
from pathlib import Path

from prefixpilot.errors import TraceError
from prefixpilot.workloads.base import Workload
from prefixpilot.workloads.batch import is_batch_line, parse_batch
from prefixpilot.workloads.published import is_published, read_published
from prefixpilot.workloads.records import read_records
from prefixpilot.workloads.traces import BLOCKS, REQUESTS, is_ids_header, parse_ids, read_folder


def read_workload(path: str | PathLike[str]) -> Workload:
    """Read a trace (file or folder), a Batch file, ``.gz`` too, or a public data set. O(size).

    Args:
        path: of the file or folder; or ``NAME:PATH``, see :mod:`prefixpilot.workloads.published`.

    Raises:
        TraceError: it cannot be read, is none of these formats, is empty, or one of its lines cannot be used; the
            message names file, line and field.
    """
    if isinstance(path, str) and is_published(path) and not Path(path).exists():
        return read_published(path)
    path = Path(path)
    if path.is_dir():
        return read_folder(path)
    records = read_records(path)
    first = next(records, None)
    if first is None:
        raise TraceError(str(path), "is empty", "give a trace with at least one request")
    if is_batch_line(first):
        return parse_batch(path.name, chain([first], records))
    if is_ids_header(first):
        return parse_ids(first, records)
    if "request_id" in first.values:
        remedy = (
            f'add {{"trace": ..., "tokens": [...]}} as the first line, or give the folder of {REQUESTS} and {BLOCKS}'
        )
        raise TraceError(f"{first.where}: tokens", "the lengths of the blocks are missing", remedy)
    raise TraceError(
        first.where,
        "is neither the head of a trace nor a Batch line",
        'start with "tokens" or "custom_id"; of a log of requests `prefixpilot trace` makes a trace',
    )
