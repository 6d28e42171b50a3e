"""Parts of a workload planned by Ray tasks, as many at a time as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prefixpilot.config import PilotConfig
from prefixpilot.ray.installed import ray
from prefixpilot.ray.parts import PlannedPart, plan_part
from prefixpilot.workloads import WorkloadRequest

ADDRESS = "RAY_ADDRESS"


@contextmanager
def cluster(cpus: int | None = None) -> Iterator[int]:
    """The cluster that ``RAY_ADDRESS`` names, or one on this machine for as long as this lasts; yields its cores.

    A Ray that the program has started already is used, and left running.

    Args:
        cpus: of the cluster on this machine; ``None``: all that there are.
    """
    mine = not ray.is_initialized()
    if mine:
        address = os.environ.get(ADDRESS)
        own = {} if address else {"num_cpus": cpus or len(os.sched_getaffinity(0)), "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **own)
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if mine:
            ray.shutdown()


def plan_parts(
    parts: Sequence[Sequence[WorkloadRequest]],
    config: PilotConfig,
    done: Callable[[int, PlannedPart], None],
    at_once: int,
) -> None:
    """Plan each part in a task.

    Args:
        done: called with the number of each part and its plan, as they come.
        at_once: parts under way at most: so many are held twice.

    Raises:
        Exception: what a task raised; tasks under way are cancelled. A task whose machine dies is tried again by Ray.
    """
    task = ray.remote(num_cpus=1)(plan_part)
    waiting = iter(enumerate(parts))
    running: dict[object, int] = {}
    try:
        while True:
            for number, part in waiting:
                running[task.remote(part, config)] = number
                if len(running) >= at_once:
                    break
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1)
            for reference in ready:
                planned = ray.get(reference)
                done(running.pop(reference), planned)
    finally:
        for reference in running:
            ray.cancel(reference)
