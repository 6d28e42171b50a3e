"""The cache models against a plain one: a dictionary of single tokens and the most naive eviction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.prefix_cache import (
    POLICIES,
    Access,
    EvictionPolicy,
    PagedPrefixCache,
    RadixPrefixCache,
    Segment,
    Usage,
)

Unit: TypeAlias = tuple[tuple[Segment, int], ...]
Path: TypeAlias = tuple[Unit, ...]

SEGMENTS = [Segment("a", 1), Segment("b", 2), Segment("c", 3), Segment("d", 7), Segment("a", 4), Segment("e", 0)]
PROMPTS = st.lists(st.sampled_from(SEGMENTS), max_size=6)


class NaiveCache:
    """The specification: every held unit (token or full page) by the whole path to it; each evicted on its own."""

    def __init__(self, capacity: int | None, unit: int, policy: EvictionPolicy) -> None:
        self.capacity = capacity
        self.unit = unit
        self.policy = policy
        self.held: dict[Path, Usage] = {}
        self.now = 0

    def paths(self, prompt: Sequence[Segment]) -> list[Path]:
        tokens = [(segment, i) for segment in prompt for i in range(segment.tokens)]
        whole = len(tokens) // self.unit
        units = [tuple(tokens[i * self.unit : (i + 1) * self.unit]) for i in range(whole)]
        return [tuple(units[:n]) for n in range(1, whole + 1)]

    def match_prefix(self, prompt: Sequence[Segment]) -> int:
        return sum(path in self.held for path in self.paths(prompt)) * self.unit

    def access(self, prompt: Sequence[Segment]) -> Access:
        self.now += 1
        paths = self.paths(prompt)
        hit = [path for path in paths if path in self.held]
        for path in hit:
            self.held[path] = Usage(self.held[path].inserted, self.now, self.held[path].hits + 1)
        evicted = 0
        for path in paths[len(hit) :]:
            if self.full:
                if not (leaves := self.leaves()):
                    break
                del self.held[min(leaves, key=lambda leaf: self.policy.priority(self.held[leaf]))]
                evicted += self.unit
            self.held[path] = Usage(self.now, self.now, 1)
        return Access(len(hit) * self.unit, sum(s.tokens for s in prompt), evicted)

    def resize(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.now += 1
        while capacity is not None and len(self.held) * self.unit > capacity:
            del self.held[min(self.leaves(), key=lambda leaf: self.policy.priority(self.held[leaf]))]

    @property
    def full(self) -> bool:
        return self.capacity is not None and (len(self.held) + 1) * self.unit > self.capacity

    def leaves(self) -> list[Path]:
        """What may go: no other held path goes through it, and the present access did not touch it."""
        parents = {path[:-1] for path in self.held}
        return [path for path, usage in self.held.items() if path not in parents and usage.last_access != self.now]


class CacheMachine(RuleBasedStateMachine):
    """Whatever happens, the fast cache and the naive one agree on every prompt."""

    cache: RadixPrefixCache | PagedPrefixCache
    naive: NaiveCache

    @initialize(
        capacity=st.integers(0, 25).map(lambda n: n or None),
        page_size=st.integers(0, 5).map(lambda n: n or None),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def start(self, capacity: int | None, page_size: int | None, policy: str) -> None:
        if page_size is None:
            self.cache = RadixPrefixCache(capacity, POLICIES[policy])
        else:
            capacity = None if capacity is None else max(capacity, page_size)
            self.cache = PagedPrefixCache(capacity, page_size, POLICIES[policy])
        self.naive = NaiveCache(capacity, page_size or 1, POLICIES[policy])

    @rule(prompts=st.lists(PROMPTS, min_size=1, max_size=6))
    def access(self, prompts: list[list[Segment]]) -> None:
        for prompt in prompts:
            assert self.cache.access(prompt) == self.naive.access(prompt)
            self.cache.check_invariants()

    @rule(prompt=PROMPTS)
    def match(self, prompt: list[Segment]) -> None:
        assert self.cache.match_prefix(prompt) == self.naive.match_prefix(prompt)

    @rule(prompt=PROMPTS, tokens=st.integers(0, 20))
    def truncate(self, prompt: list[Segment], tokens: int) -> None:
        before = len(self.naive.held)
        gone = set(self.naive.paths(prompt)[tokens // self.naive.unit :])
        self.naive.held = {
            p: u for p, u in self.naive.held.items() if not any(p[:n] in gone for n in range(len(p) + 1))
        }
        went = (before - len(self.naive.held)) * self.naive.unit
        assert self.cache.truncate(prompt, tokens) == went

    @rule(prompt=PROMPTS, tokens=st.integers(0, 20))
    def newer_tokens(self, prompt: list[Segment], tokens: int) -> None:
        place = tokens // self.naive.unit
        path = ((*self.naive.paths(prompt), *[()] * (place + 1)))[place]
        held = self.naive.held
        if path not in held:
            assert self.cache.newer_tokens(prompt, tokens) == len(held) * self.naive.unit
            return
        age = [(usage.last_access, -len(p)) for p, usage in held.items()]
        newer = sum(a > (held[path].last_access, -len(path)) for a in age)
        assert self.cache.newer_tokens(prompt, tokens) == newer * self.naive.unit

    @rule(capacity=st.integers(4, 25) | st.none())
    def resize(self, capacity: int | None) -> None:
        capacity = None if capacity is None else max(capacity, self.naive.unit)
        self.cache.resize(capacity)
        self.naive.resize(capacity)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.naive.held.clear()
        self.naive.now = 0

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_invariants()
            assert self.cache.used_tokens == len(self.naive.held) * self.naive.unit


TestPrefixCaches = CacheMachine.TestCase
