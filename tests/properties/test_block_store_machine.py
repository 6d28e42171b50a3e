"""The block store under any sequence of uses."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.blocks import BlockStore, StoredBlock
from prefixpilot.core import ContextBlock

numbers = st.integers(0, 12)


class BlockStoreMachine(RuleBasedStateMachine):
    """Against the plain list of uses. Each use brings another length; one that is known keeps that of first sight."""

    @initialize(max_blocks=st.integers(1, 9))
    def start(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.store = BlockStore(max_blocks)
        self.recent: list[int] = []
        self.tokens: dict[int, int] = {}
        self.uses = 0

    @rule(number=numbers)
    def use(self, number: int) -> None:
        self.check(number, self.store.intern(self.block(number)), self.uses)

    @rule(many=st.lists(numbers, max_size=6))
    def use_many(self, many: list[int]) -> None:
        first = self.uses + 1
        stored = self.store.intern_all([self.block(number) for number in many])
        for length, (number, one) in enumerate(zip(many, stored, strict=True), first):
            self.check(number, one, length)

    def block(self, number: int) -> ContextBlock:
        """Odd ones have a text."""
        self.uses += 1
        if number % 2:
            return ContextBlock(text=f"text {number}", tokens=self.uses)
        return ContextBlock(id=number, tokens=self.uses)

    def check(self, number: int, stored: StoredBlock, length: int) -> None:
        place = self.recent.index(number) if number in self.recent else self.max_blocks
        if place < self.max_blocks // 2:
            assert stored.tokens == self.tokens[number]
        elif place >= self.max_blocks:
            assert stored.tokens == length
        else:
            assert stored.tokens in (self.tokens[number], length)
        self.tokens[number] = stored.tokens
        self.recent = [number, *(other for other in self.recent if other != number)]

    @invariant()
    def sound(self) -> None:
        self.store.check_invariants()
        assert min(len(self.recent), self.max_blocks // 2) <= len(self.store) <= self.max_blocks


TestBlockStoreMachine = BlockStoreMachine.TestCase
