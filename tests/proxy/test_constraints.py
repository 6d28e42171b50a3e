"""What a client may demand of the order of its blocks, over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.proxy.support import Desk, chat, post_chat, user

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.call import Call, RefusedError, read_options
from prefixpilot.workloads import read_workload

Q = [user("Q?")]


def told(*blocks: str, **marks: str) -> list[Any]:
    """Blocks by text; ``A="first"`` pins, ``A="g1"`` puts into a group."""
    return [
        {"text": b, ("pin" if marks[b] in ("first", "last") else "group"): marks[b]} if b in marks else b
        for b in blocks
    ]


def order(desk: Desk, blocks: list[Any], **more: Any) -> list[str]:
    newest = desk.ask(chat(Q, blocks), **more).newest
    return [p.split("\n")[1] for p in newest.split("\n\n") if p.startswith("[Doc")]


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.ask(chat(Q, ["D", "C", "B", "A"]))
    return desk


@pytest.mark.parametrize(
    ("marks", "sent"),
    [
        ({}, ["D", "C", "B", "A"]),
        ({"B": "first"}, ["B", "A", "C", "D"]),
        ({"C": "last"}, ["D", "A", "B", "C"]),
        ({"A": "g", "B": "g"}, ["D", "C", "A", "B"]),
    ],
)
def test_pins_and_groups_hold(desk: Desk, marks: dict[str, str], sent: list[str]) -> None:
    assert order(desk, told("A", "B", "C", "D", **marks)) == sent


def test_marks_are_not_sent_on_and_are_no_part_of_a_blocks_identity(desk: Desk) -> None:
    sent = desk.ask(chat(Q, told("A", "B", "C", "D", D="first")))
    assert "pin" not in json.dumps(sent.body)
    assert sent.plan["prefix_len"] == 4


def test_a_retry_with_other_demands_is_planned_anew() -> None:
    desk = Desk()
    assert order(desk, ["A", "B"], conversation="c") == ["A", "B"]
    assert order(desk, told("A", "B", B="first"), conversation="c") == ["B", "A"]


@pytest.mark.parametrize(
    ("blocks", "field"),
    [
        ([{"text": "A", "pin": "middle"}], "context_blocks[0].pin"),
        ([{"text": "A", "pin": 1}], "context_blocks[0].pin"),
        (["A", {"text": "B", "pin": "first"}, {"text": "C", "pin": "first"}], "context_blocks[2].pin"),
        ([{"text": "A", "group": 7}], "context_blocks[0].group"),
        ([{"text": "A", "group": ""}], "context_blocks[0].group"),
        ([{"text": "A", "group": "g"}, "B", {"text": "C", "group": "g"}], "context_blocks[2].group"),
        ([{"text": "A", "group": "g"}, {"text": "B", "group": "g", "pin": "first"}], "context_blocks[1].pin"),
    ],
)
def test_a_malformed_element_is_named(blocks: list[Any], field: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Desk().ask(chat(Q, blocks))
    assert (caught.value.status, caught.value.param) == (400, field)


def test_the_header_bounds_displacement(proxy: RunningProxy) -> None:
    post_chat(proxy.url, chat(Q, ["C", "B", "A"]))
    plans = {}
    for limit in ("2", "1"):
        answer = post_chat(proxy.url, chat(Q, ["A", "B", "C"]), X_PrefixPilot_Max_Displacement=limit)
        plans[limit] = json.loads(answer.header("X-PrefixPilot-Plan") or "")["prefix_len"]
    assert plans == {"2": 3, "1": 0}


@pytest.mark.parametrize("value", ["", "-1", "two", "1.5", "²"])
def test_a_malformed_header_is_refused(value: str) -> None:
    call = Call([(b"x-prefixpilot-max-displacement", value.encode("latin-1"))], json.dumps(chat(Q, ["A"])).encode())
    with pytest.raises(RefusedError) as caught:
        Desk().app.pipeline.prepare(call)
    assert (caught.value.status, caught.value.param) == (400, "X-PrefixPilot-Max-Displacement")


def test_a_header_that_the_pins_contradict_is_refused() -> None:
    body = json.dumps(chat(Q, told("A", "B", "C", C="first"))).encode()
    with pytest.raises(RefusedError) as caught:
        Desk().app.pipeline.prepare(Call([(b"x-prefixpilot-max-displacement", b"1")], body))
    assert caught.value.param == "X-PrefixPilot-Max-Displacement"


def test_batch_lines_carry_them_too(tmp_path: Any) -> None:
    body = chat(Q, told("A", "B", B="first"))
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}))
    assert read_workload(path).requests[0].request.constraints.first == 1


def test_a_header_can_only_tighten_the_bound_of_the_proxy() -> None:
    body = json.dumps(chat(Q, ["A"])).encode()
    options = read_options(Call([(b"x-prefixpilot-max-displacement", b"5")], body), "on", lambda: "r")
    assert [options.within(bound).max_displacement for bound in (None, 9, 5, 2)] == [5, 5, 5, 2]
    assert read_options(Call([], body), "on", lambda: "r").within(2).max_displacement is None
    with serve_in_thread(ProxySettings("http://127.0.0.1:9", port=0, max_displacement=1)) as running:
        pins = json.dumps(chat(Q, told("A", "B", "C", C="first"))).encode()
        with pytest.raises(RefusedError):
            running.app.pipeline.prepare(Call([(b"x-prefixpilot-max-displacement", b"5")], pins))
