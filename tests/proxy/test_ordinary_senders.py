"""Whose requests may change whose: forms and edges of tenants and credentials, demands, bounds."""

from __future__ import annotations

import json
import re
from random import Random
from threading import RLock
from typing import Any

import pytest
from tests.proxy.support import assistant, chat, user

from prefixpilot.apis.base import Segment
from prefixpilot.apis.chat import Chat
from prefixpilot.core import TenantId
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.app import ProxyApp
from prefixpilot.proxy.call import Call
from prefixpilot.proxy.ordinary import recognition
from prefixpilot.proxy.ordinary.recognition import Recognition
from prefixpilot.proxy.ordinary.settings import OrdinarySettings

ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}]}


def text(seed: str) -> str:
    return " ".join(f"{seed} fact {i * 37 % 101}," for i in range(60))


def documents(names: str) -> str:
    return "\n".join(f'<document path="{name}.md">\n{text(name)}\n</document>' for name in names)


def asks(names: str, question: str = "Why?") -> dict[str, Any]:
    return chat([user(f"{documents(names)}\n\n{question}")])


class Clients:
    """Several clients of one proxy; what an engine gets of them."""

    def __init__(self, **settings: Any) -> None:
        self.app = ProxyApp(ProxySettings("http://127.0.0.1:9", **settings))

    def sent(self, body: dict[str, Any], key: str = "ann", tenant: str = "one", **headers: str) -> dict[str, Any]:
        own = [(f"x-prefixpilot-{n.replace('_', '-')}".encode(), v.encode()) for n, v in headers.items()]
        pairs = [(b"authorization", f"Bearer {key}".encode()), *own]
        forward = self.app.pipeline.prepare(Call(pairs, json.dumps(body).encode(), tenant=TenantId(tenant)))
        observation = self.app.pipeline.observe(forward, 200, "application/json", "")
        observation.feed(json.dumps(ANSWER).encode())
        observation.finish()
        value: dict[str, Any] = json.loads(forward.body)
        return value


def order(body: dict[str, Any]) -> str:
    return "".join(re.findall(r'<document path="(\w)', body["messages"][-1]["content"]))


def test_forms_of_one_tenant_are_none_of_another() -> None:
    clients = Clients()
    clients.sent(asks("ab"))
    assert order(clients.sent(asks("cba"))) == "abc"
    assert clients.sent(asks("cba"), tenant="two") == asks("cba")
    assert order(clients.sent(asks("cba"), key="bob")) == "abc", "within a tenant it is shared"


def test_documents_beside_the_messages_are_none_of_another_tenant() -> None:
    def body(names: str) -> dict[str, Any]:
        beside = [{"doc_id": name, "text": text(name)} for name in names]
        return {**chat([user("Why?")]), "model": "ibm-granite/granite-3.3-8b-instruct", "documents": beside}

    clients = Clients()
    clients.sent(body("ab"))
    assert clients.sent(body("cba")) == body("abc")
    assert clients.sent(body("cba"), tenant="two") == body("cba")


def test_regions_of_system_text_are_none_of_another_tenant() -> None:
    def body(names: str) -> dict[str, Any]:
        return chat([{"role": "system", "content": documents(names)}, user("Why?")])

    clients = Clients()
    clients.sent(body("ab"))
    assert clients.sent(body("cba"))["messages"][0]["content"].startswith(documents("abc"))
    assert clients.sent(body("cba"), tenant="two") == body("cba")


@pytest.mark.parametrize("demand", [{"max_displacement": "0"}, {"recognise": "ragflow"}])
def test_a_demand_is_not_overruled_by_what_others_were_sent(demand: dict[str, str]) -> None:
    clients = Clients()
    clients.sent(asks("ab"))
    assert order(clients.sent(asks("cba"))) == "abc"
    assert clients.sent(asks("cba"), key="bob", **demand) == asks("cba")
    later = chat([*asks("cba")["messages"], assistant(), user("And?")])
    assert clients.sent(later, key="bob") == later, "the next turn goes as bob's first one went"
    assert order(clients.sent(asks("cba"), **demand)) == "abc", "a sender's own history goes as it went"


def test_without_repeats_others_forms_do_not_count() -> None:
    clients = Clients()
    clients.sent(asks("ab"))
    clients.sent(asks("cba"))
    sent = clients.sent(asks("cba"), key="bob", tenant="one", dedupe="off", max_displacement="0")
    assert sent == asks("cba")


def test_what_was_sent_last_is_sent_again() -> None:
    """One content, said by two conversations of one sender, that needs two annotations."""

    def reads(*paths: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [user("Read it twice.")]
        for i, path in enumerate(paths):
            function = {"name": "read", "arguments": json.dumps({"path": path})}
            call = {"id": f"c{i}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": text("found")})
        return messages

    clients = Clients()
    clients.sent(chat(reads("x.py", "b.py")))
    first = clients.sent(chat(reads("y.py", "b.py")))
    assert "y.py" in first["messages"][-1]["content"].partition("]")[0]
    later = clients.sent(chat([*reads("y.py", "b.py"), assistant(), user("And?")]))
    assert later["messages"][:5] == first["messages"]


@pytest.mark.parametrize(("asked", "most"), [(None, 1), ("5", 1), ("0", 0)])
def test_the_bound_of_the_proxy_holds_for_all(asked: str | None, most: int) -> None:
    clients = Clients(max_displacement=1)
    headers = {} if asked is None else {"max_displacement": asked}
    clients.sent(asks("abc"))
    got = order(clients.sent(asks("dcba"), **headers))
    assert sorted(got) == list("abcd")
    assert max(abs(got.index(name) - at) for at, name in enumerate("dcba")) <= most


def test_repeats_keep_their_place_under_the_bound_of_the_proxy() -> None:
    def body(*names: str) -> dict[str, Any]:
        told = "\n".join(f'<document path="{name}.md">\n{text(name[0])}\n</document>' for name in names)
        return chat([user(f"{told}\n\nWhy?")])

    def paths(clients: Clients) -> list[str]:
        clients.sent(body("c3", "b2", "a0"))
        sent = clients.sent(body("a0", "a1", "b2", "c3"))["messages"][0]["content"]
        assert "[Unchanged" in sent
        return re.findall(r'<document path="(\w\d)', sent)

    assert paths(Clients()) == ["c3", "b2", "a0", "a1"]
    assert paths(Clients(max_displacement=0)) == ["a0", "a1", "b2", "c3"]


STEPS = [f"Step {name}: {' '.join(f'{name}{i}' for i in range(30))}." for name in "abcdef"]


def guide(steps: list[str], question: str = "Go.") -> dict[str, Any]:
    return chat([{"role": "system", "content": "\n\n".join(["Do this.", *steps, "Stop."])}, user(question)])


def rules(steps: list[str]) -> Segment:
    prompt = Chat().read(guide(steps))
    assert prompt is not None
    return prompt.messages[0].segments[0]


def test_one_client_proves_nothing_about_the_text_of_another() -> None:
    clients = Clients()
    rng = Random(3)
    moved = False
    for i in range(12):
        body = guide(rng.sample(STEPS, 6), f"go {i}")
        moved = clients.sent(body, key="mallory") != body or moved
        victims = guide(STEPS, f"help {i}")
        assert clients.sent(victims, key=f"ann{i}") == victims
    assert moved, "to mallory they are documents"


def test_edges_of_many_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "MAX_STORES", 2)
    looked = Recognition.of(OrdinarySettings(), RLock())
    rng = Random(3)
    for _ in range(12):
        looked.learn(b"ann", [rules(rng.sample(STEPS, 6))])
    looked.learn(b"bob", [])
    assert looked.recognise(b"ann", None)(rules(STEPS))
    looked.learn(b"cid", [])
    assert looked.recognise(b"ann", None)(rules(STEPS)), "bob's was used longest ago"
    looked.learn(b"bob", [])
    looked.learn(b"cid", [])
    assert looked.recognise(b"ann", None)(rules(STEPS)) == ()


def test_texts_of_all_clients_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "MAX_TEXTS", 8)
    looked = Recognition.of(OrdinarySettings(), RLock())
    rng = Random(3)
    for _ in range(12):
        looked.learn(b"ann", [rules(rng.sample(STEPS, 6))])
    assert looked.recognise(b"ann", None)(rules(STEPS)), "a lone client keeps its store"
    looked.learn(b"bob", [])
    assert looked.recognise(b"ann", None)(rules(STEPS)) == ()
