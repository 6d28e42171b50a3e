"""When requests arrive: at random times, or as a recorded service's did, faster or slower."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prefixpilot.errors import ConfigError, TraceError
from prefixpilot.workloads.records import read_records

TIMESTAMP: Final = "timestamp"
_SEED: Final = 0


def poisson(rate: float | None) -> Iterator[float]:
    """Seconds at which requests come, without end: ``rate`` a second at random (seeded); ``None``: all at 0."""
    rng, now = random.Random(_SEED), 0.0
    while True:
        now += rng.expovariate(rate) if rate is not None else 0.0
        yield now


def recorded(times: Iterable[float], rate: float | None = None) -> Iterator[float]:
    """Recorded times from 0 on, without end: behind the last they begin anew.

    Args:
        times: seconds, in any order; at least two that differ.
        rate: stretch them so that so many come a second on average; ``None``: as they are.

    Raises:
        ConfigError: there are no two times that differ, or the rate is no number above 0.
    """
    ordered = sorted(times)
    if not ordered or ordered[0] == ordered[-1]:
        raise ConfigError("arrivals", "have no two times that differ", "give those of two requests or more")
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError("rate", f"is {rate!r}", "use a number above 0, or leave it out")
    span = (ordered[-1] - ordered[0]) * len(ordered) / (len(ordered) - 1)  # one mean gap behind the last
    stretch = 1.0 if rate is None else len(ordered) / (rate * span)
    return _repeated([(time - ordered[0]) * stretch for time in ordered], span * stretch)


def _repeated(times: list[float], span: float) -> Iterator[float]:
    start = 0.0
    while True:
        for time in times:
            yield start + time
        start += span


def read_arrivals(path: Path) -> list[float]:
    """Seconds at which the requests of a trace came: ``timestamp`` of each JSON line, in milliseconds, as the published
    Mooncake traces have it. Other keys are not read; the file may be compressed with gzip.

    Raises:
        TraceError: the file cannot be read, or a line has no such number.
    """
    times = []
    for record in read_records(path):
        value = record.values.get(TIMESTAMP)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise record.error(TIMESTAMP, f"is {value!r}", "give the milliseconds at which the request came")
        times.append(value / 1000)
    if len(set(times)) < 2:
        raise TraceError(str(path), "has no two requests at different times", "give a trace with timestamps")
    return times
