"""The simulated engine's prompt and tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.testing.chat_wire import BadChatError, read_chat, segments, tokenize


@given(st.text())
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


@given(st.text(), st.text())
def test_a_prefix_shares_all_but_its_last_token(head: str, tail: str) -> None:
    shared = tokenize(head)[:-1]
    assert tokenize(head + tail)[: len(shared)] == shared


def test_the_template_holds_tools_roles_parts_and_calls() -> None:
    chat = read_chat(
        {
            "tools": [{"name": "look"}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            ],
        }
    )
    assert chat.prompt == (
        '<|tools|>\n[{"name": "look"}]\n<|system|>\nBe brief.\n<|user|>\nab\n'
        '<|assistant|>\n[{"id": "1"}]\n<|assistant|>\n'
    )


def test_a_salt_or_a_model_isolates_equal_prompts() -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "same"}]}
    bodies = [body, {**body, "cache_salt": "x"}, {**body, "model": "other"}]
    assert len({tuple(segments(read_chat(b))) for b in bodies}) == 3
    assert len({read_chat(b).prompt for b in bodies}) == 1


@pytest.mark.parametrize(
    "messages", [None, [], "text", ["text"], [{"content": "no role"}], [{"role": "user", "content": 1}]]
)
def test_a_body_without_proper_messages_is_refused(messages: object) -> None:
    with pytest.raises(BadChatError, match="messages"):
        read_chat({"messages": messages})
