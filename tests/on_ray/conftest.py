"""One Ray for all tests that need one: to start it takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Started when the first test asks for it, stopped behind the last one."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (make test-ray)")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="200")  # a busy machine
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        yield
    finally:
        ray.shutdown()
