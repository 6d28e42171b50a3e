"""Conversations at random, without an engine: prompts grow as prefixes, no evidence is lost or named wrongly."""

from __future__ import annotations

import re

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot import ContextPilot, PilotConfig
from prefixpilot.annotations import location_annotation
from prefixpilot.core import ContextBlock
from prefixpilot.rag.tool_results import ToolCall
from prefixpilot.rag.turn import Asked, History, Message, Turn, begin, prepare
from prefixpilot.testing.chat_wire import template

TEXTS = st.sampled_from(
    ["alpha text", "beta text", "gamma text", "delta text", "[Doc 2]\nan old quotation", "see [Doc 3]"]
)
BLOCKS = st.lists(st.builds(ContextBlock, TEXTS, title=st.sampled_from([None, "T"])), max_size=5)
WORDS = st.sampled_from(["Why?", "What of [Doc 1]?", "[Doc 4]\nis this so?", "And?"])
REPLIES = st.sampled_from(["Yes.", "As [Doc 1] says.", "[Doc 2]\nis what I say myself.", ""])
RESULTS = st.sampled_from([30 * "line one\n", 30 * "line two\n", "short"])


def text_of(messages: object) -> str:
    return template(messages).removesuffix(template([]))  # type: ignore[arg-type]


class Conversations(RuleBasedStateMachine):
    """Branches of conversations on one pilot."""

    histories = Bundle("histories")

    def __init__(self) -> None:
        super().__init__()
        self.pilot = ContextPilot(PilotConfig(annotate="all"))
        self.made = 0

    @initialize(target=histories, system=st.sampled_from([None, "Be short.", "[Doc 1]\nis not to be named."]))
    def start(self, system: str | None) -> History:
        return begin(system)

    def turn(self, history: History, words: str, blocks: list[ContextBlock]) -> Turn:
        self.made += 1
        turn = prepare(self.pilot, history, Asked(words, tuple(blocks), f"r{self.made}", {"model": "m"}))
        self.check(history, turn, blocks)
        return turn

    def check(self, history: History, turn: Turn, blocks: list[ContextBlock]) -> None:
        """What is sent, judged by itself."""
        before, sent = text_of(history.messages), text_of(turn.messages)
        assert sent.startswith(before)
        templates = turn.plan.templates
        for planned in turn.plan.blocks:
            block = blocks[planned.position]
            head = f"[{planned.label}]" + (f" {block.title}" if block.title else "") + f"\n{block.text}"
            own = sent[len(before) :]
            if planned.location_annotation is None:
                assert head in own
            else:
                earlier = planned.location_annotation == location_annotation(
                    planned.label, earlier_turn=True, templates=templates
                )
                target = before if earlier else own.partition(planned.location_annotation)[0]
                assert head in target, "what is referred to stands earlier in this very prompt"
                assert not earlier or len(re.findall(rf"^\[{planned.label}\]", sent, re.MULTILINE)) == 1
        assert sorted(planned.position for planned in turn.plan.blocks) == list(range(len(blocks)))

    @rule(target=histories, history=histories, words=WORDS, blocks=BLOCKS, reply=REPLIES)
    def ask(self, history: History, words: str, blocks: list[ContextBlock], reply: str) -> History:
        turn = self.turn(history, words, blocks)
        self.pilot.learn(turn.plan)
        after = turn.done({"role": "assistant", "content": reply})
        new = {planned.label for planned in turn.plan.blocks if planned.location_annotation is None}
        assert new.isdisjoint(history.sources), "a label is given once"
        assert not any(f"[{label}]" in text_of(history.messages) for label in new)
        for label, block in after.sources.items():
            assert f"[{label}]" in text_of(after.messages) and str(block.text) in text_of(after.messages)
        assert after.record.turns == history.record.turns + bool(blocks)
        return after

    @rule(history=histories, words=WORDS, blocks=BLOCKS)
    def fail(self, history: History, words: str, blocks: list[ContextBlock]) -> None:
        """A turn that is planned and never answered changes no history: the next one is planned as it was."""
        turn = self.turn(history, words, blocks)
        assert self.turn(history, words, blocks).messages == turn.messages

    @rule(target=histories, history=histories, results=st.lists(RESULTS, min_size=1, max_size=4))
    def use_tools(self, history: History, results: list[str]) -> History:
        turn = self.turn(history, "Look.", [])
        for number, text in enumerate(results):
            call = ToolCall(f"c{number}", "read", f'{{"n": {number % 2}}}')
            reply: Message = {"role": "assistant", "content": None, "tool_calls": []}
            after = turn.after_tools(reply, [(call, text)])
            sent = after.messages[-1]["content"]
            assert sent == text or text in [m["content"] for m in turn.messages if m["role"] == "tool"]
            assert after.messages[: len(turn.messages)] == turn.messages
            turn = after
        return turn.done({"role": "assistant", "content": "Done."})

    @invariant()
    def the_index_is_whole(self) -> None:
        self.pilot.check_invariants()


Conversations.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestConversations = Conversations.TestCase
