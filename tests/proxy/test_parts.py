"""The parts of the proxy that are read and bounded on their own."""

from __future__ import annotations

import doctest
import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings, sse
from prefixpilot.proxy.answer import AnswerObserver, Usage
from prefixpilot.proxy.ledger import Ledger, LedgerKey, Turn
from prefixpilot.proxy.reply import HEAD_CHARS, Likeness, ReplyText
from prefixpilot.proxy.report import PlanReport, RecentPlans
from prefixpilot.proxy.sse import EventParser

from .support import Desk, assistant, chat, user


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": "127.0.0.1:8000"}, "engine"),
        ({"engine": "ftp://x"}, "engine"),
        ({"engine": "http://"}, "engine"),
        ({"engine": "http://x:port"}, "engine"),
        ({"engine": "http://x/?a=1"}, "engine"),
        ({"engine": "http://me:secret@x"}, "engine"),
        ({"mode": "auto"}, "mode"),
        ({"port": 65536}, "port"),
        ({"idle_timeout": 0}, "idle_timeout"),
        ({"max_turns": -1}, "max_turns"),
        ({"cache_tokens": 0}, "cache_tokens"),
    ],
)
def test_settings_validate_themselves(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProxySettings(**{"engine": "http://x", **change})
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("engine", ["http://x/a", "http://x/a/", "http://x/a/v1", "http://x/a/v1/"])
def test_the_engines_root(engine: str) -> None:
    assert ProxySettings(engine).engine_root == "http://x/a"


def test_sse_examples() -> None:
    assert doctest.testmod(sse).failed == 0


@given(st.lists(st.text("ab: é", max_size=8), max_size=6), st.lists(st.integers(1, 40), max_size=8), st.booleans())
def test_events_do_not_depend_on_the_pieces(payloads: list[str], cuts: list[int], crlf: bool) -> None:
    end = "\r\n" if crlf else "\n"
    stream = "".join(f": ping{end}data: {p}{end}{end}" for p in payloads).encode()
    parser, found = EventParser(), []
    for cut in [*cuts, len(stream)]:
        found += list(parser.feed(stream[:cut]))
        stream = stream[cut:]
    assert found == [p.encode() for p in payloads]


def test_an_endless_event_is_not_kept() -> None:
    parser = EventParser()
    for _ in range(12):
        assert list(parser.feed(b"data: " + b"x" * (1 << 20))) == []
    assert list(parser.feed(b"\n\ndata: 1\n\n")) == [b"1"]


def events(*documents: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(d).encode() + b"\n\n" for d in documents)


def begun(answer: AnswerObserver) -> bool:
    return answer.started


def delta(**content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content}]}


def test_content_begins_with_the_first_content_not_with_the_role() -> None:
    answer = AnswerObserver(200, "text/event-stream; charset=utf-8")
    answer.feed(events(delta(role="assistant", content=""), delta(content=None)))
    assert not begun(answer)
    answer.feed(events(delta(content="Hel"), delta(content="lo")))
    assert begun(answer)
    assert answer.reply.compare(" Hello ") is Likeness.EQUAL
    answer.feed(events({"choices": [], "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}}))
    assert answer.usage == Usage(7, 0)


@pytest.mark.parametrize("key", ["reasoning_content", "tool_calls", "refusal"])
def test_other_content_counts_too(key: str) -> None:
    answer = AnswerObserver(200, "text/event-stream")
    answer.feed(events(delta(**{key: ["x"]})))
    assert begun(answer)


def test_an_error_event_is_never_content() -> None:
    answer = AnswerObserver(200, "text/event-stream")
    answer.feed(events({"error": {"message": "no"}}, delta(content="x")))
    assert not begun(answer)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", ""])
def test_plain_answers_are_read_at_their_end(encoding: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 3}}).encode()
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body), "": body}[encoding]
    answer = AnswerObserver(200, "application/json", encoding)
    answer.feed(packed[:9])
    answer.feed(packed[9:])
    assert not begun(answer)
    answer.finish()
    assert begun(answer)
    assert answer.usage == Usage(3, None), "unknown is not zero"
    assert answer.reply.compare("Hi") is Likeness.EQUAL


def test_an_encoding_that_cannot_be_read_counts_as_content() -> None:
    for encoding, data in (("br", b"?"), ("gzip", b"no gzip")):
        answer = AnswerObserver(200, "text/event-stream", encoding)
        answer.feed(data)
        assert begun(answer)


def test_replies_are_compared_stripped_and_by_their_head() -> None:
    reply = ReplyText(" An answer. ")
    assert reply.compare("An answer.\n") is Likeness.EQUAL
    assert reply.compare("An ans") is Likeness.HEAD
    assert reply.compare("An answer. And more.") is Likeness.OTHER
    assert reply.compare("") is Likeness.UNKNOWN
    assert ReplyText().compare("x") is Likeness.UNKNOWN
    long = ReplyText("x" * (HEAD_CHARS + 5))
    assert long.compare("x" * (HEAD_CHARS + 5)) is Likeness.EQUAL
    assert long.compare("x" * (HEAD_CHARS - 5)) is Likeness.HEAD


def key(name: str) -> LedgerKey:
    return LedgerKey("t", "", name, "on")


def turn(chain: bytes, parent: Turn | None = None, text: str = "x" * 1000) -> Turn:
    return Turn(chain, parent, text, b"", {}, NEW_CONVERSATION)


def test_the_ledger_is_bounded_in_conversations_turns_and_bytes() -> None:
    ledger = Ledger(max_conversations=5, max_turns=4, max_bytes=1 << 20)
    for c in range(50):
        parent = None
        for t in range(10):
            parent = turn(bytes([t]), parent)
            ledger.record(key(str(c)), parent, ReplyText("ok"))
            ledger.check_invariants()
    assert len(ledger) == 5
    small = Ledger(max_conversations=1000, max_turns=1000, max_bytes=100_000)
    for c in range(100):
        small.record(key(str(c)), turn(b"1"), ReplyText())
        small.check_invariants()
    assert 0 < small.size <= 100_000
    assert 0 < len(small) < 100


def test_a_turn_whose_conversation_was_forgotten_meanwhile_is_not_recorded() -> None:
    ledger = Ledger(1, 10, 1 << 20)
    first = turn(b"1")
    ledger.record(key("a"), first, ReplyText())
    ledger.record(key("b"), turn(b"1"), ReplyText())
    ledger.record(key("a"), turn(b"2", first), ReplyText())
    ledger.check_invariants()
    assert len(ledger) == 1


def test_a_conversation_over_its_turns_keeps_its_beginning() -> None:
    desk = Desk(max_turns=2)
    messages = []
    for n in range(5):
        messages.append(user(f"Question {n}?"))
        sent = desk.ask(chat(messages, [f"Text {n}"]), "c")
        messages.append(assistant())
    assert sent.texts[0] == "[Doc 1]\nText 0\n\nQuestion 0?"
    assert sent.texts[2].startswith("[Doc 2]\nText 1")
    assert sent.texts[4] == "Question 2?"
    assert "Text 4" in sent.newest


def test_recent_plans_are_bounded() -> None:
    plans = RecentPlans(3)
    for n in range(10):
        plans.add(PlanReport(RequestId(str(n)), "on", (), (), None, 0, False, None))
    assert len(plans) == 3
    assert plans.get("0") is None
    assert plans.get("9") is not None
