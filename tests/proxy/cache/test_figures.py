"""What the gauges of the engine's cache count."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from prefixpilot.engines.base import Continuity, SourceStatus
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.cache.sums import CacheSums
from prefixpilot.residency.state import CacheState


def test_a_batch_that_cannot_be_read_is_lost_once() -> None:
    """As in ``/stats``: its events count as lost there already."""
    registry = CollectorRegistry()
    garbage = SourceStatus("tcp://*:1", 0, Continuity.BROKEN, 9, 10, 0, 3, 0, 0, 2, 0, "3 are lost")
    CacheFigures(registry).show(CacheState.DEGRADED, CacheSums(statuses=(garbage, garbage._replace(rank=1, lost=4))))
    assert registry.get_sample_value("prefixpilot_engine_event_batches_lost") == 7
