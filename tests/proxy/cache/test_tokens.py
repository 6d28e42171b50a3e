"""Token ids asked for beside the requests: in order, few at once, bounded; an engine without the path is left alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from prefixpilot.proxy.cache import tokens as module
from prefixpilot.proxy.cache.tokens import Asked, EngineTokens, Tokenized, TokenQueue, with_token_strings
from prefixpilot.proxy.settings import ProxySettings
from prefixpilot.proxy.wire.upstream import Upstream
from prefixpilot.testing import SimulatedEngine
from prefixpilot.testing.faults import Respond


def asked(name: str, size: int = 0) -> Asked:
    return Asked("chat", json.dumps({"prompt": name, "pad": "x" * size}).encode(), [])


class Held:
    """A source that answers when it is told to."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0
        self.gates: dict[bytes, asyncio.Event] = {}

    async def tokenized(self, asked: Asked) -> Tokenized:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.gates.setdefault(asked.body, asyncio.Event()).wait()
        finally:
            self.under_way -= 1
        return Tokenized("known", asked.body)

    def answer(self, asked: Asked) -> None:
        self.gates.setdefault(asked.body, asyncio.Event()).set()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_answers_come_in_the_order_of_the_questions_and_few_are_under_way() -> None:
    async def run() -> None:
        source, told = Held(), list[bytes]()
        queue = TokenQueue(source, 2)
        questions = [asked(name) for name in "abcd"]
        for question in questions:
            queue.ask(question, lambda got: told.append(got.data))
        source.answer(questions[1])
        await settled()
        assert told == []  # b is there, a is not
        source.answer(questions[0])
        await settled()
        assert told == [questions[0].body, questions[1].body]
        assert source.most == 2
        for question in questions:
            source.answer(question)
        await settled()
        assert told == [question.body for question in questions]
        queue.close()

    asyncio.run(run())


def test_what_does_not_fit_is_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def run() -> None:
        source, told = Held(), list[str]()
        queue = TokenQueue(source, 1)
        for name in "abcd":
            queue.ask(asked(name), lambda got: told.append(got.got))
        assert told == ["dropped", "dropped"]
        queue.ask(asked("e", module.MAX_BODY_BYTES), lambda got: told.append(got.got))
        assert told == ["dropped"] * 3
        queue.close()
        await settled()
        assert told == ["dropped"] * 3
        assert source.under_way == 0

    asyncio.run(run())


def test_room_comes_back() -> None:
    async def run() -> None:
        source, told = Held(), list[str]()
        queue = TokenQueue(source, 1)
        for turn in range(200):
            question = asked(str(turn), 1 << 20)
            source.answer(question)
            queue.ask(question, lambda got: told.append(got.got))
            await settled()
        assert told == ["known"] * 200
        queue.close()

    asyncio.run(run())


def test_a_source_that_breaks_ends_no_queue(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def tokenized(self, asked: Asked) -> Tokenized:
            raise RuntimeError("injected")

    async def run() -> None:
        told = list[str]()
        queue = TokenQueue(Broken(), 1)
        for name in "ab":
            queue.ask(asked(name), lambda got: told.append(got.got))
        await settled()
        assert told == ["failed", "failed"]
        queue.close()

    asyncio.run(run())
    assert "could not be asked for" in caplog.text


# -- the engine itself


@asynccontextmanager
async def tokens_of(
    engine: SimulatedEngine, bound_s: float = 5.0, clock: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[EngineTokens]:
    upstream = Upstream(ProxySettings(engine.base_url))
    await upstream.start()
    try:
        yield EngineTokens(upstream, bound_s, clock)
    finally:
        await upstream.close()


def ask(engine: SimulatedEngine, question: Asked, **more: Any) -> Tokenized:
    async def run() -> Tokenized:
        async with tokens_of(engine, **more) as tokens:
            return await tokens.tokenized(question)

    return asyncio.run(run())


def test_the_question_is_the_request_itself_and_brings_its_credentials() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function"}]}
    headers = [(b"Authorization", b"Bearer k"), (b"X-Trace", b"7"), (b"Content-Length", b"3")]
    with SimulatedEngine(fault=Respond(200, b'{"tokens": [1]}')) as engine:
        got = ask(engine, Asked("chat", json.dumps(body).encode(), headers))
        (request,) = engine.requests
    assert got == Tokenized("known", b'{"tokens": [1]}')
    assert request.path == "/tokenize"
    assert request.json() == {"return_token_strs": True, **body}
    assert request.header("authorization") == "Bearer k"
    assert request.header("x-trace") is None


@pytest.mark.parametrize("body", [b"", b"[]", b"\x1f\x8b\x08", b'"{"'])
def test_a_body_that_is_no_object_is_not_asked_about(body: bytes) -> None:
    with SimulatedEngine() as engine:
        assert ask(engine, Asked("chat", body, [])) == Tokenized("refused")
        assert engine.requests == ()


@pytest.mark.parametrize(("api", "body"), [("responses", b'{"input": 3}'), ("messages", b'{"messages": [{}]}')])
def test_of_other_apis_only_what_is_a_chat_is_asked_about(api: str, body: bytes) -> None:
    with SimulatedEngine() as engine:
        assert ask(engine, Asked(api, body, [])) == Tokenized("refused")
        assert engine.requests == ()


def test_an_engine_without_the_path_is_left_alone_for_a_while() -> None:
    now = 100.0

    async def run(engine: SimulatedEngine) -> None:
        nonlocal now
        async with tokens_of(engine, clock=lambda: now) as tokens:
            for _ in range(3):
                assert await tokens.tokenized(asked("a")) == Tokenized("unsupported")
            assert len(engine.requests) == 1
            now += module.AGAIN_AFTER_S
            await tokens.tokenized(asked("a"))
            assert len(engine.requests) == 2

    with SimulatedEngine(fault=Respond(404, b"")) as engine:
        asyncio.run(run(engine))


def test_an_error_and_a_silence_cost_one_answer() -> None:
    with SimulatedEngine(fault=Respond(500, b"")) as engine:
        assert ask(engine, asked("a")) == Tokenized("refused")
        engine.delay_s = 5.0
        assert ask(engine, asked("a"), bound_s=0.05) == Tokenized("failed")
        engine.delay_s = 0.0
    assert ask(engine, asked("a")) == Tokenized("failed")  # nothing listens there any more


def test_an_answer_that_is_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 10)
    with SimulatedEngine(fault=Respond(200, b'{"tokens": [1, 2, 3]}')) as engine:
        assert ask(engine, asked("a")) == Tokenized("refused")


@pytest.mark.parametrize(
    ("body", "question"),
    [
        (b"{}", b'{"return_token_strs":true}'),
        (b" \n{ }", b'{"return_token_strs":true }'),
        (b'{"a": 1}', b'{"return_token_strs":true,"a": 1}'),
        (b"x", None),
        (b"", None),
    ],
)
def test_one_member_is_put_in_front(body: bytes, question: bytes | None) -> None:
    assert with_token_strings(body) == question
