"""Arms of other ways to order, arms by turns, and what replay expects of an arm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixpilot.bench.comparison.arms import ARMS, arm_of, outgoing
from prefixpilot.bench.comparison.cells import Grid
from prefixpilot.bench.comparison.client import Load
from prefixpilot.bench.comparison.engines import Embedded, Running, Simulated
from prefixpilot.bench.comparison.others import Other, Sending, check_sendings, read_sendings, sendings
from prefixpilot.bench.comparison.predicted import LlamaCppCache, Model, predicted_hit_rate
from prefixpilot.bench.comparison.prepared import BenchRequest, Preparation, prepare
from prefixpilot.bench.comparison.runner import Comparison, run_comparison
from prefixpilot.core import ContextBlock
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import Segment
from prefixpilot.testing import SimulatedEngine
from prefixpilot.workloads.synthetic import sessions, topical


def request(number: int, *texts: str, session: str | None = None) -> BenchRequest:
    blocks = tuple(ContextBlock(text=text) for text in texts)
    return BenchRequest(number, session or f"r{number}", 0, "Why?", blocks)


@pytest.mark.parametrize("name", ["queue", "popularity", "walk"])
@pytest.mark.parametrize("multi_turn", [False, True])
def test_every_request_is_sent_once_with_all_its_blocks(name: Other, multi_turn: bool) -> None:
    requests = prepare(sessions(6, turns=3).workload(), Preparation(multi_turn=multi_turn))
    sent = sendings(name, requests, 20_000)
    check_sendings(sent, requests)
    if name != "queue":
        assert [each.number for each in sent] == list(range(len(requests)))
    for session in {each.session for each in requests}:
        turns = [requests[each.number].turn for each in sent if requests[each.number].session == session]
        assert turns == sorted(turns), "a turn waits for the one before it"


def test_what_each_way_does() -> None:
    requests = [request(0, "a", "b", "c"), request(1, "d", "b"), request(2, "b", "d", "b"), request(3, "a", "b", "d")]
    assert [each.number for each in sendings("queue", requests, None)] == [0, 3, 1, 2]
    assert [each.order for each in sendings("popularity", requests, None)] == [(0, 1, 2), (1, 0), (0, 1, 2), (1, 2, 0)]
    assert [each.order for each in sendings("walk", requests, None)] == [(0, 1, 2), (0, 1), (1, 0, 2), (2, 1, 0)]


def test_the_orders_of_a_file_are_sent(tmp_path: Path) -> None:
    requests = [request(0, "a", "b"), request(1, "c")]
    path = tmp_path / "orders.jsonl"
    path.write_text('{"number": 1, "order": [0]}\n{"number": 0, "order": [1, 0]}\n')
    given = read_sendings(path)
    sent = outgoing(arm_of("given"), requests, None, given)
    assert [(each.number, each.text, each.order) for each in sent] == [(1, None, (0,)), (0, None, (1, 0))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([Sending(0, (0, 1))], "orders: name not each of 2 requests once"),
        ([Sending(0, (0, 0)), Sending(1, (0,))], "orders: request 0: not each block once"),
    ],
)
def test_orders_of_other_requests_are_refused(given: list[Sending], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        outgoing(arm_of("given"), [request(0, "a", "b"), request(1, "c")], None, given)


@pytest.mark.parametrize("text", ["[1]", "{", '{"number": 0}', '{"number": 0, "order": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders").write_text(text)
    with pytest.raises(ConfigError, match="orders"):
        read_sendings(tmp_path / "orders")
    with pytest.raises(ConfigError, match="No such file"):
        read_sendings(tmp_path / "none")


def test_arms_by_turns_count_what_they_count_alone_and_replay_expects_it(tmp_path: Path) -> None:
    workload, how = topical(40, k=8).workload(), Preparation(prompt_tokens=600)
    grid, load = Grid(ARMS, (8000,)), Load(max_tokens=1)
    alone = run_comparison(Comparison(workload, Simulated(), grid, how, load), tmp_path / "alone")
    told: list[str] = []
    turns = Comparison(workload, Simulated(), grid, how, load, by_turns=True)
    together = run_comparison(turns, tmp_path / "turns", lambda cell, done, cells: told.append(cell.arm))
    (mine,), (other,) = alone.figures.values(), together.figures.values()
    assert [(a.arm, a.prompt_tokens, a.cached_tokens) for a in mine] == [
        (a.arm, a.prompt_tokens, a.cached_tokens) for a in other
    ]
    assert told == list(ARMS)
    (expected,) = alone.predicted.values()
    assert set(expected) == {"arrival", "deduped", "scheduled"}
    for arm in mine:
        if arm.arm in expected:
            assert arm.hit_rate == pytest.approx(expected[arm.arm], abs=0.02)
    assert json.loads(json.dumps(alone.as_json()))["settings"][0]["arms"][0]["predicted_hit_rate"] is not None


@pytest.mark.parametrize(
    ("grid", "load", "engine"),
    [
        (Grid(concurrencies=(2,)), Load(), Simulated()),
        (Grid(), Load(rate=1.0), Simulated()),
        (Grid(), Load(), Running("http://127.0.0.1:9")),
    ],
)
def test_turns_need_one_request_at_a_time_and_an_engine_each(
    grid: Grid, load: Load, engine: Simulated | Running
) -> None:
    with pytest.raises(ConfigError, match="by_turns"):
        Comparison(topical(3).workload(), engine, grid, load=load, by_turns=True)


def test_an_engine_that_hangs_up_after_each_answer_is_asked_again(tmp_path: Path) -> None:
    with SimulatedEngine() as engine:
        engine.hang_up_after_answer = True
        grid = Grid(("arrival", "scheduled"))
        compared = Comparison(
            topical(12, k=3).workload(), Running(engine.base_url), grid, Preparation(prompt_tokens=90)
        )
        (arms,) = run_comparison(compared, tmp_path).figures.values()
    assert [arm.requests for arm in arms] == [12, 12]


def test_a_model_of_llamacpp_holds_prompts_not_a_tree() -> None:
    cache = LlamaCppCache(1000)
    one, two, three = ([Segment("head", 50), Segment(name, 100)] for name in "abc")
    assert cache.access(one).cached_tokens == 0
    assert cache.access(two).cached_tokens == 50
    assert cache.match_prefix(one) == 149 + 1
    assert cache.access(one).cached_tokens == 149, "out of the store; at least one token is computed"
    assert cache.access(three).cached_tokens == 50
    cache.check_invariants()
    cache.clear()
    assert cache.used_tokens == cache.match_prefix(one) == 0


def test_it_tells_which_prompt_was_used_up() -> None:
    cache = LlamaCppCache(1000)
    names = ("ab", "c", "ad", "c", "ab")
    told = [cache.access([Segment(letter, 100) for letter in each]).used_up for each in names]
    assert told == [(), (), (2,), (), (2,)], "the second c goes on with the first one whole"


def test_of_an_arm_that_replay_does_not_know_nothing_is_expected() -> None:
    assert predicted_hit_rate("queue", [request(0, "a")], Model(LlamaCppCache(None)), multi_turn=False) is None
    assert Running("http://127.0.0.1:9").model_of_cache(None) is None
    model = Embedded(kv_bytes_per_token=1 << 20).model_of_cache(None)
    assert model is not None
    assert model.cache.capacity_tokens == 2048
