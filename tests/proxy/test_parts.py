"""The parts of the proxy that are read and bounded on their own."""

from __future__ import annotations

import doctest
import gzip
import json
import zlib
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.conversation import NEW_CONVERSATION
from prefixpilot.core import ContextBlock, RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.proxy import ProxySettings
from prefixpilot.proxy.answer import AnswerObserver
from prefixpilot.proxy.content import Usage
from prefixpilot.proxy.memory.ledger import Ledger
from prefixpilot.proxy.memory.records import LedgerKey, Turn
from prefixpilot.proxy.memory.reply import HEAD_CHARS, Likeness, Reply, Said
from prefixpilot.proxy.report import PlanReport, RecentPlans, plan_header
from prefixpilot.proxy.wire import sse
from prefixpilot.proxy.wire.sse import EventParser

from .support import Desk, assistant, chat, said_in, user


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


@given(
    st.lists(st.text("ab: é", max_size=8), max_size=6),
    st.lists(st.integers(1, 40), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_events_do_not_depend_on_the_pieces(payloads: list[str], cuts: list[int], end: str, complete: bool) -> None:
    stream = "".join(f": ping{end}data: {p}{end}{end}" for p in payloads).encode()
    stream = stream if complete else stream.removesuffix(2 * end.encode())
    parser, found = EventParser(), []
    for cut in [*cuts, len(stream)]:
        found += list(parser.feed(stream[:cut]))
        stream = stream[cut:]
    assert [*found, *parser.finish()] == [p.encode() for p in payloads]


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
    assert answer.reply.compare(Said(" Hello ")) is Likeness.EQUAL
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
    assert answer.reply.compare(Said("Hi")) is Likeness.EQUAL


ANSWER: dict[str, Any] = {"choices": [{"index": 0, "message": {"content": "Hi"}}]}


@pytest.mark.parametrize(("document", "status"), [({**ANSWER, "error": None}, 200), (ANSWER, 201), (ANSWER, 206)])
def test_an_answer_that_is_none_of_an_error_is_learnt(document: Any, status: int) -> None:
    answer = AnswerObserver(status, "application/json")
    answer.feed(json.dumps(document).encode())
    answer.finish()
    assert answer.started
    assert answer.whole


@pytest.mark.parametrize("status", [302, 400, 500])
def test_another_status_is_never_learnt(status: int) -> None:
    answer = AnswerObserver(status, "application/json")
    answer.feed(json.dumps(ANSWER).encode())
    answer.finish()
    assert not answer.started


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("content_type", ["text/event-stream", ""])
def test_a_stream_without_a_type_or_a_last_blank_line_is_learnt(end: str, content_type: str) -> None:
    answer = AnswerObserver(200, content_type)
    for piece in ("\n" if not content_type else "", f": ping{end}", f"{end}data: ", json.dumps(delta(content="ok"))):
        answer.feed(piece.encode())
        assert not answer.whole
    assert not begun(answer)
    answer.finish()
    assert begun(answer)
    assert answer.reply.compare(Said("ok")) is Likeness.EQUAL


def test_an_answer_of_lines_is_learnt_with_its_first_line_and_never_held() -> None:
    answer = AnswerObserver(200, "application/x-ndjson; charset=utf-8")
    answer.feed(json.dumps(delta(content="ok")).encode()[:9])
    assert (begun(answer), answer.whole) == (False, False)
    answer.feed(json.dumps(delta(content="ok")).encode()[9:] + b"\n")
    assert (begun(answer), answer.whole) == (True, False)


def test_a_document_without_a_type_is_held_like_one() -> None:
    answer, held = AnswerObserver(200, ""), []
    for piece in (b" ", json.dumps(ANSWER).encode()):
        answer.feed(piece)
        held.append(answer.whole)
    answer.finish()
    assert held == [False, True]
    assert begun(answer)


def test_tool_calls_of_a_stream_are_joined() -> None:
    answer = AnswerObserver(200, "text/event-stream")
    pieces: list[dict[str, Any]] = [
        {"id": "c1", "function": {"name": "f", "arguments": '{"x":'}},
        {"function": {"arguments": " 1}"}},
    ]
    answer.feed(events(*(delta(tool_calls=[{"index": 0, **piece}]) for piece in pieces)))
    call = {"id": "other", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert answer.reply.compare(said_in({"tool_calls": [call]})) is Likeness.HEAD


def test_an_encoding_that_cannot_be_read_counts_as_content() -> None:
    for encoding, data in (("br", b"?"), ("gzip", b"no gzip")):
        answer = AnswerObserver(200, "text/event-stream", encoding)
        answer.feed(data)
        assert begun(answer)


def test_replies_are_compared_stripped_and_by_their_head() -> None:
    reply = Reply(" An answer. ")
    assert reply.compare(Said("An answer.\n")) is Likeness.EQUAL
    assert reply.compare(Said("An ans")) is Likeness.HEAD
    assert reply.compare(Said("An answer. And more.")) is Likeness.OTHER
    assert reply.compare(Said("")) is Likeness.UNKNOWN
    assert Reply().compare(Said("x")) is Likeness.UNKNOWN
    long = Reply("x" * (HEAD_CHARS + 5))
    assert long.compare(Said("x" * (HEAD_CHARS + 5))) is Likeness.EQUAL
    assert long.compare(Said("x" * (HEAD_CHARS - 5))) is Likeness.HEAD


def key(name: str) -> LedgerKey:
    return LedgerKey("t", "", name, "on")


def turn(chain: bytes, parent: Turn | None = None, text: str = "x" * 1000) -> Turn:
    return Turn(chain, b"", parent, text, b"", {}, NEW_CONVERSATION)


def test_the_ledger_is_bounded_in_conversations_turns_and_bytes() -> None:
    ledger = Ledger(max_conversations=5, max_turns=4, max_bytes=1 << 20)
    for c in range(50):
        parent = None
        for t in range(10):
            parent = turn(bytes([t]), parent)
            ledger.record(key(str(c)), parent, Reply("ok"))
            ledger.check_invariants()
    assert len(ledger) == 5
    small = Ledger(max_conversations=1000, max_turns=1000, max_bytes=100_000)
    for c in range(100):
        small.record(key(str(c)), turn(b"1"), Reply())
        small.check_invariants()
    assert 0 < small.size <= 100_000
    assert 0 < len(small) < 100


def test_a_turn_whose_conversation_was_forgotten_meanwhile_is_not_recorded() -> None:
    ledger = Ledger(1, 10, 1 << 20)
    first = turn(b"1")
    ledger.record(key("a"), first, Reply())
    ledger.record(key("b"), turn(b"1"), Reply())
    ledger.record(key("a"), turn(b"2", first), Reply())
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


def report(name: str, *ids: str) -> PlanReport:
    blocks = tuple(ContextBlock("A", i) for i in ids)
    return PlanReport(RequestId(name), "on", blocks, ["Doc 1"] * len(ids), None, 0, False, None)


def test_recent_plans_are_bounded() -> None:
    plans = RecentPlans(3, 1 << 20)
    for n in range(10):
        plans.add(report(str(n)))
    assert len(plans) == 3
    assert plans.get("0") is None
    assert plans.get("9") is not None


def test_recent_plans_are_bounded_in_bytes() -> None:
    plans = RecentPlans(1000, 100_000)
    for n in range(30):
        plans.add(report(str(n % 7), "i" * 20_000))
        assert plans.size <= 100_000
    assert len(plans) == 4
    plans.add(report("huge", "i" * 200_000))
    assert plans.get("huge") is None
    assert (len(plans), plans.size) == (0, 0)


def test_labels_are_where_the_header_says_whatever_the_id() -> None:
    header = json.loads(plan_header(report("\xe9/?", *("i" for _ in range(900)))))
    assert unquote(header["labels_at"].removeprefix("/plans/"), encoding="latin-1") == "\xe9/?"
