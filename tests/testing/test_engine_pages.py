"""The simulated engine with a paged cache: what it reports, what it publishes, and its paths about the cache."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.engines.listening import Remembers

from prefixpilot.cache_events import CacheCleared, PagesRemoved, PagesStored
from prefixpilot.engines.endpoints import discover
from prefixpilot.engines.kv_events import KvEventSubscriber
from prefixpilot.testing import BreakOff, SimulatedEngine
from prefixpilot.testing.engine_pages import token_ids
from prefixpilot.testing.event_publisher import EventPublisher
from prefixpilot.testing.page_pool import PagePool

SIZE = 8


def ask(engine: SimulatedEngine, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(engine.base_url).netloc, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        data = answer.read()
        is_json = (answer.getheader("content-type") or "").startswith("application/json")
        return answer.status, json.loads(data) if is_json else data
    finally:
        connection.close()


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **more}


def cached(engine: SimulatedEngine, body: dict[str, Any]) -> int:
    status, answer = ask(engine, "/v1/chat/completions", body)
    assert status == 200
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def words(first: int, count: int = 40) -> str:
    return " ".join(str(first + i) for i in range(count))


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    with SimulatedEngine(pages=PagePool(16, SIZE), events=EventPublisher()) as engine:
        yield engine


def test_hits_are_whole_pages_of_the_pool(engine: SimulatedEngine) -> None:
    assert engine.pages is not None
    body = chat(words(1000))
    assert cached(engine, body) == 0
    hit = cached(engine, body)
    assert hit > 0
    assert hit % SIZE == 0
    assert cached(engine, {**body, "cache_salt": "tenant"}) == 0
    engine.pages.pool.check_invariants()
    assert engine.pages.pool.free_pages == 16


def test_what_happens_to_the_pages_is_published(engine: SimulatedEngine) -> None:
    seen = Remembers()
    (source,) = discover(engine.base_url)
    with KvEventSubscriber([source], seen):
        for start in (1000, 2000, 3000, 4000):
            cached(engine, chat(words(start)))
        assert ask(engine, "/reset_prefix_cache") == (200, {})
        cached(engine, chat(words(1000)))
        assert seen.wait(lambda s: any(isinstance(e, CacheCleared) for b in s.batches for e in b.events))
    told = [event for batch in seen.batches for event in batch.events]
    first = told[0]
    assert isinstance(first, PagesStored)
    _, tokens = ask(engine, "/tokenize", chat(words(1000)))
    assert list(first.token_ids) == tokens["tokens"][: len(first.token_ids)]
    assert len(first.token_ids) == tokens["count"] // SIZE * SIZE
    assert any(isinstance(event, PagesRemoved) for event in told)


def test_tokenize_speaks_as_vllm_does(engine: SimulatedEngine) -> None:
    engine.context_window = 4096
    status, said = ask(engine, "/tokenize", {"model": "simulated", "prompt": "The conveyor belt"})
    assert (status, said) == (
        200,
        {"count": 4, "max_model_len": 4096, "tokens": token_ids("The conveyor belt"), "token_strs": None},
    )
    _, with_head = ask(engine, "/tokenize", chat("hello"))
    _, without = ask(engine, "/tokenize", {**chat("hello"), "add_generation_prompt": False})
    assert with_head["tokens"] == token_ids("<|user|>\nhello\n<|assistant|>\n")
    assert without["tokens"] == token_ids("<|user|>\nhello\n")


@pytest.mark.parametrize("body", [{}, {"messages": []}, [1], {"messages": [3]}])
def test_tokenize_refuses_what_is_no_prompt(engine: SimulatedEngine, body: Any) -> None:
    status, said = ask(engine, "/tokenize", body)
    assert status == 400
    assert said["error"]["code"] == 400


def test_a_prompt_that_does_not_fit_is_refused(engine: SimulatedEngine) -> None:
    status, said = ask(engine, "/v1/chat/completions", chat(words(1000, 500)))
    assert status == 400
    assert "KV cache" in said["error"]["message"]


def test_pages_of_an_answer_that_breaks_off_are_freed(engine: SimulatedEngine) -> None:
    assert engine.pages is not None
    engine.fault = BreakOff(1)
    with pytest.raises(http.client.IncompleteRead):
        ask(engine, "/v1/chat/completions", chat(words(1), stream=True, max_tokens=50))
    engine.fault = None
    cached(engine, chat(words(1)))
    assert engine.pages.pool.free_pages == 16


def test_a_stream_frees_its_pages_before_its_last_event(engine: SimulatedEngine) -> None:
    assert engine.pages is not None
    reply = "".join(f" r{i}" for i in range(20))
    engine.reply = lambda body: reply
    body = {"model": "simulated", "prompt": words(1), "stream": True, "max_tokens": 50}
    status, stream = ask(engine, "/v1/completions", body)
    assert status == 200
    assert stream.endswith(b"data: [DONE]\n\n")
    assert engine.pages.pool.free_pages == 16
    _, said = ask(engine, "/v1/completions", {**body, "stream": False, "prompt": f"{words(1)}{reply} more"})
    computed = len(token_ids(words(1) + reply)) - 1
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == computed // SIZE * SIZE


def test_requests_that_run_together_wait_for_pages() -> None:
    with SimulatedEngine(pages=PagePool(16, SIZE), chunk_delay_s=0.01) as engine:
        done: list[int] = []
        bodies = [chat(words(first, 45), stream=True, max_tokens=5) for first in (1000, 2000, 3000)]
        threads = [
            threading.Thread(target=lambda body=body: done.append(ask(engine, "/v1/chat/completions", body)[0]))
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert done == [200, 200, 200]


def test_without_events_there_are_no_sources_and_without_pages_no_paths() -> None:
    with SimulatedEngine(pages=PagePool(16, SIZE)) as engine:
        assert discover(engine.base_url) == ()
    with SimulatedEngine() as engine:
        assert ask(engine, "/tokenize", {"prompt": "x"})[1]["path"] == "/tokenize"
