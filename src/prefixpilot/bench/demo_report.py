"""Results of the demo, and the table that shows them."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request of one arm; counts are the engine's own, times are the client's, in seconds."""

    session: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class ArmResult:
    """All requests of one mode, in the order sent."""

    mode: str
    rows: tuple[RequestRow, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(row.prompt_tokens for row in self.rows)

    @property
    def cached_tokens(self) -> int:
        return sum(row.cached_tokens for row in self.rows)

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def ttft_median_s(self) -> float:
        return statistics.median(row.ttft_s for row in self.rows)

    @property
    def ttft_p95_s(self) -> float:
        """Nearest rank: the smallest value that at least 95 % of the requests do not exceed."""
        ordered = sorted(row.ttft_s for row in self.rows)
        return ordered[-(-95 * len(ordered) // 100) - 1]

    @property
    def prefill_s(self) -> float:
        """Sum of the TTFTs: requests go one at a time, so this is the time spent on prefill."""
        return sum(row.ttft_s for row in self.rows)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran."""

    cpu: str
    cores: int
    system: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both arms on the same requests, each from a cold cache."""

    off: ArmResult
    on: ArmResult
    engine: str
    machine: Machine
    versions: dict[str, str]

    def table(self) -> str:
        """A Markdown table; the ratio is off / on."""
        rows = [
            _row("prompt tokens", self.off.prompt_tokens, self.on.prompt_tokens),
            _row("cached tokens (engine's count)", self.off.cached_tokens, self.on.cached_tokens, ratio=False),
            _row("prefilled tokens", self.off.prefilled_tokens, self.on.prefilled_tokens),
            _row("TTFT median (s)", self.off.ttft_median_s, self.on.ttft_median_s),
            _row("TTFT p95 (s)", self.off.ttft_p95_s, self.on.ttft_p95_s),
            _row("total prefill time (s)", self.off.prefill_s, self.on.prefill_s),
        ]
        title = f"{len(self.on.rows)} requests"
        return _markdown([[title, "mode off", "mode on", "ratio off/on"], *rows])

    def describe(self) -> str:
        """One line: engine, machine, versions."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.engine}; {self.machine.cpu}, {self.machine.cores} cores, {self.machine.system}; {versions}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: summary and rows of each arm, machine, versions."""
        return {
            "engine": self.engine,
            "machine": asdict(self.machine),
            "versions": self.versions,
            "arms": {arm.mode: _summary(arm) for arm in (self.off, self.on)},
        }


_FIGURES = ("prompt_tokens", "cached_tokens", "prefilled_tokens", "ttft_median_s", "ttft_p95_s", "prefill_s")


def _summary(arm: ArmResult) -> dict[str, Any]:
    return {**{name: getattr(arm, name) for name in _FIGURES}, "requests": [asdict(row) for row in arm.rows]}


def _row(name: str, off: float, on: float, *, ratio: bool = True) -> list[str]:
    return [name, _number(off), _number(on), f"{off / on:.2f}" if ratio and on else ""]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _markdown(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(_cell(row, i, widths) for i in range(len(row))) + " |" for row in rows]
    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(row: list[str], column: int, widths: list[int]) -> str:
    return row[column].ljust(widths[column]) if column == 0 else row[column].rjust(widths[column])


def this_machine() -> Machine:
    """CPU model, cores that this process may use, and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(_cpu_model(), cores, f"{platform.system()} {platform.machine()}")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def installed_versions(*packages: str) -> dict[str, str]:
    """Version of Python and of each package that is installed."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
