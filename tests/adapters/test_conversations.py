"""Conversations kept in memory: which turns come back, and which must not (invariants 1, 4b, 7, 9)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from prefixpilot import ContextPilot, PilotConfig, Templates
from prefixpilot.adapters import Conversations, Prepared
from prefixpilot.apis import COMPLETIONS, MESSAGES, RESPONSES
from prefixpilot.errors import ConfigError, InvalidRequestError

LONG = [f"Document {n}: " + f"fact {n} of some length, " * 8 for n in range(6)]


def chat(*texts: str, blocks: list[str] | None = None) -> dict[str, Any]:
    """User and assistant by turns."""
    roles = ("user", "assistant")
    body: dict[str, Any] = {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}
    return body if blocks is None else {**body, "context_blocks": blocks}


def send(
    kept: Conversations, body: dict[str, Any], conversation: str | None = "c", reply: str | None = None
) -> Prepared:
    prepared = kept.prepare(body, conversation_id=conversation)
    kept.sent(prepared, reply)
    kept.check_invariants()
    return prepared


def contents(prepared: Prepared) -> list[str]:
    return [message["content"] for message in prepared.body["messages"]]


def test_a_turn_comes_back_as_it_was_sent() -> None:
    kept = Conversations()
    first = send(kept, chat("Q1", blocks=LONG[:2]))
    second = send(kept, chat("Q1", "A1", "Q2", blocks=[LONG[1], LONG[2]]))
    assert contents(second)[:1] == contents(first)
    assert contents(second)[2] == (f"Please refer to [Doc 2] in the previous conversation.\n\n[Doc 3]\n{LONG[2]}\n\nQ2")
    assert second.labels == ("Doc 2", "Doc 3") and second.restored == 1 and second.unmatched == 0
    third = send(kept, chat("Q1", "A1", "Q2", "A2", "Q3"))
    assert contents(third)[:3] == contents(second) and contents(third)[4] == "Q3"


@pytest.mark.parametrize("label", ["[{name}]", "<{name}>", "## {name}"])
def test_a_label_that_the_user_writes_as_a_heading_is_not_referred_to(label: str) -> None:
    """Whatever the wording of labels is: a reference to it would name two places."""
    kept = Conversations(ContextPilot(PilotConfig(templates=Templates(label=label))))
    heading = label.format(name="Doc 2")
    send(kept, chat("Q1", blocks=LONG[:2]))
    second = send(kept, chat("Q1", "A1", f"{heading}\nis what I mean", blocks=[LONG[0], LONG[1]]))
    newest = contents(second)[2]
    assert f"Please refer to {label.format(name='Doc 1')} in the previous conversation." in newest
    assert LONG[1] in newest, "its label stands twice, so its text stands here"
    third = send(kept, chat(f"{label.format(name='Doc 1')}\nfirst", blocks=[LONG[3]]), "d")
    assert third.labels == ("Doc 2",)


def test_replies_may_be_trimmed() -> None:
    kept = Conversations()
    first = send(kept, chat("Q1", blocks=LONG[:2]), reply="a long answer")
    assert contents(send(kept, chat("Q1", "a long", "Q2")))[:1] == contents(first)


@pytest.mark.parametrize("history", [("Q1 edited", "A1", "Q2"), ("Q2",), ("Q0", "A0", "Q1", "A1", "Q2")])
def test_an_edited_or_cut_history_is_another_branch(history: tuple[str, ...]) -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:2]))
    prepared = send(kept, chat(*history, blocks=LONG[:2]))
    assert contents(prepared)[:-1] == list(history[:-1])
    assert all(text in contents(prepared)[-1] for text in LONG[:2]), "nothing refers to what is not there"
    assert prepared.restored == 0 and prepared.unmatched == len(history) // 2


def test_a_retry_is_the_same_bytes() -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:2]))
    body = chat("Q1", "A1", "Q2", blocks=LONG[1:4])
    assert send(kept, body).body == send(kept, body).body
    assert kept.prepare(body, conversation_id="c").plan is None


def test_equal_messages_with_other_documents_are_told_apart_by_the_reply() -> None:
    kept = Conversations()
    first = send(kept, chat("Q1", blocks=LONG[:1]), reply="A")
    second = send(kept, chat("Q1", blocks=LONG[1:2]), reply="B")
    assert contents(kept.prepare(chat("Q1", "A", "Q2"), conversation_id="c"))[:1] == contents(first)
    assert contents(kept.prepare(chat("Q1", "B", "Q2"), conversation_id="c"))[:1] == contents(second)
    unknown = kept.prepare(chat("Q1", "C", "Q2"), conversation_id="c")
    assert contents(unknown) == ["Q1", "C", "Q2"] and unknown.unmatched == 1


def test_a_reply_may_come_later() -> None:
    kept = Conversations()
    first, second = (send(kept, chat("Q1", blocks=[text])) for text in LONG[:2])
    kept.answered(first, "A")
    kept.answered(second, "B")
    assert contents(kept.prepare(chat("Q1", "A", "Q2"), conversation_id="c"))[:1] == contents(first)
    kept.forget("c")
    kept.answered(first, "A")
    assert len(kept) == 0


def test_other_conversations_and_owners_see_nothing() -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:2]))
    follow_up = chat("Q1", "A1", "Q2")
    assert contents(kept.prepare(follow_up, conversation_id="d")) == ["Q1", "A1", "Q2"]
    assert contents(kept.prepare(follow_up, conversation_id="c", owner="other")) == ["Q1", "A1", "Q2"]
    assert kept.prepare(follow_up).body is follow_up


def test_what_was_only_prepared_is_not_remembered() -> None:
    kept = Conversations()
    kept.prepare(chat("Q1", blocks=LONG[:2]), conversation_id="c")
    assert len(kept) == 0 and kept.pilot.live_requests == 0


def test_new_blocks_in_a_tool_loop_are_refused() -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:1]))
    body = chat("Q1", blocks=LONG[:1])
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    body["messages"] += [called, {"role": "tool", "tool_call_id": "1", "content": "result"}]
    assert LONG[0] in send(kept, body).body["messages"][0]["content"]
    with pytest.raises(InvalidRequestError, match=r"context_blocks\[0\]: is new"):
        kept.prepare({**body, "context_blocks": LONG[1:2]}, conversation_id="c")


def test_a_label_that_a_text_has_is_not_referred_to() -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:1]))
    prepared = send(kept, chat("Q1", "[Doc 1]\nis what I read", "Q2", blocks=LONG[:1]))
    assert LONG[0] in contents(prepared)[2]


def test_histories_that_a_server_keeps_are_not_restored() -> None:
    kept = Conversations()
    body = {"input": "Q1", "previous_response_id": "r", "context_blocks": ["A"]}
    prepared = kept.prepare(body, RESPONSES, "c")
    assert prepared.body["input"] == "[Doc 1]\nA\n\nQ1" and prepared.key is None


def test_every_api() -> None:
    kept = Conversations()
    assert kept.prepare({"prompt": "Q?", "context_blocks": ["A"]}, COMPLETIONS).body == {"prompt": "[Doc 1]\nA\n\nQ?"}
    message = {"messages": [{"role": "user", "content": "Q?"}], "context_blocks": ["A"]}
    assert kept.prepare(message, MESSAGES).body["messages"][0]["content"] == "[Doc 1]\nA\n\nQ?"


def test_bounds() -> None:
    kept = Conversations(max_conversations=2)
    for name in ("a", "b", "c"):
        send(kept, chat("Q1", blocks=LONG[:1]), name)
    assert len(kept) == 2 and contents(kept.prepare(chat("Q1", "A", "Q2"), conversation_id="a"))[0] == "Q1"
    small = Conversations(max_bytes=4000)
    for n in range(50):
        send(small, chat(f"Q{n}", blocks=LONG[:2]), f"c{n}")
    assert 0 < small.size <= 4000
    send(small, chat("Q", blocks=LONG * 10), "too large")
    assert small.size <= 4000
    assert small.forget("too large") is False


def test_a_turn_whose_past_was_forgotten_is_not_remembered() -> None:
    kept = Conversations()
    send(kept, chat("Q1", blocks=LONG[:1]))
    prepared = kept.prepare(chat("Q1", "A1", "Q2", blocks=LONG[:1]), conversation_id="c")
    assert kept.forget("c")
    kept.sent(prepared)
    kept.check_invariants()
    assert len(kept) == 0


@pytest.mark.parametrize("name", ["max_conversations", "max_bytes"])
def test_settings_are_checked(name: str) -> None:
    bounds: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=name):
        Conversations(**bounds)


def test_many_threads() -> None:
    kept = Conversations(ContextPilot())
    failed: list[BaseException] = []

    def talk(name: str) -> None:
        try:
            texts: list[str] = []
            before: list[str] = []
            for turn in range(8):
                texts.append(f"Q{turn}")
                prepared = kept.prepare(chat(*texts, blocks=LONG[turn % 3 : turn % 3 + 3]), conversation_id=name)
                kept.sent(prepared)
                assert contents(prepared)[: len(before)] == before
                before = contents(prepared)
                texts.append(f"A{turn}")
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=talk, args=(f"c{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    kept.check_invariants()
