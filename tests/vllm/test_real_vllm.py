"""A real vLLM 0.32 on the CPU: what it hits, what it publishes, what it replays, and whom its plugin reports.

Run by ``make test-vllm``; skipped without the interpreter that has vLLM. One server for all tests, with a cache of 33
pages of 32 tokens, so that eviction really happens; each test takes texts of its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.listening import Mirror
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, cached_tokens, make_model

from prefixpilot.bench.quality.base import Bounds
from prefixpilot.bench.quality.cases import Messages
from prefixpilot.bench.quality.engines import Vllm, opened
from prefixpilot.cache_events import CacheCleared, PagesRemoved, PagesStored
from prefixpilot.engines.base import Continuity
from prefixpilot.engines.endpoints import EventEndpoint, discover
from prefixpilot.engines.kv_events import KvEventSubscriber
from prefixpilot.engines.vllm_plugin import CONNECTOR, URL_VARIABLE
from prefixpilot.testing import SimulatedEngine

PYTHON = os.environ.get(PYTHON_VARIABLE)
PAGE = 32
PAGES = 33

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        PYTHON is None, reason=f"{PYTHON_VARIABLE} names no interpreter with vLLM; run `make test-vllm`"
    ),
]


@pytest.fixture(scope="module")
def proxy() -> Iterator[SimulatedEngine]:
    """Takes the notices of eviction."""
    with SimulatedEngine() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, proxy: SimulatedEngine) -> Iterator[VllmServer]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("vllm")
    model = make_model(PYTHON, Path(os.environ.get("PREFIXPILOT_VLLM_MODEL", folder / "tiny-llama")))
    connector = f'{{"kv_connector": "{CONNECTOR}", "kv_role": "kv_both"}}'
    with VllmServer(
        PYTHON,
        model,
        folder / "server.log",
        blocks=PAGES + 1,
        max_tokens=1024,
        arguments=["--kv-transfer-config", connector],
        environment={URL_VARIABLE: proxy.base_url},
    ) as server:
        yield server


def ids(seed: int, count: int) -> list[int]:
    """Token ids of a prompt: random ones of the vocabulary, special ones left out."""
    chance = random.Random(seed)
    return [chance.randrange(10, 2000) for _ in range(count)]


def figure(server: VllmServer, name: str) -> float:
    """The sum of one of vLLM's own metrics."""
    lines = str(server.get("/metrics")).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def reachable(tokens: int) -> int:
    """Tokens of a prompt that any cache could hold: whole pages, and never its last token."""
    return (tokens - 1) // PAGE * PAGE


def held(mirror: Mirror, prompt: list[int]) -> int:
    """Tokens of its longest prefix that the mirror knows to be in the engine's pages."""
    return mirror.table.match(prompt).tokens


@pytest.fixture
def mirror(server: VllmServer) -> Iterator[Mirror]:
    mirror = Mirror()
    with KvEventSubscriber(discover(server.base_url), mirror):
        assert mirror.wait_continuity(Continuity.WHOLE)
        yield mirror


def test_it_says_where_it_publishes(server: VllmServer) -> None:
    (source,) = discover(server.base_url + "/v1")
    assert source == EventEndpoint(server.events_endpoint, server.replay_endpoint, "kv-events", host="127.0.0.1")


def test_hits_by_its_own_metrics(server: VllmServer) -> None:
    prompt = ids(1, 300)
    queries, hits = (figure(server, f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
    assert cached_tokens(server.complete(prompt)) == 0
    assert cached_tokens(server.complete(prompt)) == reachable(300)
    assert figure(server, "vllm:prefix_cache_queries_total") - queries == 600
    assert figure(server, "vllm:prefix_cache_hits_total") - hits == reachable(300)


def test_events_tell_the_pages_of_a_prompt(server: VllmServer, mirror: Mirror) -> None:
    prompt = ids(2, 100)
    before = len(mirror.batches)
    server.complete(prompt, cache_salt="tenant-a")
    assert mirror.wait_batches(before + 1)
    stored = [e for batch in mirror.batches[before:] for e in batch.events if isinstance(e, PagesStored)]
    assert [e.token_ids for e in stored] == [tuple(prompt[:96])]
    assert stored[0].extra_keys == (("tenant-a",), None, None)
    assert (stored[0].parent, stored[0].page_size) == (None, PAGE)


def test_a_late_subscriber_is_told_all_that_was(server: VllmServer) -> None:
    """Another one, after the first has left the port to which the engine connects."""
    first, late = Mirror(), Mirror()
    server.complete(ids(3, 100))
    for listener in (first, late):
        with KvEventSubscriber(discover(server.base_url), listener):
            assert listener.wait_continuity(Continuity.WHOLE)
    assert late.sequences == list(range(len(late.batches)))
    assert first.batches
    assert [b.events for b in late.batches][: len(first.batches)] == [b.events for b in first.batches]


def test_the_mirror_knows_what_each_request_will_hit(server: VllmServer, mirror: Mirror) -> None:
    """Prompts of shared parts in a cache of a few of them: prediction against report, to the page, one by one."""
    chance = random.Random(5)
    parts = [ids(100 + i, 130) for i in range(8)]
    weights = [1 / (i + 1) for i in range(len(parts))]
    wrong: list[tuple[int, int]] = []
    for number in range(120):
        first, second = chance.choices(parts, weights, k=2)
        prompt = [*ids(99, 40), *first, *second, *ids(1000 + number, 20)]
        predicted = min(held(mirror, prompt), reachable(len(prompt)))
        before = len(mirror.sequences)
        reported = cached_tokens(server.complete(prompt))
        if predicted != reported:
            wrong.append((predicted, reported))
        if len(prompt) // PAGE * PAGE > reported:
            assert mirror.wait_batches(before + 1)
    assert wrong == []
    assert sum(isinstance(e, PagesRemoved) for batch in mirror.batches for e in batch.events) > 100
    mirror.table.check_invariants()


def test_it_says_how_likely_a_given_answer_is(server: VllmServer) -> None:
    """As it says itself of a prompt that it echoes: the likelihoods of its last tokens."""
    asked: Messages = ({"role": "user", "content": "Which of the mills by the river has more stones?"},)
    with opened(server.base_url, None) as engine:
        assert isinstance(engine, Vllm)
        scored = engine.measure(asked, "the old mill", Bounds(6, 6))
        before = engine._tokens({"messages": list(asked), "add_generation_prompt": True})
        wanted = engine._tokens({"prompt": "the old mill", "add_special_tokens": False})[:6]
        told = engine._completed([*before, *wanted], 1, echo=True, logprobs=1)["logprobs"]["token_logprobs"]
    assert (scored.tokens, scored.prompt_tokens) == (len(wanted), len(before)) and wanted
    assert scored.log_likelihood == pytest.approx(sum(told[len(before) : len(before) + len(wanted)]), abs=0.01)


def test_a_reset_is_told_with_the_next_request(server: VllmServer, mirror: Mirror) -> None:
    server.complete(ids(6, 100))
    server.post("/reset_prefix_cache", {})
    server.complete(ids(7, 100))
    assert mirror.wait(lambda m: any(isinstance(e, CacheCleared) for batch in m.batches for e in batch.events))
    assert held(mirror, ids(6, 100)) == 0
    assert held(mirror, ids(7, 100)) == 96


def test_the_plugin_reports_whose_pages_went(server: VllmServer, proxy: SimulatedEngine) -> None:
    first = str(server.complete(ids(8, 600))["id"])
    for number in range(3):
        server.complete(ids(20 + number, 600))
    assert wait_for_notice(proxy, first)
    last = str(server.complete(ids(22, 600))["id"])
    assert not any(last in each for each in told(proxy))


def told(proxy: SimulatedEngine) -> list[str]:
    return [each for request in proxy.requests if request.path == "/evict" for each in request.json()["request_ids"]]


def wait_for_notice(proxy: SimulatedEngine, request_id: str) -> bool:
    """Whether a notice names the request; vLLM puts a number and a random suffix behind the id that clients see."""
    for _ in range(50):
        if any(each.startswith(request_id) for each in told(proxy)):
            return True
        proxy.wait_for_requests(len(proxy.requests) + 1, 0.2)
    return False
