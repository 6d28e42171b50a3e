"""Hints: what the router is told. Small, without a word of the prompt, and never an error."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from prefixpilot.proxy.wire.headers import RawHeaders
from prefixpilot.ray.hints import MAX_SEGMENTS, Hint, hint_of

CHAT = b"/v1/chat/completions"
HEADERS: RawHeaders = [(b"x-prefixpilot-conversation", b"c1")]


def body(**more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "What is it?"}], **more}).encode()


def test_blocks_count_wherever_they_stand_and_messages_with_them() -> None:
    one = hint_of(CHAT, HEADERS, body(context_blocks=["first text", "second text"]))
    other = hint_of(CHAT, [], body(context_blocks=["second text", "first text"]))
    assert set(one.segments) == set(other.segments)
    assert len(one.segments) == 3
    assert (one.conversation, other.conversation) == ("c1", None)


def test_a_history_shares_all_but_its_newest_words() -> None:
    def history(*words: str) -> bytes:
        return json.dumps({"messages": [{"role": "user", "content": each} for each in words]}).encode()

    first, second = (hint_of(CHAT, [], history(*words)) for words in (("a", "b"), ("a", "b", "c")))
    assert set(first.segments) < set(second.segments)


def test_it_travels_without_the_words_of_the_prompt() -> None:
    hint = hint_of(CHAT, [], body(context_blocks=["a very secret text"]))
    assert b"secret" not in pickle.dumps(hint)
    assert pickle.loads(pickle.dumps(hint)) == hint


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (CHAT, b""),
        (CHAT, b"[]"),
        (CHAT, b"\xff{"),
        (CHAT, b"[" * 100_000),
        (b"/v1/models", b'{"messages": []}'),
    ],
)
def test_what_cannot_be_read_says_nothing(path: bytes, sent: bytes) -> None:
    assert hint_of(path, HEADERS, sent) == Hint("c1")


@pytest.mark.parametrize("blocks", [7, [None], [{"text": 3}], "text"])
def test_blocks_that_the_proxy_refuses_do_not_count(blocks: Any) -> None:
    assert len(hint_of(CHAT, [], body(context_blocks=blocks)).segments) == 1


def test_there_is_a_bound() -> None:
    assert len(hint_of(CHAT, [], body(context_blocks=[str(n) for n in range(900)])).segments) == MAX_SEGMENTS
