"""The seam for requests without blocks: a treatment is called for these only, and its failures cost nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.apis import API_OF_NAME
from prefixpilot.apis.base import Prompt
from prefixpilot.jsontext import JsonText, SetText
from prefixpilot.proxy.call import Call, Options
from prefixpilot.proxy.steps import Treatment

from .dialects import Desk, body
from .support import InjectedError, metric

ALL = ("chat", "completions", "responses", "messages")


class Shout:
    """Writes the last text of a prompt in capitals."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.learnt: list[str] = []

    def __call__(self, prompt: Prompt, source: JsonText, options: Options) -> Treatment:
        *_, last = prompt.segments()
        self.seen.append(last.text)
        edits = (SetText(last.pointer, last.text.upper()),) if last.text.islower() else ()
        return Treatment(edits, lambda: self.learnt.append(last.text), b"shouted")


@pytest.mark.parametrize("api", ALL)
def test_a_treatment_edits_and_learns_at_the_first_content(api: str) -> None:
    shout = Shout()
    desk = Desk(treat=shout)
    given = body(api, ["why?"])
    sent = desk.ask(api, given, reply=None)
    assert (sent.texts, shout.learnt) == (["WHY?"], [])
    assert (sent.forward.outcome, sent.forward.touched, sent.forward.plan_header) == ("planned", True, b"shouted")
    assert json.dumps(sent.body) == json.dumps(given).replace("why?", "WHY?")
    desk.ask(api, given, reply={"error": {"message": "no"}})
    assert shout.learnt == []
    desk.ask(api, given)
    assert shout.learnt == ["why?"]


@pytest.mark.parametrize("api", ALL)
def test_without_edits_every_byte_stays_and_the_answer_is_still_learnt_from(api: str) -> None:
    shout = Shout()
    sent = Desk(treat=shout).ask(api, body(api, ["WHY?"]))
    assert (sent.texts, sent.forward.touched, sent.forward.outcome) == (["WHY?"], False, "passthrough")
    assert shout.learnt == ["WHY?"]


@pytest.mark.parametrize("api", ALL)
def test_blocks_and_conversations_are_not_treated(api: str) -> None:
    shout = Shout()
    desk = Desk(treat=shout)
    desk.ask(api, body(api, ["why?"], ["A"]))
    desk.ask(api, body(api, ["why?"], []))
    desk.ask(api, body(api, ["why?"]), "c")
    assert shout.seen == []
    assert desk.ask(api, body(api, ["what are context_blocks?"])).texts == ["WHAT ARE CONTEXT_BLOCKS?"]


@pytest.mark.parametrize(
    "data",
    [b"no json", b"[1]", b"{}", b'{"messages":[{"role":"user","content":"why?"}],"messages":[]}', b'{"x":NaN}', b""],
)
def test_what_cannot_be_read_is_left_alone(data: bytes) -> None:
    shout = Shout()
    desk = Desk(treat=shout)
    for api in API_OF_NAME.values():
        forward = desk.app.pipeline.prepare(Call([], data, api))
        assert (forward.body, forward.outcome) == (data, "passthrough")
    assert (shout.seen, "fail_opens_total{" in desk.app.metrics.text().decode()) == ([], False)


def test_without_a_treatment_a_body_without_blocks_is_not_parsed() -> None:
    class Unread(bytes):
        def decode(self, *args: Any, **more: Any) -> str:
            raise AssertionError("parsed")

    data = Unread(json.dumps(body("chat", ["why?"])).encode())
    assert Desk().app.pipeline.prepare(Call([], data)).body is data
    treated = Desk(treat=Shout())
    assert treated.app.pipeline.prepare(Call([], data)).outcome == "fallback", "the test can see"


def raising(*args: Any) -> Treatment:
    raise InjectedError("treat")


def misled(*args: Any) -> Treatment:
    return Treatment((SetText(("nobody",), "x"),))


@pytest.mark.parametrize("treat", [raising, misled])
@pytest.mark.parametrize("api", ALL)
def test_a_treatment_that_fails_costs_nothing(api: str, treat: Any) -> None:
    desk = Desk(treat=treat)
    sent = desk.ask(api, body(api, ["why?"]))
    assert (sent.body, sent.forward.outcome) == (body(api, ["why?"]), "fallback")
    assert metric(desk.app.metrics.text().decode(), "prefixpilot_fail_opens_total", step="treat") == 1
