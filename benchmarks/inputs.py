"""The traces that a benchmark runs on: those of a folder, else generated ones of the same shapes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prefixpilot.core import BatchContext
from prefixpilot.workloads import Workload, read_workload
from prefixpilot.workloads import synthetic as generated

VARIABLE = "PREFIXPILOT_TRACES"


@dataclass(frozen=True)
class Trace:
    """A workload whose requests are independent of each other."""

    workload: Workload

    @property
    def name(self) -> str:
        return self.workload.name

    @cached_property
    def contexts(self) -> list[BatchContext]:
        """Distinct blocks of each request in the retriever's order, in arrival order."""
        result = []
        for entry in self.workload.requests:
            length = {b.id: b.tokens or 0 for b in entry.request.blocks if b.id is not None}
            result.append(BatchContext(entry.request.request_id, tuple(length), tuple(length.values())))
        return result

    @cached_property
    def total_tokens(self) -> int:
        return sum(sum(context.tokens) for context in self.contexts)

    def capacity(self, requests: int | None) -> int | None:
        """A cache that holds so many mean requests; ``None`` for one without bound."""
        return None if requests is None else max(1, requests * self.total_tokens // len(self.contexts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces",
        nargs="?",
        type=Path,
        default=os.environ.get(VARIABLE),
        help=f"folder of ids-*.jsonl.gz traces (default ${VARIABLE}; without it generated traces)",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only traces whose name holds one of these")


def load(folder: Path | None, only: Sequence[str] | None = None) -> list[Trace]:
    """All traces, by name. Files are read one after the other."""
    if folder is None:
        made = (
            generated.zipf(1000),
            generated.topical(1500),
            generated.sessions(100),
            generated.disjoint(1000),
        )
        workloads = [trace.workload() for trace in made]
    else:
        paths = sorted(Path(folder).glob("ids-*.jsonl*"))
        if not paths:
            raise SystemExit(f"{folder} holds no ids-*.jsonl or ids-*.jsonl.gz")
        workloads = [read_workload(path) for path in paths if _wanted(path.name, only)]
    return [Trace(workload) for workload in workloads if _wanted(workload.name, only)]


def _wanted(name: str, only: Sequence[str] | None) -> bool:
    return not only or any(part in name for part in only)
