"""Conversations of adapters under any sequence of turns, retries, edits and bounds, checked on what is sent."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefixpilot.adapters import Conversations

TEXTS = [f"Text {n} of a document." for n in range(6)]
blocks = st.lists(st.sampled_from(TEXTS), max_size=4)
names = st.sampled_from(["a", "b", "c"])
words = st.sampled_from(["Why?", "How?", "[Doc 1]\nis mine"])


class ConversationsMachine(RuleBasedStateMachine):
    """Clients that keep their own words and nothing else; and, of each, what the engine had last."""

    @initialize(max_conversations=st.sampled_from([1, 2, 100]), max_bytes=st.sampled_from([5_000, 10_000_000]))
    def start(self, max_conversations: int, max_bytes: int) -> None:
        self.kept = Conversations(max_conversations=max_conversations, max_bytes=max_bytes)
        self.roomy = max_conversations > 2 and max_bytes > 5_000
        self.histories: dict[str, list[dict[str, Any]]] = {}
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.answers = 0

    @rule(name=names, found=blocks, word=words, tell=st.booleans())
    def ask(self, name: str, found: list[str], word: str, tell: bool) -> None:
        """The next turn; the reply is new each time, so that it tells branches apart if it is told."""
        history = [*self.histories.get(name, []), {"role": "user", "content": word}]
        prepared = self.kept.prepare({"messages": history, "context_blocks": found}, conversation_id=name)
        messages = prepared.body["messages"]
        self.check(messages, found)
        self.answers += 1
        reply = f"Answer {self.answers}"
        self.kept.sent(prepared, reply if tell else None)
        before = self.sent.get(name, [])
        if self.roomy and prepared.unmatched == 0:
            assert messages[: len(before)] == before
        self.sent[name] = messages
        self.histories[name] = [*history, {"role": "assistant", "content": reply}]

    @rule(name=names)
    def take_back(self, name: str) -> None:
        """The client goes back a turn: another branch."""
        self.histories[name] = self.histories.get(name, [])[:-2]
        self.sent[name] = []

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.kept.forget(name)
        self.sent[name] = []

    def check(self, messages: list[dict[str, Any]], found: list[str]) -> None:
        """Each text stands in full, at its end or above; what a reference names stands above it."""
        prompt = "\n".join(message["content"] for message in messages)
        assert all(text in prompt for text in found)
        lines = prompt.split("\n")
        for i, line in enumerate(lines):
            if line.startswith("Please refer to [Doc "):
                label = line.removeprefix("Please refer to ").split("]")[0] + "]"
                assert any(above.startswith(label) for above in lines[:i]), line

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "kept"):
            self.kept.check_invariants()


TestConversations = ConversationsMachine.TestCase
TestConversations.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
