"""A proxy that follows a real vLLM: adapters, answers, a crash and another start, names of pages as numbers and bytes.

Run by ``make test-vllm``. One server, ended by force in between and started again on the same ports; tests in order.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.proxy.support import Answer, fetch
from tests.vllm.server import PYTHON_VARIABLE, VllmServer, cached_tokens, make_model

from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache.settings import CacheSettings

PYTHON = os.environ.get(PYTHON_VARIABLE)
PAGE = 32
PAGES = 60
ADAPTER = "tenant"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        PYTHON is None, reason=f"{PYTHON_VARIABLE} names no interpreter with vLLM; run `make test-vllm`"
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("restarted")
    model = make_model(PYTHON, Path(os.environ.get("PREFIXPILOT_VLLM_MODEL", folder / "tiny-llama")))
    lora = folder / "lora"
    script = Path(__file__).with_name("make_lora.py")
    subprocess.run([PYTHON, str(script), str(lora)], check=True, timeout=300, capture_output=True)
    arguments = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={lora}"]
    log = folder / "server.log"
    with VllmServer(PYTHON, model, log, blocks=PAGES + 1, max_tokens=1024, arguments=arguments) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: VllmServer) -> Iterator[RunningProxy]:
    cache = CacheSettings(events=server.events_endpoint, replay=server.replay_endpoint)
    with serve_in_thread(ProxySettings(server.base_url, port=0, cache=cache)) as running:
        yield running


@pytest.fixture(scope="module")
def guessing(server: VllmServer) -> Iterator[RunningProxy]:
    """One that has no events, and no settings of pages and capacity."""
    cache = CacheSettings(token_ids="engine")
    with serve_in_thread(ProxySettings(server.base_url, port=0, cache=cache)) as running:
        yield running


def text(seed: int, count: int = 120) -> str:
    return " ".join(f"{seed}:{number}" for number in range(count))


def post(proxy: RunningProxy, body: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
    """A completion. The machine may be busy."""
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=120)
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def ask(proxy: RunningProxy, prompt: str, model: str = "tiny", **more: Any) -> dict[str, Any]:
    """The engine's answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
    answer = post(proxy, body)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def stats(proxy: RunningProxy) -> dict[str, Any]:
    return dict(fetch(proxy.url, "GET", "/stats").json()["engine_cache"])


def until(proxy: RunningProxy, holds: Callable[[dict[str, Any]], bool], bound_s: float = 60.0) -> dict[str, Any]:
    deadline = time.monotonic() + bound_s
    while not holds(seen := stats(proxy)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)
    return seen


def compared(proxy: RunningProxy, basis: str, requests: int) -> dict[str, Any]:
    """The predictions, once so many have been compared."""
    shown = until(proxy, lambda seen: seen["predictions"].get(basis, {}).get("compared", 0) >= requests)
    return dict(shown["predictions"][basis])


def test_an_adapter_is_a_cache_of_its_own(proxy: RunningProxy) -> None:
    until(proxy, lambda seen: seen["state"] == "EXACT" or not seen["pages"])
    ask(proxy, text(0))
    until(proxy, lambda seen: seen["state"] == "EXACT" and seen["pages"] > 0)
    hits = [cached_tokens(ask(proxy, text(1), model)) for model in ("tiny", "tiny", ADAPTER, ADAPTER, "tiny")]
    assert hits[0] == hits[2] == 0 < hits[1] == hits[3] == hits[4]
    assert compared(proxy, "events", 5)["verdicts"].keys() == {"exact"}


def test_an_engine_that_tells_its_size_is_modelled_with_it(guessing: RunningProxy) -> None:
    shown = until(guessing, lambda seen: seen["capacity_tokens"] is not None)
    assert (shown["state"], shown["page_size"], shown["capacity_tokens"]) == ("UNKNOWN", PAGE, PAGES * PAGE)
    ask(guessing, text(20))
    assert cached_tokens(ask(guessing, text(20))) > 0
    assert compared(guessing, "model", 2)["verdicts"] == {"exact": 2}


def test_after_a_crash_the_picture_is_that_of_the_new_engine(
    server: VllmServer, proxy: RunningProxy, guessing: RunningProxy
) -> None:
    """The new one names pages by bytes, where the old one used numbers."""
    before = compared(proxy, "events", 5)["compared"]
    assert cached_tokens(ask(proxy, text(1))) > 0
    server.kill()
    until(proxy, lambda seen: seen["state"] == "DEGRADED")
    assert post(proxy, {"model": "tiny", "prompt": "x"}).status in (502, 503, 504)
    server.environment["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
    server.start()
    assert [cached_tokens(ask(proxy, text(1))), cached_tokens(ask(proxy, text(2)))] == [0, 0]
    assert cached_tokens(ask(proxy, text(1))) > 0
    shown = until(proxy, lambda seen: seen["state"] == "EXACT" and not seen["waiting"])
    (source,) = shown["sources"]
    assert source["restarts"] == 1 and source["unreadable"] == 0
    assert compared(proxy, "events", before + 4)["verdicts"].keys() == {"exact"}
    assert cached_tokens(ask(guessing, text(20))) == 0


def test_its_own_pages_are_what_is_held(server: VllmServer, proxy: RunningProxy) -> None:
    """More than fits: what the engine evicts is gone from the picture too."""
    for seed in range(30, 40):
        ask(proxy, text(seed))
    shown = until(proxy, lambda seen: not seen["waiting"])
    assert 0 < shown["pages"] <= PAGES
    for seed in range(30, 40):
        ask(proxy, text(seed))
    verdicts = compared(proxy, "events", 20)["verdicts"]
    assert verdicts.keys() == {"exact"}
    assert server.get("/health") is not None
