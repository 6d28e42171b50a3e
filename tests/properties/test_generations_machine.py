"""A cache in two generations under any sequence of uses."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.generations import Generations

keys = st.integers(0, 9)


class GenerationsMachine(RuleBasedStateMachine):
    """Against the plain list of uses, the latest first."""

    @initialize(max_size=st.integers(1, 20))
    def start(self, max_size: int) -> None:
        self.most = max_size // 2
        self.cache = Generations[int, str](max_size, len)
        self.recent: list[tuple[int, str]] = []

    @rule(key=keys, value=st.text("ab", min_size=1, max_size=6))
    def put(self, key: int, value: str) -> None:
        self.cache.put(key, value)
        if len(value) <= self.most:
            self.use(key, value)

    @rule(key=keys)
    def get(self, key: int) -> None:
        found = self.cache.get(key)
        held = dict(self.recent)
        if found is None:
            assert not self.certain(key), "what was used lately is known"
            self.recent = [(other, value) for other, value in self.recent if other != key]
        else:
            assert found == held[key], "the last one of its key"
            self.use(key, found)

    def use(self, key: int, value: str) -> None:
        self.recent = [(key, value), *((other, its) for other, its in self.recent if other != key)]

    def certain(self, key: int) -> bool:
        """Whether it, and all that was used since, have half of the bound."""
        size = 0
        for other, value in self.recent:
            size += len(value)
            if other == key:
                return size <= self.most
        return False

    @invariant()
    def sound(self) -> None:
        self.cache.check_invariants()
        assert self.cache.size <= 2 * self.most
        assert len(self.cache) <= len(self.recent)


TestGenerationsMachine = GenerationsMachine.TestCase
