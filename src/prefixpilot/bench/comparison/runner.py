"""Runs the cells of a comparison, each from a cold cache, and keeps what is done."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import prefixpilot
from prefixpilot.bench.bound import workload_bound
from prefixpilot.bench.comparison.arms import Arm, ArmName, arm_of, outgoing
from prefixpilot.bench.comparison.cells import Cell, CellResult, Done, Grid, Setting
from prefixpilot.bench.comparison.client import Load, Sample, Target, run_load
from prefixpilot.bench.comparison.engines import BenchEngine
from prefixpilot.bench.comparison.others import Sendings
from prefixpilot.bench.comparison.predicted import predicted_hit_rate
from prefixpilot.bench.comparison.prepared import BenchRequest, Preparation, digest_of, prepare
from prefixpilot.bench.comparison.summary import ArmFigures, figures
from prefixpilot.bench.demo_report import installed_versions, this_machine
from prefixpilot.errors import ConfigError
from prefixpilot.workloads import Workload

CELLS = "cells.jsonl"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared.

    Attributes:
        workload: where the requests come from.
        engine: where they go.
        how: how they are made ready; its ``k`` is that of the grid's cells.
        load: how they are sent; its ``concurrency`` is that of the grid's cells.
        given: what the arm of that name sends.
        by_turns: all arms of a repeat run at once, each with an engine of its own, and take turns request by request:
            what else the machine does falls on all alike. One request at a time, in a closed loop.

    Raises:
        ConfigError: ``by_turns`` with more than one request at a time, at a rate, or on an engine that all share.
    """

    workload: Workload
    engine: BenchEngine
    grid: Grid = field(default_factory=Grid)
    how: Preparation = field(default_factory=Preparation)
    load: Load = field(default_factory=Load)
    given: Sendings = ()
    by_turns: bool = False

    def __post_init__(self) -> None:
        if self.by_turns and (self.load.rate is not None or self.grid.concurrencies != (1,)):
            raise ConfigError("by_turns", "is for one request at a time", "leave rate and concurrency out")
        if self.by_turns and not self.engine.one_each:
            raise ConfigError(
                "by_turns",
                f"needs an engine for each arm; there is one {self.engine.name}",
                "use embedded or simulated",
            )

    def key(self) -> dict[str, Any]:
        """What must be equal for cells to be of one comparison."""
        how = {name: getattr(self.how, name) for name in ("limit", "prompt_tokens", "multi_turn")}
        load = {name: getattr(self.load, name) for name in ("rate", "max_tokens", "seed")}
        versions = {"prefixpilot": prefixpilot.__version__, **installed_versions("xllamacpp")}
        named = {"workload": self.workload.name, "digest": digest_of(prepare(self.workload, self.how))}
        given = hashlib.blake2b(repr(list(self.given)).encode(), digest_size=8).hexdigest() if self.given else None
        return {
            **named,
            "engine": self.engine.name,
            **how,
            **load,
            "given": given,
            "by_turns": self.by_turns,
            "versions": versions,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it.

    Attributes:
        key: see :meth:`Comparison.key`.
        machine: where it ran.
        bound: share of block tokens that no order and no schedule exceeds, by ``k``; ``None``: not computed.
        figures: by setting.
        predicted: hit rates that `replay` expects, by setting and arm; only of arms that it knows, one request at a
            time, on engines whose cache is modelled.
    """

    key: Mapping[str, Any]
    machine: Mapping[str, Any]
    bound: Mapping[str, float | None]
    figures: Mapping[Setting, tuple[ArmFigures, ...]]
    predicted: Mapping[Setting, Mapping[ArmName, float]]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        settings = [
            {**setting._asdict(), "arms": [self._arm_as_json(setting, arm) for arm in arms]}
            for setting, arms in self.figures.items()
        ]
        return {**self.key, "machine": dict(self.machine), "bound": dict(self.bound), "settings": settings}

    def _arm_as_json(self, setting: Setting, arm: ArmFigures) -> dict[str, Any]:
        expected = self.predicted[setting].get(arm.arm)
        return {**arm.as_json(), "predicted_hit_rate": None if expected is None else round(expected, 4)}


def run_comparison(
    comparison: Comparison,
    folder: Path,
    on_cell: Callable[[Cell, int, int], object] = lambda cell, done, cells: None,
    on_answer: Callable[[], object] = lambda: None,
) -> Report:
    """Run what is not done yet, and report. A run that was ended goes on where it was; ``folder`` holds its cells.

    Args:
        on_cell: told before each cell runs how many are done, of how many.
        on_answer: called after each request.

    Raises:
        ConfigError: the folder is of another comparison.
        EngineError: a request failed; what is complete is kept.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("out", f"{folder}: {error.strerror}", "give a folder that can be made") from None
    done = Done(folder / CELLS, comparison.key())
    cells = list(comparison.grid.cells())
    ready: dict[int | None, tuple[BenchRequest, ...]] = {
        k: prepare(comparison.workload, replace(comparison.how, k=k)) for k in comparison.grid.ks
    }
    for count, cell in enumerate(cells):
        on_cell(cell, count, len(cells))
        if cell not in done.results:
            beside = [other for other in cells if comparison.by_turns and _side_by_side(other, cell)]
            together = [other for other in beside if other not in done.results] or [cell]
            for result in _run_together(comparison, together, ready[cell.k], on_answer):
                done.add(result)
    found = {cell: done.results[cell] for cell in cells}
    bound = {str(k): _bound(requests) for k, requests in ready.items()}
    machine = this_machine()
    where = {"cpu": machine.cpu, "cores": machine.cores, "system": machine.system}
    by_setting = figures(found.values())
    predicted = {
        setting: _predicted(comparison, setting, ready[setting.k], arms) for setting, arms in by_setting.items()
    }
    return Report(comparison.key(), where, bound, by_setting, predicted)


def _predicted(
    comparison: Comparison, setting: Setting, requests: Sequence[BenchRequest], arms: Sequence[ArmFigures]
) -> dict[ArmName, float]:
    found: dict[ArmName, float] = {}
    for arm in arms if setting.concurrency == 1 and comparison.load.rate is None else ():
        model = comparison.engine.model_of_cache(setting.cache_tokens)
        rate = None if model is None else predicted_hit_rate(arm.arm, requests, model, comparison.how.multi_turn)
        if rate is not None:
            found[arm.arm] = rate
    return found


def _side_by_side(one: Cell, other: Cell) -> bool:
    return (one.setting, one.repeat) == (other.setting, other.repeat)


def _run_together(
    comparison: Comparison, cells: Sequence[Cell], requests: Sequence[BenchRequest], on_answer: Callable[[], object]
) -> list[CellResult]:
    """Cells at once, by turns; or one."""
    with ExitStack() as stack:
        loads = []
        for cell in cells:
            arm = arm_of(cell.arm)
            sends = outgoing(arm, requests, cell.cache_tokens, comparison.given)
            engine = stack.enter_context(comparison.engine.cold(cell.cache_tokens, str(cell)))
            target = stack.enter_context(_in_front(arm, engine, cell))
            loads.append((target, arm, sends, replace(comparison.load, concurrency=cell.concurrency)))

        async def run() -> list[tuple[list[Sample], float]]:
            turn = asyncio.Lock() if len(loads) > 1 else None
            runs = (run_load(target, arm, requests, sends, load, on_answer, turn) for target, arm, sends, load in loads)
            return await asyncio.gather(*runs)

        found = asyncio.run(run())
    return [CellResult(cell, tuple(samples), wall) for cell, (samples, wall) in zip(cells, found, strict=True)]


@contextmanager
def _in_front(arm: Arm, engine: Target, cell: Cell) -> Iterator[Target]:
    """The proxy before the engine, or the engine itself."""
    if not arm.through_proxy:
        yield engine
        return
    from prefixpilot.bench.streaming_client import wait_until_ready
    from prefixpilot.proxy import ProxySettings, serve_in_thread
    from prefixpilot.proxy.settings import LogSettings

    settings = ProxySettings(engine.url, port=0, cache_tokens=cell.cache_tokens, log=LogSettings(access=False))
    settings = settings if arm.annotate is None else replace(settings, annotate=arm.annotate)
    with serve_in_thread(settings) as proxy:
        wait_until_ready(proxy.url)
        yield Target(proxy.url, engine.opening)


def _bound(requests: Sequence[BenchRequest]) -> float | None:
    """Of independent requests, blocks only."""
    from prefixpilot.core import Request, RequestId
    from prefixpilot.workloads import WorkloadRequest

    entries = tuple(
        WorkloadRequest(Request(r.blocks, RequestId(str(r.number))), str(r.number), 0, "") for r in requests if r.blocks
    )
    if not entries:
        return None
    from prefixpilot.blocks import BlockStore

    store = BlockStore(sum(len(entry.request.blocks) for entry in entries) + 1)
    total = sum(store.intern(block).tokens for entry in entries for block in entry.request.blocks)
    saved = workload_bound(Workload("", entries))
    return None if saved is None or not total else saved / total
