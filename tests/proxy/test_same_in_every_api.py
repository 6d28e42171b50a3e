"""One random conversation, held in each API beside the others: every one sends the same words, and is told the same."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from .dialects import Desk, body

TALKING = ("chat", "responses", "messages")


class Step(NamedTuple):
    """What a client does next: it drops its last turns, perhaps edits its first question, and asks; and it keeps the
    reply, or words of its own."""

    dropped: int
    edited: bool
    question: str
    blocks: list[str] | None
    reply: str | None
    fails: bool
    keeps: bool


STEPS = st.builds(
    Step,
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from(["Why?", "Why?", "How?"]),
    st.none() | st.lists(st.sampled_from(["A", "B", "C", "D", "E"]), max_size=4),
    st.sampled_from(["yes", "no", "yes, it is", None]),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from([True, True, False]),
)

WORTH = ("restored", "replaced", "ambiguous", "unmatched", "fallback")


def test_every_api_sends_the_same_words() -> None:
    seen = Counter[str]()

    @given(st.lists(STEPS, min_size=1, max_size=12), st.sampled_from(["on", "on", "off"]))
    @settings(max_examples=120)
    def run(steps: list[Step], mode: str) -> None:
        failing: list[bool] = []

        def place(source: object, edits: object) -> bytes:
            if failing:
                raise RuntimeError("injected")
            return source.edited(edits)  # type: ignore[attr-defined,no-any-return]

        desks = {api: Desk(place=place) for api in TALKING}
        turns: list[str] = []
        for number, step in enumerate(steps):
            turns = turns[: max(len(turns) - 2 * step.dropped, 0)]
            if step.edited and turns:
                turns[0] = f"Edited {number}?"
            turns.append(step.question)
            failing[:] = [True] if step.fails else []
            sent = []
            for api, desk in desks.items():
                given_body = body(api, turns, step.blocks)
                sent.append(desk.ask(api, given_body, "c", step.reply, mode=mode))
                desk.app._ledger.check_invariants()
            assert sent[0].texts == sent[1].texts == sent[2].texts
            for text, ours in zip(turns, sent[0].texts, strict=True):
                assert ours == text or ours.endswith(f"\n\n{text}")
            plans = [s.plan if s.forward.plan_header else {} for s in sent]
            for plan in plans:
                plan.pop("request_id", None)
            assert plans[0] == plans[1] == plans[2]
            seen.update(key for key in WORTH if plans[0].get(key))
            turns.append((step.keeps and step.reply) or "words of its own")

    run()
    assert min(seen[what] for what in WORTH) > 5, f"what this is about did not occur: {seen}"
