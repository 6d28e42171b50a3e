"""Resident contexts against a plain model: the chain of each, and what of it is left."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.cache_events import PageHash
from prefixpilot.core import RequestId
from prefixpilot.residency.contexts import ResidentContexts

PATHS = st.text("ab", min_size=0, max_size=5)
REQUESTS = st.sampled_from([RequestId(r) for r in "rstuvw"])
ENDS = st.lists(st.integers(1, 16), max_size=6).map(sorted)


def chain(path: str) -> list[PageHash]:
    """Names as an engine gives them: a page's name stands for all before it."""
    return [PageHash(path[: i + 1].encode()) for i in range(len(path))]


class ContextsMachine(RuleBasedStateMachine):
    """Pages go in any order, also from the middle; what is usable is what the plain model says."""

    @initialize(page_size=st.integers(1, 4), bound=st.sampled_from([2, 100]))
    def start(self, page_size: int, bound: int) -> None:
        self.size, self.bound = page_size, bound
        self.contexts = ResidentContexts(page_size, bound)
        self.left: dict[RequestId, tuple[list[PageHash], list[int]]] = {}
        self.attached = set[RequestId]()

    def usable(self, request_id: RequestId) -> int:
        pages, ends = self.left.get(request_id, ([], []))
        return sum(end <= len(pages) * self.size for end in ends)

    @rule(request_id=REQUESTS, path=PATHS, ends=ENDS)
    def attach(self, request_id: RequestId, path: str, ends: list[int]) -> None:
        self.attached.add(request_id)
        self.left.pop(request_id, None)
        self.left[request_id] = (chain(path), ends)
        assert self.contexts.attach(request_id, chain(path), ends) == self.usable(request_id)
        self.forget_useless()
        if len(self.left) > self.bound:
            del self.left[next(iter(self.left))]

    def forget_useless(self) -> None:
        for request_id in [r for r in self.left if not self.usable(r)]:
            del self.left[request_id]

    @rule(request_id=REQUESTS)
    def detach(self, request_id: RequestId) -> None:
        assert self.contexts.detach(request_id) == (request_id in self.left)
        self.left.pop(request_id, None)

    @rule(paths=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
    def remove(self, paths: list[str]) -> None:
        before = {request_id: self.usable(request_id) for request_id in self.left}
        gone = {chain(path)[-1] for path in paths}
        for request_id, (pages, ends) in self.left.items():
            lost = [i for i, page in enumerate(pages) if page in gone]
            self.left[request_id] = (pages[: min(lost, default=len(pages))], ends)
        after = {request_id: self.usable(request_id) for request_id in self.left}
        changes = self.contexts.remove([chain(path)[-1] for path in paths])
        assert dict(changes) == {r: n for r, n in after.items() if n != before[r]}
        assert len(changes) == len(dict(changes))
        self.forget_useless()

    @rule()
    def clear(self) -> None:
        assert self.contexts.clear() == tuple((request_id, 0) for request_id in self.left)
        self.left = {}

    @invariant()
    def agrees(self) -> None:
        self.contexts.check_invariants()
        assert len(self.contexts) == len(self.left)
        assert self.contexts.pages <= sum(len(pages) for pages, _ in self.left.values())
        for request_id in map(RequestId, "rstuvw"):
            assert self.contexts.usable(request_id) == self.usable(request_id)
            if request_id in self.left or self.bound > len("rstuvw"):
                assert self.contexts.knows(request_id) == (request_id in self.attached)


TestResidentContexts = ContextsMachine.TestCase
TestResidentContexts.settings = settings(max_examples=80, stateful_step_count=25)
