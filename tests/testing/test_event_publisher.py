"""The publisher of the simulated engine: what is held back stays back, all of it, and comes in order."""

from __future__ import annotations

import time

import pytest

from prefixpilot.testing.event_publisher import POLL_MS, EventPublisher


@pytest.mark.parametrize("round_", range(5))
def test_nothing_goes_out_while_it_is_held_even_if_its_thread_was_waiting_already(round_: int) -> None:
    with EventPublisher() as publisher:
        publisher.publish_bytes(b"before")
        assert publisher.wait_sent(0)
        time.sleep(POLL_MS / 1000 * round_ / 5)  # its thread waits for the next batch, for longer or shorter
        publisher.held = True
        publisher.publish_bytes(b"first")
        publisher.publish_bytes(b"second")
        assert not publisher.wait_sent(1, timeout_s=5 * POLL_MS / 1000)
        publisher.held = False
        assert publisher.wait_sent(2)
        assert [payload for _, payload in publisher._buffer] == [b"before", b"first", b"second"]
