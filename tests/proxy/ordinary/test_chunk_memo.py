"""The memo of chunks under any sequence of questions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.apis.base import Segment
from prefixpilot.dedup.chunking import chunks, text_digest
from prefixpilot.pieces import Span
from prefixpilot.proxy.memory.forms import NamedText
from prefixpilot.proxy.ordinary.chunk_memo import ChunkMemo

from .support import words

TEXTS = [words(f"T{n}", 30 * n) for n in range(8)]


class ChunkMemoMachine(RuleBasedStateMachine):
    """Whatever it has forgotten, it says what ``chunks`` says; within its bound what was asked last is known."""

    @initialize(most=st.integers(1, 12))
    def start(self, most: int) -> None:
        self.most = most
        self.memo = ChunkMemo(most)

    @rule(number=st.integers(0, len(TEXTS) - 1), before=st.text(max_size=3))
    def ask(self, number: int, before: str) -> None:
        body = Span(len(before), len(before) + len(TEXTS[number]))
        digest = text_digest(TEXTS[number])
        text = NamedText(0, body, body, digest, digest, True, chunked=True)
        found = self.memo.chunks(text, Segment((), f"{before}{TEXTS[number]} behind", "user", 0))
        assert found == chunks(TEXTS[number])
        if len(found) < self.most:
            again = self.memo.chunks(text, Segment((), "", "user", 0))
            assert again is found, "known by its digest alone"

    @rule()
    def clear(self) -> None:
        self.memo.clear()
        assert len(self.memo) == 0

    @invariant()
    def bounded(self) -> None:
        self.memo.check_invariants()


TestChunkMemo = ChunkMemoMachine.TestCase
