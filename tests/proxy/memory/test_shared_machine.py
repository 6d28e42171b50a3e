"""Two ledgers over one Redis, asked in turns, killed and evicted as it comes, are equal to one ledger that never is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import Restoration
from prefixpilot.proxy.memory.redis_store import RedisStore
from prefixpilot.proxy.memory.shared import SharedWriter

from ..redis_server import RedisServer
from .support import key
from .test_memory_machine import BOUND_S, NAMES, TTL, Gate, Memory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield running
    running.kill()


class Proxy:
    """One of the two: what it has in memory, and its way to the store."""

    def __init__(self, machine: TwoProxies) -> None:
        store = RedisStore.open(machine.url, None, 1 << 26, machine.max_turns, TTL, BOUND_S)
        self.gate = Gate()
        self.writer = SharedWriter(store, clock=lambda: machine.now, attempt=self.gate)
        self.ledger = Ledger(
            machine.conversations,
            machine.max_turns,
            1 << 24,
            ttl=TTL,
            clock=lambda: machine.now,
            journal=self.writer,
            first_sent=self.writer.first_sent,
        )


class TwoProxies(Memory):
    """See :class:`Memory`; ``real`` is the one of two proxies that is asked now."""

    url: ClassVar[str] = ""
    switched: ClassVar[int] = 0

    def open(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
        self.proxies = [Proxy(self), Proxy(self)]
        self.use(0)

    def use(self, number: int) -> None:
        self.at = number
        proxy = self.proxies[number]
        self.gate, self.writer, self.real = proxy.gate, proxy.writer, proxy.ledger

    @rule()
    def switch(self) -> None:
        """The next request comes to the other one. What the client has seen an answer to is written."""
        self.settle()
        self.use(1 - self.at)
        TwoProxies.switched += 1

    def restore(self, name: str, questions: list[str], replies: list[str], room: int | None) -> list[Restoration]:
        self.refresh(name)
        return super().restore(name, questions, replies, room)

    def refresh(self, name: str) -> None:
        """As before each request."""
        self.settle()
        assert isinstance(self.writer, SharedWriter)
        look = self.writer._look(key(name), self.real.has(key(name)))
        if look.deleted or look.turns is not None:
            self.real.drop(key(name), deleted=look.deleted)
        if look.turns is not None:
            self.real.adopt(key(name), look.turns)

    @rule(name=NAMES, both=st.booleans())
    def nothing_changes(self, name: str, both: bool) -> None:
        """To look twice is to look once."""
        self.refresh(name)
        if both:
            self.refresh(name)

    def delete(self, name: str) -> None:
        self.refresh(name)
        super().delete(name)

    def kill(self) -> None:
        self.settle()
        with self.gate.opened():
            self.writer.close()
        self.proxies[self.at] = Proxy(self)
        self.use(self.at)

    def teardown(self) -> None:
        for number in range(len(getattr(self, "proxies", ()))):
            self.use(number)
            self.settle()
            with self.gate.opened():
                self.writer.close()
        if hasattr(self, "proxies"):
            RedisStore.open(self.url, None, 1 << 26, self.max_turns, TTL, BOUND_S).check_invariants()


def test_two_proxies(server: RedisServer) -> None:
    TwoProxies.url = server.url
    TwoProxies.seen.clear()
    chosen = settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
    )
    run_state_machine_as_test(TwoProxies, settings=chosen)
    wanted = ("restored", "ambiguous", "unmatched", "gone")
    assert min(TwoProxies.seen[what] for what in wanted) > 5, f"what this is about did not occur: {TwoProxies.seen}"
    assert TwoProxies.switched > 50
