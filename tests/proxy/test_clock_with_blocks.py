"""Times are rounded in requests with blocks and in conversations too, in all APIs: what was sent is sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.proxy.memory.settings import StoreSettings
from prefixpilot.volatile.base import VolatileRules

from .dialects import body
from .steadying import Relay, texts

ROUND = VolatileRules(clock="round")
APIS = ("chat", "responses", "messages")
RULES = [
    f"Rule {n}: " + f"the desk number {n} opens at {n} and closes when the last visitor has left. " * 4
    for n in range(6)
]
FRONT = "You help.\nCurrent time: 2026-11-30 14:{minute:02d}\nBe kind."


def at(minute: int, api: str, turns: list[str], blocks: Any = None) -> dict[str, Any]:
    """A request whose system text tells the time."""
    asked, front = body(api, turns, blocks), FRONT.format(minute=minute)
    if api == "chat":
        asked["messages"][0]["content"] = front
    else:
        asked["instructions" if api == "responses" else "system"] = front
    return asked


def told(minute: int) -> str:
    return f"\n\n[Current time: 2026-11-30 14:{minute:02d}]"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("headers", [{}, {"conversation": "c"}])
def test_a_time_stands_behind_the_message_that_has_the_blocks_and_stays_there(
    api: str, headers: dict[str, str]
) -> None:
    relay = Relay(volatile=ROUND)
    one = texts(api, relay.sent(api, at(3, api, ["Hi?"], RULES[:2]), **headers))
    assert one[0] == "You help.\nCurrent time: 2026-11-30\nBe kind."
    assert one[1] == f"[Doc 1]\n{RULES[0]}\n\n[Doc 2]\n{RULES[1]}\n\nHi?{told(3)}"
    two = texts(api, relay.sent(api, at(5, api, ["Hi?", "ok", "And?"], RULES[2:4]), **headers))
    first = one[1] if headers else f"Hi?{told(3)}"  # without an id blocks belong to one request alone
    assert two[:3] == [one[0], first, "ok"]
    assert two[3].startswith("[Doc ") and two[3].endswith(f"And?{told(5)}")
    three = texts(api, relay.sent(api, at(8, api, ["Hi?", "ok", "And?", "ok", "So?"]), **headers))
    assert three == [*(two if headers else [*two[:3], f"And?{told(5)}"]), "ok", f"So?{told(8)}"]
    assert relay.metric("prefixpilot_fail_opens_total") == 0


@pytest.mark.parametrize("api", APIS)
def test_a_clock_does_not_part_requests_that_share_blocks(api: str) -> None:
    relay = Relay(volatile=ROUND)
    first = texts(api, relay.sent(api, at(3, api, ["Hi?"], RULES[:4])))[1]
    again = texts(api, relay.sent(api, at(4, api, ["Ho?"], [*RULES[3::-1], RULES[5]])))[1]
    shared = first.removesuffix(f"\n\nHi?{told(3)}")
    assert again.startswith(shared)


@pytest.mark.parametrize("api", APIS)
def test_what_is_asked_again_tells_its_own_time(api: str) -> None:
    relay = Relay(volatile=ROUND)
    sent = [texts(api, relay.sent(api, at(m, api, ["Hi?"], RULES[:2]), conversation="c"))[1] for m in (3, 9)]
    assert [text.removesuffix(told(m)) for text, m in zip(sent, (3, 9), strict=True)] == [
        sent[0].removesuffix(told(3))
    ] * 2
    later = texts(api, relay.sent(api, at(10, api, ["Hi?", "ok", "And?"]), conversation="c"))
    assert later[1] == sent[1]


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_content_in_parts_keeps_its_parts(api: str) -> None:
    relay = Relay(volatile=ROUND)
    asked = at(3, api, ["Hi?"], RULES[:1])
    asked["messages"][-1]["content"] = [{"type": "text", "text": "See."}, {"type": "text", "text": "Hi?"}]
    content = relay.sent(api, asked)["messages"][-1]["content"]
    assert [part["text"] for part in content] == [f"[Doc 1]\n{RULES[0]}\n\n", "See.", f"Hi?{told(3)}"]


@pytest.mark.parametrize("api", APIS)
def test_a_dry_run_shows_it_and_tells_nothing(api: str) -> None:
    relay = Relay(volatile=ROUND)
    dry = relay.ask(api, at(3, api, ["Hi?"], RULES[:2]), mode="explain")
    assert dry.explain
    assert [change.rule for change in dry.changes] == ["clock", "clock"]
    assert texts(api, json.loads(dry.body))[1].endswith(told(3))
    later = texts(api, relay.sent(api, at(5, api, ["Hi?", "ok", "And?"], RULES[:2])))
    assert later[1] == "Hi?"


@pytest.mark.parametrize("api", APIS)
def test_what_the_engine_refused_was_not_told(api: str) -> None:
    relay = Relay(volatile=ROUND)
    relay.refused(api, at(3, api, ["Hi?"], RULES[:2]))
    assert texts(api, relay.sent(api, at(5, api, ["Hi?", "ok", "And?"], RULES[:2])))[1] == "Hi?"


@pytest.mark.parametrize("api", APIS)
def test_a_conversation_on_disk_keeps_its_clock_where_it_is(api: str, tmp_path: Path) -> None:
    """What was told is in memory, and the next process would send these messages without it."""
    relay = Relay(volatile=ROUND, store=StoreSettings(state_dir=str(tmp_path)))
    sent = texts(api, relay.sent(api, at(3, api, ["Hi?"], RULES[:2]), conversation="c"))
    assert (sent[0], sent[1][-3:]) == (FRONT.format(minute=3), "Hi?")
    alone = texts(api, relay.sent(api, at(3, api, ["Hi?"], RULES[:2])))
    assert alone[1].endswith(told(3))


def test_completions_have_no_system_text_and_stay() -> None:
    asked = body("completions", [FRONT.format(minute=3)], RULES[:2])
    assert Relay(volatile=ROUND).ask("completions", asked).body == Relay().ask("completions", asked).body
