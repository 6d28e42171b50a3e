"""What engines and providers call the tokens that they reused, read from answers as they go by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.content import Usage

CHOICES = {"choices": [{"index": 0, "delta": {"content": "yes"}}]}
ENDS = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def streamed(*documents: dict[str, Any], api: str = "chat") -> Usage | None:
    observer = AnswerObserver(200, "text/event-stream", api=api)
    observer.without_reply()
    for document in documents:
        observer.feed(b"data: " + json.dumps(document).encode() + b"\n\n")
    observer.finish()
    return observer.usage


def test_llamacpp_tells_in_its_timings_where_nobody_asked_for_the_usage() -> None:
    assert streamed(CHOICES, {**ENDS, "timings": {"cache_n": 30, "prompt_n": 12}}) == Usage(42, 30)


def test_its_usage_counts_more_where_there_is_one() -> None:
    usage = {"usage": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}}
    assert streamed(CHOICES, {**ENDS, **usage, "timings": {"cache_n": 1, "prompt_n": 1}}) == Usage(50, 40)


@pytest.mark.parametrize("timings", [None, [], {"cache_n": 1}, {"cache_n": "1", "prompt_n": 2}, {"cache_n": -1}])
def test_timings_that_say_nothing(timings: Any) -> None:
    assert streamed(CHOICES, {**ENDS, "timings": timings}) is None


def test_deepseek() -> None:
    usage = {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}
    assert streamed(CHOICES, {**ENDS, "usage": usage}) == Usage(100, 64)


def test_anthropic_counts_what_was_read_and_written_apart() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}
    assert streamed({"type": "message_start", "message": {"usage": usage}}, api="messages") == Usage(
        100, 70, written_tokens=20
    )
