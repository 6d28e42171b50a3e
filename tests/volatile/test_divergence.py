"""Where two prompts part, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.volatile.prompts import chat

from prefixpilot.apis import MESSAGES
from prefixpilot.apis.base import Prompt
from prefixpilot.volatile.divergence import first_divergence

HEADER = "x-anthropic-billing-header: cc_version=2.1.177.{}; cch={};\nYou code."


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ("You help.\nCurrent time: 2026-11-30 14:03\n", "You help.\nCurrent time: 2026-11-30 14:04\n", "clock"),
        ("Today is Monday, November 30, 2026, 2:03 PM", "Today is Tuesday, December 1, 2026, 9:00 AM", "clock"),
        ("Folder: /repo\nToday: 2026-11-29", "Folder: /repo\nToday: 2026-11-30", "date"),
        ("Today's date is November 3, 2026.", "Today's date is November 4, 2026.", "date"),
        ("Paid until 2026-11-29", "Paid until 2026-11-30", "text"),
        ("Request ID: 5f0c-99ab\nRules.", "Request ID: 77aa-99ab\nRules.", "ids"),
        ("User Memories:\n- likes tea\n", "User Memories:\n- has a dog\n", "memory"),
        ("User Memories:\n- likes tea\n", "User Memories:\n- likes tea\n- has a dog\n", "memory"),
        ("<memories>\nlikes tea\n</memories>", "<memories>\nhas a dog\n</memories>", "memory"),
        (HEADER.format("01c", "36ee5"), HEADER.format("7b4", "0aaa9"), "billing-header"),
        ("One.\nTwo.\n", "Two.\nOne.\n", "order"),
        ("One. Two.", "One.  Two.", "whitespace"),
        ("One. Two.", "One. Three.", "text"),
    ],
)
def test_causes_in_system_text(first: str, second: str, cause: str) -> None:
    found = first_divergence(chat(("system", first), ("user", "a")), chat(("system", second), ("user", "b")))
    assert found is not None
    assert found.cause == cause
    assert found.pointer == ("messages", 0, "content")
    assert first[: found.offset] == second[: found.offset]
    assert first[found.offset : found.offset + 1] != second[found.offset : found.offset + 1]
    assert found.role == "system"


def test_the_place_counts_all_text_in_front() -> None:
    first = chat(("system", "Help."), ("user", ["one", "two"]), body={"model": "m", "tools": [{"name": "a"}]})
    second = chat(("system", "Help."), ("user", ["one", "twist"]), body={"model": "m", "tools": [{"name": "a"}]})
    found = first_divergence(first, second)
    assert found == ("text", ("messages", 1, "content", 1, "text"), 2, len('[{"name":"a"}]') + 5 + 3 + 2, "user")


@pytest.mark.parametrize(
    ("first", "second", "cause", "offset"),
    [
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], "tool-order", 0),
        ([{"name": "a"}, {"name": "b"}], [{"name": "a"}, {"name": "c"}], "tools", 1),
        ([{"name": "a"}], [{"name": "a"}, {"name": "c"}], "tools", 1),
        (None, [{"name": "a"}], "tools", 0),
    ],
)
def test_tools_stand_in_front(first: Any, second: Any, cause: str, offset: int) -> None:
    one, two = (chat(("system", "x"), body={"model": "m", "tools": tools}) for tools in (first, second))
    found = first_divergence(one, two)
    assert found is not None
    assert (found.cause, found.pointer, found.offset) == (cause, ("tools",), offset)


def test_another_model_shares_nothing() -> None:
    found = first_divergence(chat(("user", "a"), body={"model": "x"}), chat(("user", "a"), body={"model": "y"}))
    assert found == ("model", ("model",), 0, 0, "")


def test_parts_that_changed_places() -> None:
    found = first_divergence(chat(("user", ["one", "two"])), chat(("user", ["two", "one"])))
    assert found is not None
    assert (found.cause, found.shared) == ("order", 0)


def test_a_conversation_that_goes_on_does_not_part() -> None:
    first = chat(("system", "Help."), ("user", "a"))
    assert first_divergence(first, chat(("system", "Help."), ("user", "a"), ("assistant", "b"), ("user", "c"))) is None
    assert first_divergence(first, first) is None


def messages(content: Any) -> Prompt:
    prompt = MESSAGES.read({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert prompt is not None
    return prompt


IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}


def test_an_image_is_part_of_the_prompt_and_a_mark_is_not() -> None:
    text = {"type": "text", "text": "What is this?"}
    other = {**IMAGE, "source": {"type": "base64", "data": "BBBB"}}
    found = first_divergence(messages([IMAGE, text]), messages([other, text]))
    assert found is not None
    assert found.cause == "shape"
    marked = {**text, "cache_control": {"type": "ephemeral"}}
    assert first_divergence(messages([IMAGE, text]), messages([IMAGE, marked])) is None
    assert first_divergence(messages("What is this?"), messages([text])) is None


@given(st.text("ab \n:", max_size=30), st.text("ab \n:", max_size=30))
def test_the_place_is_the_first_difference(first: str, second: str) -> None:
    found = first_divergence(chat(("system", first)), chat(("system", second)))
    assert (found is None) == (first == second)
    if found is not None:
        assert first[: found.offset] == second[: found.offset]
        assert first[found.offset : found.offset + 1] != second[found.offset : found.offset + 1]
