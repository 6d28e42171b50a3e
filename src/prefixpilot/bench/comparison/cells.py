"""What a comparison consists of, and the file that holds what is done of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from prefixpilot.bench.comparison.arms import ARMS, ArmName, arm_of
from prefixpilot.bench.comparison.client import Sample
from prefixpilot.bench.kept import KeptLines
from prefixpilot.errors import ConfigError


class Cell(NamedTuple):
    """One run of an arm.

    Attributes:
        cache_tokens: capacity of the engine's cache; ``None``: the engine's own.
        k: blocks of a request at most; ``None``: all.
        concurrency: requests under way at most.
        repeat: from 0.
    """

    cache_tokens: int | None
    k: int | None
    concurrency: int
    repeat: int
    arm: ArmName

    @property
    def setting(self) -> Setting:
        """What its arms have in common."""
        return Setting(self.cache_tokens, self.k, self.concurrency)

    def __str__(self) -> str:
        return f"{self.setting}, {self.arm}, {self.repeat + 1}"


class Setting(NamedTuple):
    """Under which arms are compared."""

    cache_tokens: int | None
    k: int | None
    concurrency: int

    def __str__(self) -> str:
        cache = "engine's cache" if self.cache_tokens is None else f"cache {self.cache_tokens:,}"
        blocks = "" if self.k is None else f", k {self.k}"
        return f"{cache}{blocks}, {self.concurrency} at a time"


@dataclass(frozen=True, slots=True)
class Grid:
    """All cells of a comparison, the arms of a repeat side by side.

    Attributes:
        arms: names; ``arrival`` is what the others are compared with.
        repeats: of each cell; TTFTs are pooled, counts must not differ on an idle engine.
    """

    arms: tuple[ArmName, ...] = ARMS
    cache_tokens: tuple[int | None, ...] = (None,)
    ks: tuple[int | None, ...] = (None,)
    concurrencies: tuple[int, ...] = (1,)
    repeats: int = 1

    def __post_init__(self) -> None:
        if "arrival" not in self.arms:
            raise ConfigError("arms", f"is {', '.join(self.arms)}", "name arrival too: the others are compared with it")
        for name in self.arms:
            arm_of(name)
        if type(self.repeats) is not int or self.repeats < 1:
            raise ConfigError("repeats", f"is {self.repeats!r}", "use an int of 1 or more")

    def cells(self) -> Iterator[Cell]:
        """In the order in which they run: arms take turns, so that what else the machine does falls on all."""
        for cache, k, concurrency in product(self.cache_tokens, self.ks, self.concurrencies):
            for repeat in range(self.repeats):
                for arm in self.arms:
                    yield Cell(cache, k, concurrency, repeat, arm)


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell that has run.

    Attributes:
        samples: in the order sent.
        wall_s: of all of them together.
    """

    cell: Cell
    samples: tuple[Sample, ...]
    wall_s: float


class Done:
    """Cells that have run, in a file; see :class:`~prefixpilot.bench.kept.KeptLines`.

    Args:
        path: JSON Lines; made if it is not there.
        key: says what the cells are of (workload, engine, versions); another comparison is refused.

    Raises:
        ConfigError: the file is of another comparison, or cannot be used.
    """

    def __init__(self, path: Path, key: dict[str, Any]) -> None:
        self._kept = KeptLines(path, {"comparison": key})
        self.results = {result.cell: result for result in map(_result, self._kept.found)}

    def add(self, result: CellResult) -> None:
        """One more cell is complete."""
        self.results[result.cell] = result
        samples = [
            [s.number, s.prompt_tokens, s.cached_tokens, round(s.ttft_s, 6), round(s.total_s, 6)]
            for s in result.samples
        ]
        self._kept.add({"cell": list(result.cell), "wall_s": round(result.wall_s, 6), "samples": samples})


def _result(line: dict[str, Any]) -> CellResult:
    samples: Sequence[Sequence[Any]] = line["samples"]
    return CellResult(Cell(*line["cell"]), tuple(Sample(*sample) for sample in samples), line["wall_s"])
