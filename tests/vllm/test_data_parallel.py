"""Two data-parallel ranks of a real vLLM: each publishes its own cache, and the proxy keeps them apart.

Run by ``make test-vllm``. One server for both tests; requests name their rank, as a router does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.listening import Remembers
from tests.proxy.support import fetch
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, cached_tokens, make_model
from tests.vllm.test_restart import compared, post, until

from prefixpilot.cache_events import EventBatch
from prefixpilot.engines.base import Continuity
from prefixpilot.engines.endpoints import discover
from prefixpilot.engines.kv_events import KvEventSubscriber
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.proxy.cache.settings import CacheSettings
from prefixpilot.residency.base import reported_tokens
from prefixpilot.residency.pages import PageTable

PYTHON = os.environ.get(PYTHON_VARIABLE)
PAGE = 32
PAGES = 33
RANK = "X-data-parallel-rank"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(PYTHON is None, reason=f"{PYTHON_VARIABLE} is not set; run `make test-vllm`"),
]


class Ranks(Remembers):
    """A page table for each source."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, PageTable] = {}

    def on_batch(self, batch: EventBatch) -> None:
        self.tables.setdefault(batch.source, PageTable()).apply(batch)
        super().on_batch(batch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("ranks")
    model = make_model(PYTHON, Path(os.environ.get("PREFIXPILOT_VLLM_MODEL", folder / "tiny-llama")))
    arguments = ["--data-parallel-size", "2"]
    log = folder / "server.log"
    with VllmServer(PYTHON, model, log, blocks=PAGES + 1, max_tokens=1024, arguments=arguments) as server:
        yield server


def test_each_rank_tells_of_its_own_cache(server: VllmServer) -> None:
    """Prompts of shared parts to ranks by chance: what each will hit is in the table of its own endpoint."""
    sources = discover(server.base_url)
    assert [source.endpoint for source in sources] == [
        server.events_endpoint,
        server.events_endpoint.replace(tail := server.events_endpoint.rpartition(":")[2], str(int(tail) + 1)),
    ]
    chance, seen = random.Random(5), Ranks()
    parts = [[chance.randrange(10, 2000) for _ in range(130)] for _ in range(6)]
    hits = {0: 0, 1: 0}
    with KvEventSubscriber(sources, seen):
        assert seen.wait(lambda seen: {each.source for each in seen.told} == {s.endpoint for s in sources})
        for number in range(40):
            rank = chance.randrange(2)
            prompt = [*chance.choice(parts), *chance.choice(parts), *range(100 + number, 120 + number)]
            table = seen.tables.setdefault(sources[rank].endpoint, PageTable())
            predicted = reported_tokens(table.match(prompt).tokens, len(prompt), PAGE)
            before = len(seen.sequences)
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
            reported = cached_tokens(server.post("/v1/completions", body, {RANK: str(rank)}))
            assert reported == predicted, number
            hits[rank] += reported
            if reported < len(prompt) // PAGE * PAGE:
                assert seen.wait_batches(before + 1)
    assert seen.told[-1].continuity is Continuity.WHOLE
    assert min(hits.values()) > 10 * PAGE
    assert all(0 < len(table) <= PAGES for table in seen.tables.values())


def test_the_proxy_knows_which_rank_had_it(server: VllmServer) -> None:
    cache = CacheSettings(events=server.events_endpoint, replay=server.replay_endpoint, ranks=2)
    with serve_in_thread(ProxySettings(server.base_url, port=0, cache=cache)) as proxy:
        until(proxy, lambda seen: seen["state"] == "EXACT")
        text = " ".join(f"77:{number}" for number in range(120))
        cached = []
        for number, rank in enumerate("0011"):
            body = {"model": "tiny", "prompt": text, "max_tokens": 1, "temperature": 0}
            answer = post(proxy, body, {RANK: rank, "X-Request-Id": f"r{number}"})
            cached.append(cached_tokens(answer.json()))
            compared(proxy, "events", number + 1)
        assert cached[0] == cached[2] == 0 < cached[1] == cached[3]
        assert compared(proxy, "events", 4)["verdicts"] == {"exact": 4}
        assert fetch(proxy.url, "GET", "/readyz").status == 200
