"""The window of recent contexts: a ring whose bit sets are always those of what it holds."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.properties.strategies import block_ids, retrieved

from prefixpilot.core import BlockId
from prefixpilot.errors import ConfigError
from prefixpilot.tails import Window


class WindowMachine(RuleBasedStateMachine):
    """Against a plain list of the last contexts."""

    @initialize(size=st.integers(1, 5))
    def start(self, size: int) -> None:
        self.window = Window(size)
        self.sent: list[list[BlockId]] = []

    @rule(blocks=retrieved)
    def add(self, blocks: list[BlockId]) -> None:
        self.window.add(blocks)
        self.sent.append(blocks)

    @rule(blocks=st.lists(block_ids, min_size=1, max_size=3))
    def counts_are_those_of_the_last_contexts(self, blocks: list[BlockId]) -> None:
        last = self.sent[-self.window.size :]
        assert self.window.holders_of_all(blocks).bit_count() == sum(set(blocks) <= set(context) for context in last)
        assert self.window.holders(blocks[0]).bit_count() == sum(blocks[0] in context for context in last)

    @invariant()
    def sound(self) -> None:
        self.window.check_invariants()
        assert len(self.window) == min(len(self.sent), self.window.size)


TestWindowMachine = WindowMachine.TestCase


def test_nothing_in_common_is_asked_of_every_context() -> None:
    assert Window(3).holders_of_all(()) == -1


def test_a_window_holds_one_context_or_more() -> None:
    with pytest.raises(ConfigError, match="size"):
        Window(0)
