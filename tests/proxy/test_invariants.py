"""Random conversations of several clients through one proxy; the invariants are checked on the bytes that are sent."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixpilot import ContextPilot
from prefixpilot.proxy.history import History
from prefixpilot.proxy.ledger import Ledger
from prefixpilot.proxy.records import Brought, LedgerKey, Restoration

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
REPLIES = ("yes", "yes, it is", "no")


class WatchedLedger(Ledger):
    """Tells whether the last restoration was ambiguous."""

    ambiguous = False

    def restore(
        self, key: LedgerKey, history: History, *, with_newest: bool, brought: Brought | None = None
    ) -> Restoration:
        restored = super().restore(key, history, with_newest=with_newest, brought=brought)
        self.ambiguous = restored.ambiguous
        return restored


class Conversations:
    """Draws what the clients do, and checks what the engine gets."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.pilot = ContextPilot()
        self.ledger = WatchedLedger(10, 100, 1 << 24)
        self.desk = Desk(pilot=self.pilot, ledger=self.ledger)
        self.clients = clients()
        self.seen = Counter[str]()

    def step(self) -> None:
        client = self.draw.choice(self.clients)
        actions = (self.turn, self.retry, self.go_back, self.switch, self.edit, self.truncate)
        self.draw.choices(actions, (9, 3, 3, 3, 1, 1))[0](client)

    def turn(self, client: Client) -> None:
        # Half of the texts are the client's own, half are shared by all; repeated ones within a turn occur.
        blocks = self.draw.choices(range(6), k=self.draw.choice((0, 1, 2, 3, 4)))
        texts = [f"Text {b} of {client.name if b % 2 else 'all'}." for b in blocks]
        reply = None if self.draw.random() < 0.15 else self.draw.choice(REPLIES)
        self.send(client, [*client.history, user(self.draw.choice(QUESTIONS))], texts, reply)

    def retry(self, client: Client) -> None:
        if client.last is None:
            return
        messages, texts, before, was_ambiguous = client.last
        client.history, client.frozen = messages[:-1], before.body["messages"][:-1]
        again = self.send(client, messages, texts, self.draw.choice(REPLIES))
        if client.conversation and not was_ambiguous and not self.ledger.ambiguous:
            assert again.body == before.body
            self.seen["retry"] += 1

    def go_back(self, client: Client) -> None:
        client.saved = [*client.saved[-5:], (client.history, client.frozen)]
        place = self.draw.randrange(0, len(client.history) + 1, 2)
        client.history, client.frozen, client.last = client.history[:place], client.frozen[:place], None

    def switch(self, client: Client) -> None:
        if client.saved:
            client.history, client.frozen = self.draw.choice(client.saved)
            client.last = None

    def edit(self, client: Client) -> None:
        if client.history:
            place = self.draw.randrange(0, len(client.history), 2)
            client.history = list(client.history)
            client.history[place] = user("Something else?")
            client.frozen, client.last = client.frozen[:place], None

    def truncate(self, client: Client) -> None:
        client.history, client.frozen, client.last = client.history[2:], [], None

    def send(self, client: Client, messages: Messages, texts: list[str], reply: str | None) -> Sent:
        body = chat(messages, texts or None)
        sent = self.desk.ask(body, client.conversation, mode=client.mode, key=client.key, reply=reply)
        self.check(client, messages, texts, sent)
        if reply is None:
            return sent
        client.history = [*messages, assistant(reply)]
        client.frozen = [*sent.body["messages"], assistant(reply)]
        client.last = (messages, texts, sent, self.ledger.ambiguous)
        return sent

    def check(self, client: Client, messages: Messages, texts: list[str], sent: Sent) -> None:
        prompt = "\n\n".join(m["content"] for m in sent.body["messages"])
        headings = [m.group(1) for m in HEADING.finditer(prompt)]
        # Invariant 1: every block stands in full under its label, and every annotation's target stands before it.
        for text, label in zip(texts, sent.plan["labels"] if texts else (), strict=True):
            assert f"[{label}]\n{text}\n\n" in prompt
        for annotation in ANNOTATION.finditer(prompt):
            assert f"[{annotation.group(1)}]\n" in prompt[: annotation.start()]
        assert len(headings) == len(set(headings)), "a label names one block"
        # Invariant 3: this turn shows each of its blocks once.
        shown = len(HEADING.findall(sent.newest)) + len(ANNOTATION.findall(sent.newest))
        assert shown == len(texts)
        if client.mode == "off":
            assert not ANNOTATION.search(prompt)
            assert re.findall(r"Text \d of \w+\.", sent.newest) == texts
        # Invariant 4: what the engine has got is its prefix again.
        known = client.frozen if client.conversation else []
        if not (client.conversation and self.ledger.ambiguous):
            assert sent.body["messages"][: len(known)] == known
            self.seen["prefix"] += bool(known)
        self.seen["ambiguous"] += bool(client.conversation and self.ledger.ambiguous)
        if sent.forward.plan_header is not None:
            self.seen.update({k: 1 for k in ("restored", "replaced") if sent.plan[k]})
        # Isolation.
        for other in self.clients:
            assert other is client or f"of {other.name}." not in prompt
        # Nothing else is changed.
        assert [m["role"] for m in sent.body["messages"]] == [m["role"] for m in messages]
        for ours, theirs in zip(sent.body["messages"], messages, strict=True):
            assert ours["content"].endswith(theirs["content"])

    def finish(self) -> None:
        self.ledger.check_invariants()
        self.pilot.check_invariants()
        failed = self.desk.app.metrics.fail_opens.collect()
        assert not [sample for family in failed for sample in family.samples]


SEEN = Counter[str]()


@given(st.integers(min_value=0))
@settings(max_examples=80)
def test_random_conversations(seed: int) -> None:
    conversations = Conversations(Random(seed))
    for _ in range(60):
        conversations.step()
    conversations.finish()
    SEEN.update(conversations.seen)


def test_the_random_conversations_were_worth_it() -> None:
    """Guards the test above: what it is about did occur."""
    if not SEEN:
        pytest.skip("runs after the test above")
    assert min(SEEN[what] for what in ("ambiguous", "prefix", "retry", "restored", "replaced")) > 20, SEEN
