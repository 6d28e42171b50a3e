"""Random conversations of several clients, in three APIs: what the engine gets, and that it gets it again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import Phase
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.proxy.ordinary.checks import Read
from tests.proxy.ordinary.support import Proxy, find_notes, notes, words

from prefixpilot.apis.base import Api
from prefixpilot.apis.chat import Chat
from prefixpilot.apis.messages import Messages
from prefixpilot.apis.responses import Responses
from prefixpilot.proxy.ordinary.decision import Decision

APIS: dict[str, Api] = {"chat": Chat(), "messages": Messages(), "responses": Responses()}


class Step(NamedTuple):
    """One message of a client, in no API's words: ``user``, ``assistant``, ``call`` (text: path) or ``result``."""

    kind: str
    text: str
    call: str = ""


@dataclass
class Client:
    """A conversation, as its client keeps it."""

    who: bytes
    base: str
    context: str = ""
    steps: list[Step] = field(default_factory=list)
    clock: int = 0

    def system(self) -> str:
        return f"{self.base}\n{self.context}\nIt is {self.clock}." if self.clock else f"{self.base}\n{self.context}"

    def copy(self) -> Client:
        return Client(self.who, self.base, self.context, list(self.steps), self.clock)


def chat_body(client: Client) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": client.system()}]
    for step in client.steps:
        if step.kind == "call":
            function = {"name": "read", "arguments": json.dumps({"p": step.text})}
            made = [{"id": step.call, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": made})
        elif step.kind == "result":
            messages.append({"role": "tool", "tool_call_id": step.call, "content": step.text})
        else:
            messages.append({"role": step.kind, "content": step.text})
    return {"model": "m", "messages": messages}


def messages_body(client: Client) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for step in client.steps:
        if step.kind == "call":
            use = {"type": "tool_use", "id": step.call, "name": "read", "input": {"p": step.text}}
            messages.append({"role": "assistant", "content": [use]})
        elif step.kind == "result":
            given = {"type": "tool_result", "tool_use_id": step.call, "content": step.text}
            messages.append({"role": "user", "content": [given]})
        else:
            messages.append({"role": step.kind, "content": step.text})
    newest = next((m for m in reversed(messages) if m["role"] == "user" and isinstance(m["content"], str)), None)
    if newest is not None:
        newest["content"] = [{"type": "text", "text": newest["content"], "cache_control": {"type": "ephemeral"}}]
    return {"model": "m", "system": client.system(), "messages": messages}


def responses_body(client: Client) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for step in client.steps:
        if step.kind == "call":
            arguments = json.dumps({"p": step.text})
            items.append({"type": "function_call", "call_id": step.call, "name": "read", "arguments": arguments})
        elif step.kind == "result":
            items.append({"type": "function_call_output", "call_id": step.call, "output": step.text})
        else:
            items.append({"role": step.kind, "content": step.text})
    alone = len(items) == 1 and items[0].get("role") == "user"
    return {"model": "m", "instructions": client.system(), "input": items[0]["content"] if alone else items}


BODIES = {"chat": chat_body, "messages": messages_body, "responses": responses_body}

documents = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=4)
labels = st.sampled_from(["file", "rank"])


def region(chosen: list[tuple[int, int]], how: str) -> str:
    """Documents (number, edition) as an application renders them: under their name, or by rank."""
    named = [
        (f"file {number}" if how == "file" else f"Source {i}", words(f"d{number}e{edition}", 30))
        for i, (number, edition) in enumerate(chosen)
    ]
    return notes(*named)


class Conversations(RuleBasedStateMachine):
    """Every request is checked on its own, and against what was sent for the same history before."""

    @initialize(api=st.sampled_from(sorted(APIS)), movable=st.booleans(), small=st.booleans())
    def start(self, api: str, movable: bool, small: bool) -> None:
        self.api = api
        self.small = small
        self.proxy = Proxy(find_notes(movable=movable), APIS[api], max_forms=4 if small else 10_000)
        self.clients: list[Client] = []
        self.had: list[list[tuple[list[Step], str, str, list[str]]]] = []
        self.calls = 0
        self.sent = 0

    # -- clients

    @rule(who=st.sampled_from([b"1", b"2"]), base=st.sampled_from(["Be kind.", "Be brief."]))
    def open(self, who: bytes, base: str) -> None:
        if len(self.clients) < 4:
            self._add(Client(who, base))

    def _add(self, client: Client) -> None:
        self.clients.append(client)
        self.had.append([])

    def _pick(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.clients) - 1))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), chosen=documents, how=labels, question=st.integers(0, 1), in_front=st.booleans())
    def ask(self, data: st.DataObject, chosen: list[tuple[int, int]], how: str, question: int, in_front: bool) -> None:
        i = self._pick(data)
        text = f"Question {question}?\n\n{region(chosen, how)}" if in_front else f"{region(chosen, how)}\n\n{question}?"
        self.clients[i].steps.append(Step("user", text))
        self._send(i)
        self.clients[i].steps.append(Step("assistant", "An answer."))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), chosen=documents, question=st.booleans())
    def retrieve_into_system_text(self, data: st.DataObject, chosen: list[tuple[int, int]], question: bool) -> None:
        """The context is built anew, for a question without documents or with one of the same."""
        i = self._pick(data)
        self.clients[i].context = region(chosen, "file")
        self.clients[i].steps.append(Step("user", region(chosen[:1], "rank") if question else "And now?"))
        self._send(i)
        self.clients[i].steps.append(Step("assistant", "An answer."))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def the_clock_goes_on(self, data: st.DataObject) -> None:
        self.clients[self._pick(data)].clock += 1

    @precondition(lambda self: any(client.steps for client in self.clients))
    @rule(data=st.data(), document=st.tuples(st.integers(0, 2), st.integers(0, 1)), units=st.booleans())
    def read_a_file(self, data: st.DataObject, document: tuple[int, int], units: bool) -> None:
        i = self._pick(data)
        client = self.clients[i]
        if not client.steps:
            return
        if client.steps[-1].kind == "assistant":
            client.steps.append(Step("user", "Read it."))
        self.calls += 1
        number, edition = document
        text = region([document, (5, 0)], "file") if units else words(f"f{number}e{edition}", 30)
        client.steps += [Step("call", str(number), f"c{self.calls}"), Step("result", text, f"c{self.calls}")]
        self._send(i)

    @precondition(lambda self: any(len(client.steps) > 2 for client in self.clients))
    @rule(data=st.data(), how=st.sampled_from(["edit", "cut", "compact", "back", "trim"]))
    def change_the_history(self, data: st.DataObject, how: str) -> None:
        client = self.clients[self._pick(data)]
        users = [j for j, step in enumerate(client.steps) if step.kind == "user"]
        if len(users) < 2:
            return
        if how == "edit":
            client.steps[users[0]] = Step("user", f"Edited.\n\n{client.steps[users[0]].text}")
        elif how == "cut":
            del client.steps[: users[1]]
        elif how == "compact":
            client.steps[: users[-1]] = [Step("user", "A summary."), Step("assistant", "Good.")]
        elif how == "back":
            del client.steps[users[-1] :]
        else:
            client.steps = [s._replace(text="An") if s.kind == "assistant" else s for s in client.steps]

    @precondition(lambda self: 0 < len(self.clients) < 4)
    @rule(data=st.data(), who=st.sampled_from([b"1", b"2"]))
    def branch(self, data: st.DataObject, who: bytes) -> None:
        copy = self.clients[self._pick(data)].copy()
        copy.who = who
        self._add(copy)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), chosen=documents, how=labels)
    def two_users_open_alike_at_once(self, data: st.DataObject, chosen: list[tuple[int, int]], how: str) -> None:
        """Both are under way before the engine has either; other requests are answered in between."""
        opening = Step("user", region(chosen, how))
        pair = [Client(who, "Be kind.", steps=[opening]) for who in (b"3", b"4")]
        other = Client(b"5", "Be kind.", steps=[Step("user", region(chosen[::-1], how))])
        bodies = [BODIES[self.api](client) for client in pair]
        first = self.proxy.treat(bodies[0], b"3")
        self._check(other, self.proxy.send(BODIES[self.api](other), b"5"))
        second = self.proxy.treat(bodies[1], b"4")
        treated = [first, second]
        for j in data.draw(st.permutations([0, 1])):
            self.proxy.ordinary.learn(treated[j])
        for client, body, treatment in zip(pair, bodies, treated, strict=True):
            sent = self.proxy.forwarded(body, treatment)
            self._check(client, sent)
            if not self.small:
                client.steps += [Step("assistant", "An answer."), Step("user", "And then?")]
                later = self.proxy.forwarded(
                    BODIES[self.api](client), self.proxy.treat(BODIES[self.api](client), client.who)
                )
                assert self.proxy.texts(later)[: len(self.proxy.texts(sent))] == self.proxy.texts(sent)

    # -- sending

    def _send(self, i: int) -> None:
        client = self.clients[i]
        body = BODIES[self.api](client)
        treatment: Decision = self.proxy.treat(body, client.who)
        assert self.proxy.treat(body, client.who).forms == treatment.forms, "not deterministic"
        sent = self.proxy.forwarded(body, treatment)
        self._check(client, sent)
        self._check_frozen(i, sent)
        self.proxy.ordinary.learn(treatment)
        self.had[i].append((list(client.steps), client.system(), client.context, self.proxy.texts(sent)))
        self.sent += 1

    def _check(self, client: Client, sent: dict[str, Any]) -> None:
        reader = Read()
        reader.check(self.proxy.read(BODIES[self.api](client)), self.proxy.read(sent))

    def _check_frozen(self, i: int, sent: dict[str, Any]) -> None:
        """What was sent last for the beginning of this very history is sent again."""
        client = self.clients[i]
        texts = self.proxy.texts(sent)
        for steps, system, context, before in reversed(self.had[i]):
            if client.steps[: len(steps)] == steps and context == client.context and not self.small:
                first = 0 if system == client.system() else 1
                assert texts[first : len(before)] == before[first:], "a frozen prefix has changed"
                return

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "proxy"):
            self.proxy.ledger.check_invariants()
            self.proxy.pilot.check_invariants()


TestConversations = Conversations.TestCase
TestConversations.settings = run_settings(
    max_examples=60, stateful_step_count=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
