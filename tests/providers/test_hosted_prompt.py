"""Requests as blocks of a hosted cache: what is the same prompt, and where marks stand."""

from __future__ import annotations

from typing import Any

import pytest

from prefixpilot.apis import API_OF_NAME
from prefixpilot.providers.hosted_cache import HostedBlock
from prefixpilot.providers.hosted_prompt import PIECE_CHARS, hosted_blocks
from prefixpilot.providers.limits import builtin_limits

MARK = {"type": "ephemeral"}


def blocks(api: str, model: str, **body: Any) -> tuple[HostedBlock, ...]:
    provider = "anthropic" if api == "messages" else "openai"
    limits, prompt = builtin_limits().of(provider, model), API_OF_NAME[api].read({"model": model, **body})
    assert limits is not None and prompt is not None
    return hosted_blocks(prompt, limits, len)


def messages(*content: Any, **more: Any) -> tuple[HostedBlock, ...]:
    return blocks("messages", "claude-opus-4-1", messages=[{"role": "user", "content": c} for c in content], **more)


def chat(*content: Any, model: str = "gpt-4o", **more: Any) -> tuple[HostedBlock, ...]:
    return blocks("chat", model, messages=[{"role": "user", "content": c} for c in content], **more)


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def marks(found: tuple[HostedBlock, ...]) -> list[str | None]:
    return [block.mark for block in found]


def test_a_string_is_one_text_part_and_marks_are_no_content() -> None:
    plain = messages("Hi", system="S")
    assert [block.tokens for block in plain] == [1, 2]
    parts = messages([part("Hi", cache_control=MARK)], system=[part("S")])
    assert [b.key for b in parts] == [b.key for b in plain]
    assert (marks(plain), marks(parts)) == ([None, None], [None, "5m"])


def test_tools_come_first_and_count_whole() -> None:
    tool = {"name": "find", "input_schema": {"type": "object"}, "cache_control": {**MARK, "ttl": "1h"}}
    found = messages("Hi", tools=[tool], system="S")
    assert marks(found) == ["1h", None, None]
    assert found[0].tokens > 20


def test_a_mark_inside_of_a_part_stands_at_its_end() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [part("a", cache_control=MARK), part("b")]}
    assert marks(messages([result, part("c")])) == ["5m", None]


@pytest.mark.parametrize(
    ("control", "mark"), [(MARK, "5m"), ({**MARK, "ttl": "1h"}, "1h"), ({**MARK, "ttl": "9d"}, "5m")]
)
def test_automatic_caching_marks_the_last_block(control: Any, mark: str) -> None:
    assert marks(messages("a", "b", cache_control=control)) == [None, mark]


def test_roles_tell_blocks_apart() -> None:
    said = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Hi"}]
    one, other = blocks("messages", "claude-opus-4-1", messages=said)
    assert one.key != other.key


def test_long_texts_are_pieces_and_part_where_they_differ() -> None:
    text = "x" * (3 * PIECE_CHARS + 7)
    one, other = chat(text), chat(text[: 2 * PIECE_CHARS] + "y" + text[2 * PIECE_CHARS + 1 :])
    assert [block.tokens for block in one] == [0, PIECE_CHARS, PIECE_CHARS, PIECE_CHARS, 7]
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, True, False, True]
    assert sum(block.tokens for block in chat("", "ab")) == 2


def test_what_is_no_text_is_content_too() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:a"}}
    assert chat([part("a"), image])[0].key != chat([part("a")])[0].key


def test_openai_sets_a_mark_at_the_newest_message_itself_from_gpt_5_6_on() -> None:
    assert marks(chat("a", "b", model="gpt-5.6")) == [None, None, None, "30m"]
    explicit = [part("a", prompt_cache_breakpoint={"mode": "explicit"})]
    assert marks(chat(explicit, "b", model="gpt-5.6")) == [None, "30m", None, "30m"]
    only = {"prompt_cache_options": {"mode": "explicit"}}
    assert marks(chat(explicit, "b", model="gpt-5.6", **only)) == [None, "30m", None, None]
    assert marks(chat(explicit, "b")) == [None] * 4, "older models have no marks"


def test_a_longer_retention_holds_for_the_whole_request() -> None:
    assert set(marks(chat("a", "b", model="gpt-5", prompt_cache_retention="24h"))) == {"24h"}
    assert set(marks(chat("a", "b", model="gpt-5", prompt_cache_retention="9y"))) == {"in_memory"}
