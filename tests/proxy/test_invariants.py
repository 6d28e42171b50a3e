"""Random conversations of several clients through one proxy; the invariants are checked on the bytes that are sent."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot import ContextPilot
from prefixpilot.proxy.memory.history import History
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import Brought, LedgerKey, Restoration

from .support import Desk, Messages, Sent, assistant, chat, user

HEADING = re.compile(r"\[(Doc \d+)\]\n")
ANNOTATION = re.compile(r"Please refer to \[(Doc \d+)\] (?:above|in the previous conversation)\.")


@dataclass
class Client:
    """One user and its one conversation."""

    name: str
    conversation: str | None
    key: str
    mode: str = "on"
    history: Messages = field(default_factory=list)
    frozen: Messages = field(default_factory=list)
    """What the engine has got of ``history``, as far as it is known."""
    saved: list[tuple[Messages, Messages]] = field(default_factory=list)
    """Branches that the user left, to come back to."""
    last: tuple[Messages, list[str], Sent, bool] | None = None


def clients() -> list[Client]:
    return [
        Client("ann", "c", "key 1"),
        Client("bob", "c", "key 2"),
        Client("cyd", "d", "key 1"),
        Client("off", "c", "key 3", mode="off"),
        Client("dan", None, "key 1"),
    ]


QUESTIONS = ("Why?", "How?")
NO_ID = "no id of its own"
REPLIES = ("yes", "yes, it is", "no")


class WatchedLedger(Ledger):
    """Tells whether the last restoration was decided by what the client sent."""

    ambiguous = False
    assumed = False

    def restore(
        self, key: LedgerKey, history: History, *, with_newest: bool, brought: Brought | None = None
    ) -> Restoration:
        restored = super().restore(key, history, with_newest=with_newest, brought=brought)
        self.ambiguous, self.assumed = restored.ambiguous, restored.assumed
        return restored

    @property
    def undecided(self) -> bool:
        return self.ambiguous or self.assumed


class Conversations:
    """Draws what the clients do, and checks what the engine gets."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.pilot = ContextPilot()
        self.ledger = WatchedLedger(10, 100, 1 << 24)
        self.desk = Desk(pilot=self.pilot, ledger=self.ledger)
        self.clients = clients()
        self.calls = 0
        self.seen = Counter[str]()

    def step(self) -> None:
        client = self.draw.choice(self.clients)
        actions = (self.turn, self.tools, self.retry, self.reorder, self.go_back, self.switch, self.edit, self.truncate)
        self.draw.choices(actions, (9, 4, 3, 3, 3, 3, 1, 1))[0](client)

    def turn(self, client: Client) -> None:
        # Half of the texts are the client's own, half are shared by all; repeated ones within a turn occur.
        blocks = self.draw.choices(range(6), k=self.draw.choice((0, 1, 2, 3, 4)))
        texts = [f"Text {b} of {client.name if b % 2 else 'all'}." for b in blocks]
        reply = None if self.draw.random() < 0.15 else self.draw.choice(REPLIES)
        self.send(client, [*client.history, user(self.draw.choice(QUESTIONS))], texts, reply)

    def tools(self, client: Client) -> None:
        """A turn that the engine answers with a tool call, perhaps tried again with its documents in another order; one
        of the tries goes on."""
        texts = [f"Text {b} of {client.name if b % 2 else 'all'}." for b in self.draw.sample(range(6), k=3)]
        messages = [*client.history, user(self.draw.choice(QUESTIONS))]
        before = client.history, client.frozen
        tries = []
        for _ in range(self.draw.choice((1, 2))):
            self.calls += 1
            call_id = f"call {self.calls}" if client.conversation != "d" else NO_ID
            client.history, client.frozen = before
            sent = self.send(client, messages, texts, self.calling(call_id))
            tries.append((sent, list(texts), call_id, self.ledger.undecided))
            self.draw.shuffle(texts)
        sent, texts, call_id, was_undecided = self.draw.choice(tries)
        result = {"role": "tool", "tool_call_id": call_id, "content": self.draw.choice(("42", "43"))}
        client.history = [*messages, self.calling(call_id)]
        client.frozen = [] if was_undecided else [*sent.body["messages"], self.calling(call_id)]
        # Where the ids are all the same, the blocks of the try must come in its order to tell it from the other.
        reordered = texts if call_id == NO_ID else texts[::-1]
        brought = self.draw.choice(([], texts, texts[:1], reordered))
        self.send(client, [*client.history, result], brought, self.draw.choice(REPLIES))
        client.last = None
        self.seen["tools"] += len(tries) > 1

    def calling(self, call_id: str) -> dict[str, Any]:
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def retry(self, client: Client) -> None:
        if client.last is None:
            return
        messages, texts, before, was_undecided = client.last
        client.history, client.frozen = messages[:-1], before.body["messages"][:-1]
        again = self.send(client, messages, texts, self.draw.choice(REPLIES))
        if client.conversation and not was_undecided and not self.ledger.undecided:
            assert again.body == before.body
            self.seen["retry"] += 1

    def reorder(self, client: Client) -> None:
        """The last turn again, its documents in another order, perhaps without one of them."""
        if client.last is None:
            return
        messages, texts, before, _ = client.last
        client.history, client.frozen = messages[:-1], before.body["messages"][:-1]
        count = max(0, len(texts) - self.draw.choice((0, 1)))
        self.send(client, messages, self.draw.sample(texts, k=count), self.draw.choice(REPLIES))

    def go_back(self, client: Client) -> None:
        client.saved = [*client.saved[-5:], (client.history, client.frozen)]
        place = self.draw.choice([*self.turns_of(client), len(client.history)])
        client.history, client.frozen, client.last = client.history[:place], client.frozen[:place], None

    def switch(self, client: Client) -> None:
        if client.saved:
            client.history, client.frozen = self.draw.choice(client.saved)
            client.last = None

    def edit(self, client: Client) -> None:
        if client.history:
            place = self.draw.choice(self.turns_of(client))
            client.history = list(client.history)
            client.history[place] = user("Something else?")
            client.frozen, client.last = client.frozen[:place], None

    def truncate(self, client: Client) -> None:
        place = [*self.turns_of(client), len(client.history)][1:2]
        client.history, client.frozen, client.last = client.history[place[0] :] if place else [], [], None

    def turns_of(self, client: Client) -> list[int]:
        """Where the user messages stand."""
        return [i for i, message in enumerate(client.history) if message["role"] == "user"]

    def send(self, client: Client, messages: Messages, texts: list[str], reply: str | dict[str, Any] | None) -> Sent:
        body = chat(messages, texts or None)
        sent = self.desk.ask(body, client.conversation, mode=client.mode, key=client.key, reply=reply)
        self.check(client, messages, texts, sent)
        if reply is None:
            return sent
        answer = reply if isinstance(reply, dict) else assistant(reply)
        client.history = [*messages, answer]
        client.frozen = [*sent.body["messages"], answer]
        client.last = (messages, texts, sent, self.ledger.undecided)
        return sent

    def check(self, client: Client, messages: Messages, texts: list[str], sent: Sent) -> None:
        prompt = "\n\n".join(m["content"] or "" for m in sent.body["messages"])
        headings = [m.group(1) for m in HEADING.finditer(prompt)]
        # Invariant 1: every block stands in full under its label, and every annotation's target stands before it.
        for text, label in zip(texts, sent.plan["labels"] if texts else (), strict=True):
            assert f"[{label}]\n{text}\n\n" in prompt
        for annotation in ANNOTATION.finditer(prompt):
            assert f"[{annotation.group(1)}]\n" in prompt[: annotation.start()]
        assert len(headings) == len(set(headings)), "a label names one block"
        # Invariant 3: this turn shows each of its blocks once; in a tool loop it has done so before.
        in_loop = messages[-1]["role"] == "tool"
        shown = len(HEADING.findall(sent.newest)) + len(ANNOTATION.findall(sent.newest))
        assert shown == len(texts) or (in_loop and client.conversation)
        if client.mode == "off":
            assert not ANNOTATION.search(prompt)
            assert re.findall(r"Text \d of \w+\.", sent.newest) == texts or in_loop
        # Invariant 4: what the engine has got is its prefix again.
        known = client.frozen if client.conversation else []
        if not (client.conversation and self.ledger.undecided):
            assert sent.body["messages"][: len(known)] == known
            self.seen["prefix"] += bool(known)
            self.seen["loop"] += bool(known) and in_loop
        self.seen["ambiguous"] += bool(client.conversation and self.ledger.ambiguous)
        self.seen["assumed"] += bool(client.conversation and self.ledger.assumed)
        if sent.forward.plan_header is not None:
            self.seen.update({k: 1 for k in ("restored", "replaced") if sent.plan[k]})
        # Isolation.
        for other in self.clients:
            assert other is client or f"of {other.name}." not in prompt
        # Nothing else is changed.
        assert [m["role"] for m in sent.body["messages"]] == [m["role"] for m in messages]
        for ours, theirs in zip(sent.body["messages"], messages, strict=True):
            assert ours["content"] == theirs["content"] or ours["content"].endswith(theirs["content"])
            assert {**ours, "content": None} == {**theirs, "content": None}

    def finish(self) -> None:
        self.ledger.check_invariants()
        self.pilot.check_invariants()
        failed = self.desk.app.metrics.fail_opens.collect()
        assert not [sample for family in failed for sample in family.samples]


WORTH = ("ambiguous", "assumed", "prefix", "retry", "tools", "loop", "restored", "replaced")


def test_random_conversations() -> None:
    seen = Counter[str]()

    @given(st.integers(min_value=0))
    @settings(max_examples=80)
    def run(seed: int) -> None:
        conversations = Conversations(Random(seed))
        for _ in range(60):
            conversations.step()
        conversations.finish()
        seen.update(conversations.seen)

    run()
    assert min(seen[what] for what in WORTH) > 10, f"what this is about did not occur: {seen}"
