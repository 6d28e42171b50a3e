"""The demo: its data, its figures, and a run through the real proxy."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import pytest

from prefixpilot.bench.demo import Endpoint, load_requests, run_demo
from prefixpilot.bench.demo_report import ArmResult, DemoResult, Machine, RequestRow, installed_versions, this_machine
from prefixpilot.bench.streaming_client import stream_chat
from prefixpilot.errors import EngineError
from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.testing import BreakOff, ErrorEvent, Respond, SimulatedEngine


def data() -> dict[str, Any]:
    text = resources.files("prefixpilot.bench").joinpath("demo_data.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def bm25_top(question: str, documents: dict[str, list[str]], k: int, k1: float = 1.2, b: float = 0.75) -> list[str]:
    frequency = Counter(word for document in documents.values() for word in set(document))
    mean = sum(map(len, documents.values())) / len(documents)

    def score(document: list[str]) -> float:
        counts, norm = Counter(document), k1 * (1 - b + b * len(document) / mean)
        return sum(
            math.log(1 + (len(documents) - frequency[w] + 0.5) / (frequency[w] + 0.5))
            * (counts[w] * (k1 + 1) / (counts[w] + norm))
            for w in sorted(set(words(question)) & set(counts))
        )

    return sorted(documents, key=lambda name: (-score(documents[name]), name))[:k]


def test_the_order_of_documents_is_the_retrievers() -> None:
    documents = {d["id"]: words(f"{d['title']} {d['text']}") for d in data()["documents"]}
    for request in data()["requests"]:
        assert request["documents"] == bm25_top(request["question"], documents, k=3), request["question"]


def test_the_workload_has_single_turns_and_conversations_whose_turns_are_in_order() -> None:
    turns: dict[str, list[int]] = {}
    for request in load_requests():
        turns.setdefault(request.session, []).append(request.turn)
    assert all(seen == list(range(len(seen))) for seen in turns.values())
    lengths = sorted(len(seen) for seen in turns.values())
    assert lengths.count(1) >= 10 and lengths[-3:] == [2, 3, 3]


@contextmanager
def simulated_endpoint() -> Iterator[Endpoint]:
    with (
        SimulatedEngine() as engine,
        serve_in_thread(ProxySettings(engine=engine.base_url, port=0)) as proxy,
    ):
        yield Endpoint(proxy.url, "simulated")


def test_mode_on_prefills_less_by_the_engines_own_count() -> None:
    seen: list[tuple[str, int, int]] = []
    result = run_demo(simulated_endpoint, progress=lambda *step: seen.append(step))
    count = len(load_requests())
    assert [len(result.off.rows), len(result.on.rows)] == [count, count]
    assert result.on.prefilled_tokens < result.off.prefilled_tokens
    assert result.on.cached_tokens > result.off.cached_tokens
    assert seen[0] == ("off", 1, count) and seen[-1] == ("on", count, count)


def test_each_arm_starts_cold_and_a_turn_reuses_the_one_before() -> None:
    result = run_demo(simulated_endpoint, max_tokens=1)
    for arm in (result.off, result.on):
        assert arm.rows[0].cached_tokens == 0
        turns = {(row.session, row.turn): row for row in arm.rows}
        for (session, turn), row in turns.items():
            if turn:
                assert row.cached_tokens >= turns[session, turn - 1].prompt_tokens - 5


def arm(mode: str, *rows: tuple[int, int, float]) -> ArmResult:
    return ArmResult(mode, tuple(RequestRow("s", 0, total, cached, ttft, 9.0) for total, cached, ttft in rows))


@pytest.fixture
def result() -> DemoResult:
    off = arm("off", (1000, 0, 3.0), (1000, 100, 1.0), (1000, 0, 2.0))
    on = arm("on", (900, 0, 2.0), (900, 400, 0.5), (900, 800, 1.0))
    return DemoResult(off, on, "engine", Machine("cpu", 2, "os"), {"python": "3.11"})


def test_the_table(result: DemoResult) -> None:
    assert result.table() == (
        "| 3 requests                     | mode off | mode on | ratio off/on |\n"
        "|--------------------------------|---------:|--------:|-------------:|\n"
        "| prompt tokens                  |    3,000 |   2,700 |         1.11 |\n"
        "| cached tokens (engine's count) |      100 |   1,200 |              |\n"
        "| prefilled tokens               |    2,900 |   1,500 |         1.93 |\n"
        "| TTFT median (s)                |     2.00 |    1.00 |         2.00 |\n"
        "| TTFT p95 (s)                   |     3.00 |    2.00 |         1.50 |\n"
        "| total prefill time (s)         |     6.00 |    3.50 |         1.71 |"
    )
    assert result.describe() == "engine; cpu, 2 cores, os; python 3.11"


def test_p95_is_the_nearest_rank() -> None:
    assert arm("off", *((1, 0, float(i)) for i in range(1, 21))).ttft_p95_s == 19.0
    assert arm("off", *((1, 0, float(i)) for i in range(1, 22))).ttft_p95_s == 20.0
    assert arm("off", (1, 0, 5.0)).ttft_p95_s == 5.0


def test_the_json_form_holds_figures_rows_and_the_machine(result: DemoResult) -> None:
    read = json.loads(json.dumps(result.to_dict()))
    assert read["arms"]["on"]["prefilled_tokens"] == 1500
    assert read["arms"]["off"]["requests"][1]["cached_tokens"] == 100
    assert read["machine"] == {"cpu": "cpu", "cores": 2, "system": "os"}


def test_this_machine_and_its_versions_are_named() -> None:
    assert this_machine().cpu and this_machine().cores >= 1
    versions = installed_versions("pytest", "no-such-package-anywhere")
    assert set(versions) == {"python", "pytest"}


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_the_client_times_and_counts() -> None:
    ticks = iter([10.0, 12.5, 14.0])
    with SimulatedEngine(reply=lambda body: "hi there") as engine:
        answer = stream_chat(engine.base_url, CHAT, {"X-Mark": "1"}, clock=lambda: next(ticks))
        assert engine.chats[0].header("x-mark") == "1"
    assert (answer.text, answer.ttft_s, answer.total_s, answer.cached_tokens) == ("hi there", 2.5, 4.0, 0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Respond(503, b"busy"), "answered 503: busy"),
        (ErrorEvent(1), "reported an error in its stream"),
        (BreakOff(1), "cached_tokens|did not answer"),
    ],
)
def test_a_failing_engine_is_an_error(fault: Respond | ErrorEvent | BreakOff, message: str) -> None:
    with SimulatedEngine(fault=fault) as engine, pytest.raises(EngineError, match=message):
        stream_chat(engine.base_url, CHAT, {})


def test_no_engine_is_an_error() -> None:
    with SimulatedEngine() as engine:
        url = engine.base_url
    with pytest.raises(EngineError, match="did not answer"):
        stream_chat(url, CHAT, {})
