"""The orders of ``contextpilot==0.5.0`` as a library, for the arm ``given`` of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peer_ordering import peer

from prefixpilot.bench.comparison.others import Sending
from prefixpilot.bench.comparison.prepared import BenchRequest

TIMEOUT_S = 1800.0


def peer_sendings(python: str, requests: Sequence[BenchRequest], online: bool) -> list[Sending]:
    """What its ``reorder`` makes of them, one by one or as one batch; ``python``: where it is installed."""
    numbers: dict[str, int] = {}
    batch = [[numbers.setdefault(b.text or "", len(numbers)) for b in request.blocks] for request in requests]
    found: list[Any] = peer(python, batch, [], online, TIMEOUT_S)["order"]
    return [Sending(position, tuple(batch[position].index(each) for each in order)) for position, order in found]
