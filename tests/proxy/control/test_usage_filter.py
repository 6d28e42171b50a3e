"""The usage event that the client did not ask for, and nothing else, is taken out of a stream."""

from __future__ import annotations

import doctest
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.proxy.wire import usage
from prefixpilot.proxy.wire.sse import MAX_EVENT_BYTES
from prefixpilot.proxy.wire.usage import UsageFilter

USAGE = json.dumps({"id": "1", "choices": [], "usage": {"prompt_tokens": 3}})
EVENTS = (
    '{"choices": [{"delta": {"content": "a"}}], "usage": null}',
    '{"choices": [{"delta": {"content": "\\"usage\\": {}"}}]}',
    '{"choices": []}',
    '{"choices": [], "usage": null}',
    '{"error": "broken", "usage": {}}',
    "[DONE]",
    "no JSON, usage",
)


def test_examples() -> None:
    assert doctest.testmod(usage).failed == 0


def through(stream: bytes, cuts: list[int]) -> bytes:
    out, passing = b"", UsageFilter()
    edges = sorted({0, *cuts, len(stream)})
    for start, end in itertools.pairwise(edges):
        out += passing.feed(stream[start:end])
    return out + passing.finish()


@given(st.data())
def test_only_the_usage_event_goes_however_the_bytes_come(data: st.DataObject) -> None:
    newline = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = data.draw(st.lists(st.sampled_from([*EVENTS, USAGE]), max_size=6))
    comment = data.draw(st.sampled_from(["", f": ping{newline}", f"event: x{newline}"]))
    texts = [f"{comment}data: {event}{newline}{newline}" for event in events]
    stream = "".join(texts).encode()
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    expected = "".join(text for text, event in zip(texts, events, strict=True) if event != USAGE).encode()
    assert through(stream, cuts) == expected


@pytest.mark.parametrize("size", [MAX_EVENT_BYTES + 1, 3 * MAX_EVENT_BYTES])
def test_an_event_too_long_to_hold_passes(size: int) -> None:
    stream = b'data: {"choices": [], "usage": {}, "x": "' + b"a" * size + b'"}\n\n'
    passing = UsageFilter()
    out = b"".join(passing.feed(stream[i : i + 65536]) for i in range(0, len(stream), 65536)) + passing.finish()
    assert out == stream


def test_a_stream_that_ends_without_a_blank_line() -> None:
    assert through(f"data: {EVENTS[0]}\n\ndata: {USAGE}".encode(), []) == f"data: {EVENTS[0]}\n\n".encode()
    assert through(b"data: [DONE]", []) == b"data: [DONE]"
