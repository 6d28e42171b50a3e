"""Random conversations with a clock that ticks in every request and tools that come in another order each time.

What was sent for a history is sent again: tools, system text and all messages. Nothing is lost: the time of each
request stands in it, and so does every line of the client's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import Phase
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from prefixpilot.volatile.base import VolatileRules

from .steadying import Relay, texts

RULES = VolatileRules(clock="round", ids=True, memory=True, billing_header=True, tool_order=True)
NAMES = ("read", "write", "mcp__b__x", "mcp__a__y", "grep")
TOWNS = ("Ghent", "Turku", "Porto", "Split")
DASHES = "-" * 21


def passages(numbers: list[int]) -> str:
    nodes = "\n\n".join(f"file_path: n{n}.md\n\n" + " ".join(f"n{n}w{i}" for i in range(40)) for n in numbers)
    return f"Context information is below.\n{DASHES}\n{nodes}\n{DASHES}\nAnswer the query."


@dataclass
class Client:
    """A conversation as its client keeps it; ``town`` stands in its system text and in no other's."""

    town: str
    key: str
    tools: list[str]
    steps: list[tuple[str, str]] = field(default_factory=list)
    session: int = 0
    had: list[tuple[list[tuple[str, str]], list[str], list[str], int]] = field(default_factory=list)

    def front(self, minute: int) -> str:
        time = f"2026-11-30T{minute // 60:02d}:{minute % 60:02d}"
        memories = f"User Memories:\n- Lives in {self.town}.\n- Likes tea."
        return f"You help.\nCurrent time in {self.town}: {time}\nSession ID: s{self.session:05d}\n{memories}\nBe kind."


def chat_body(client: Client, front: str, tools: list[str]) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"role": "system", "content": front}]
    for i, (role, text) in enumerate(client.steps):
        if role == "call":
            made = {"id": text, "type": "function", "function": {"name": "read", "arguments": "{}"}}
            said.append({"role": "assistant", "content": None, "tool_calls": [made]})
        elif role == "tool":
            said.append({"role": "tool", "tool_call_id": client.steps[i - 1][1], "content": text})
        else:
            said.append({"role": role, "content": text})
    listed = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    return {"model": "m", "messages": said, "tools": listed}


def messages_body(client: Client, front: str, tools: list[str]) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    for i, (role, text) in enumerate(client.steps):
        if role == "call":
            said.append(
                {"role": "assistant", "content": [{"type": "tool_use", "id": text, "name": "read", "input": {}}]}
            )
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": client.steps[i - 1][1], "content": text}
            said.append({"role": "user", "content": [result]})
        else:
            said.append({"role": role, "content": text})
    system = [{"type": "text", "text": front}]
    listed = [{"name": name, "input_schema": {}} for name in tools]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": said, "tools": listed}


BODIES = {"chat": chat_body, "messages": messages_body}


def named(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["name"] if "name" in tool else tool["function"]["name"] for tool in tools]


class SteadyConversations(RuleBasedStateMachine):
    """Clients of two keys, in one API; the first words of each conversation are its own."""

    @initialize(api=st.sampled_from(sorted(BODIES)))
    def start(self, api: str) -> None:
        self.api = api
        self.relay = Relay(volatile=RULES)
        self.clients: list[Client] = []
        self.minute = 0
        self.calls = 0

    @rule(key=st.sampled_from(["1", "2"]), tools=st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    def open(self, key: str, tools: list[str]) -> None:
        if len(self.clients) < 4:
            self.clients.append(Client(TOWNS[len(self.clients)], key, tools))

    def _pick(self, data: st.DataObject) -> Client:
        return self.clients[data.draw(st.integers(0, len(self.clients) - 1))]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), numbers=st.lists(st.integers(0, 5), max_size=4, unique=True), again=st.booleans())
    def ask(self, data: st.DataObject, numbers: list[int], again: bool) -> None:
        client = self._pick(data)
        if client.steps and client.steps[-1][0] == "tool":
            client.steps.append(("assistant", "Done."))
        words = f"{client.town} asks, {len(client.steps) % 3}?"
        client.steps.append(("user", f"{passages(numbers)}\n{words}" if numbers else words))
        for _ in range(1 + again):
            self._send(data, client)
        client.steps.append(("assistant", "An answer."))

    @precondition(lambda self: any(client.steps for client in self.clients))
    @rule(data=st.data(), result=st.integers(0, 2))
    def go_on_in_a_loop(self, data: st.DataObject, result: int) -> None:
        client = self._pick(data)
        if client.steps:
            self.calls += 1
            if client.steps[-1][0] == "assistant":
                client.steps[-1:] = [("call", f"c{self.calls}"), ("tool", f"Result {result}.")]
            else:
                client.steps += [("call", f"c{self.calls}"), ("tool", f"Result {result}.")]
            self._send(data, client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def a_tool_comes(self, data: st.DataObject, name: str) -> None:
        client = self._pick(data)
        if name not in client.tools:
            client.tools.append(name)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_new_session(self, data: st.DataObject) -> None:
        """Its system text is another: nothing was sent behind that."""
        self._pick(data).session += 1

    @precondition(lambda self: any(len(client.steps) > 3 for client in self.clients))
    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        client = self._pick(data)
        users = [i for i, (role, _) in enumerate(client.steps) if role == "user"]
        if len(users) > 1:
            del client.steps[users[-1] :]

    def _send(self, data: st.DataObject, client: Client) -> None:
        self.minute += 1
        front = client.front(self.minute)
        tools = data.draw(st.permutations(client.tools))
        body = BODIES[self.api](client, front, list(tools))
        sent = self.relay.sent(self.api, body, client.key)
        assert self.relay.metric("prefixpilot_requests_total", outcome="fallback") == 0
        self._check_nothing_is_lost(client, texts(self.api, body), texts(self.api, sent))
        assert Counter(named(sent["tools"])) == Counter(tools)
        self._check_frozen(client, texts(self.api, sent), named(sent["tools"]))

    def _check_nothing_is_lost(self, client: Client, own: list[str], sent: list[str]) -> None:
        time = f"{self.minute // 60:02d}:{self.minute % 60:02d}"
        told = sum(time in text for text in sent)
        newest = max(i for i, (role, _) in enumerate(client.steps) if role == "user")
        if client.steps[-1][0] == "user" or told:
            assert told == 1, "the time of this request stands in it once"
        else:
            sentence = f"[Current time in {client.town}: 2026-11-30T"
            asked = next(text for text in reversed(sent) if client.steps[newest][1][-9:] in text)
            assert asked.count(sentence) == 1, "in a loop the time of its user message stands there"
        assert not any(town in text for town in TOWNS if town != client.town for text in sent)
        front = [Counter(text.replace(f"T{time}", "").split("\n")) for text in (own[0], sent[0])]
        assert front[0] == front[1], "a line of the system text is lost"
        for given, text in zip(own[1:], sent[1:], strict=True):
            lost = Counter(filter(None, given.split("\n"))) - Counter(text.split("\n"))
            assert not lost or "[Unchanged:" in text

    def _check_frozen(self, client: Client, sent: list[str], tools: list[str]) -> None:
        for steps, before, _, session in reversed(client.had):
            if client.steps[: len(steps)] == steps and session == client.session:
                again = client.steps == steps
                kept = len(before) - (1 if again else 0)
                assert sent[:kept] == before[:kept], "a frozen prefix has changed"
                if again and steps[-1][0] == "user":
                    assert sent[-1].partition("[Current")[0] == before[-1].partition("[Current")[0]
                break
        for _, _, had_tools, _ in client.had[-1:]:
            assert tools[: len(had_tools)] == had_tools, "tools that were there have moved"
        client.had.append((list(client.steps), sent, tools, client.session))


TestSteadyConversations = SteadyConversations.TestCase
TestSteadyConversations.settings = run_settings(
    max_examples=40, stateful_step_count=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
