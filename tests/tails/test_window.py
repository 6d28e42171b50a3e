"""The window of recent contexts: a ring whose bit sets are always those of what it holds."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.properties.strategies import block_ids, contexts

from prefixpilot.core import BlockId
from prefixpilot.errors import ConfigError
from prefixpilot.tails import Window


class WindowMachine(RuleBasedStateMachine):
    """Against a plain list of the last contexts."""

    @initialize(half=st.integers(1, 3))
    def start(self, half: int) -> None:
        self.half = half
        self.window = Window(2 * half)
        self.sent: list[list[BlockId]] = []

    @rule(blocks=contexts)
    def add(self, blocks: list[BlockId]) -> None:
        before = len(self.window)
        assert self.window.add(blocks) == len(self.window) - before
        self.sent.append(blocks)

    @rule(blocks=st.lists(block_ids, min_size=1, max_size=3))
    def counts_are_those_of_the_last_contexts(self, blocks: list[BlockId]) -> None:
        last = self.sent[len(self.sent) - len(self.window) :]
        assert self.window.holders_of_all(blocks).bit_count() == sum(set(blocks) <= set(context) for context in last)
        counts = [holders.bit_count() for holders in self.window.holders_of_each(blocks)]
        assert counts == [sum(block in context for context in last) for block in blocks]
        assert self.window.holders(blocks[0]).bit_count() == counts[0]

    @rule(blocks=contexts)
    def a_window_of_the_same_contexts_goes_on_as_this(self, blocks: list[BlockId]) -> None:
        again = Window(self.window.size)
        for context in self.window.contexts():
            again.add(context)
        last = self.sent[len(self.sent) - len(self.window) :]
        assert [set(context) for context in again.contexts()] == [set(context) for context in last]
        self.add(blocks)
        again.add(blocks)
        assert [set(c) for c in again.contexts()] == [set(c) for c in self.window.contexts()]
        again.check_invariants()

    @invariant()
    def sound(self) -> None:
        self.window.check_invariants()
        assert min(len(self.sent), self.half) <= len(self.window) <= 2 * self.half


TestWindowMachine = WindowMachine.TestCase


def test_nothing_in_common_is_asked_of_every_context() -> None:
    assert Window(2).holders_of_all(()) == -1


@pytest.mark.parametrize("size", [0, 3])
def test_a_window_has_two_halves(size: int) -> None:
    with pytest.raises(ConfigError, match="size"):
        Window(size)
