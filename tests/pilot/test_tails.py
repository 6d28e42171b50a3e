"""The adaptive tail: it learns what stands together, notices what does not pay, and stays bounded."""

from __future__ import annotations

import json
import random
from threading import Thread
from typing import Any

import pytest

from prefixpilot import ContextPilot, PilotConfig, Request
from prefixpilot.config import TailOrder
from prefixpilot.core import BlockId, RequestId, TenantId
from prefixpilot.errors import ConfigError, InvalidRequestError
from prefixpilot.pilot.forest import TreeKey
from prefixpilot.pilot.tail_learner import MAX_HELD, TailLearner
from prefixpilot.pilot.trial import Trial
from prefixpilot.tails import Tail, Window
from prefixpilot.tails.policies import co_occurrence, relevance

KEY = TreeKey(TenantId("t"), "")


def sessions(count: int, seed: int = 0) -> list[list[BlockId]]:
    """Five blocks of the session first, then ten of a common pool: popular, and useless as a start."""
    rng = random.Random(seed)
    turns_left: dict[int, int] = {}
    fresh = 1000
    contexts: list[list[BlockId]] = []
    for _ in range(count):
        while len(turns_left) < 8:
            turns_left[fresh] = 10
            fresh += 5
        first = rng.choice(list(turns_left))
        contexts.append([*range(first, first + 5), *rng.sample(range(60), 10)])
        turns_left[first] -= 1
        if not turns_left[first]:
            del turns_left[first]
    return contexts


def popular(count: int, seed: int = 0) -> list[list[BlockId]]:
    """Ten blocks by Zipf's law in no particular order."""
    rng = random.Random(seed)
    weights = [1 / (i + 1) for i in range(400)]
    contexts: list[list[BlockId]] = []
    for _ in range(count):
        drawn = dict.fromkeys(rng.choices(range(400), weights, k=40))
        contexts.append(rng.sample(list(drawn)[:10], 10))
    return contexts


def cached(tail: TailOrder, contexts: list[list[BlockId]], capacity: int | None) -> int:
    """Blocks predicted to be cached."""
    pilot = ContextPilot(PilotConfig(tail=tail, cache_tokens=capacity))
    return sum(pilot.optimize(Request.from_ids(str(i), c)).prefix_len for i, c in enumerate(contexts))


@pytest.mark.no_cover
@pytest.mark.parametrize("capacity", [200, 900, None])
def test_it_finds_that_relevance_pays_more(capacity: int | None) -> None:
    contexts = sessions(600)
    by_relevance = cached("relevance", contexts, capacity)
    assert cached("co-occurrence", contexts, capacity) < 0.6 * by_relevance
    assert cached("adaptive", contexts, capacity) > 0.85 * by_relevance


@pytest.mark.no_cover
@pytest.mark.parametrize("capacity", [150, 600, None])
def test_it_finds_that_co_occurrence_pays_more(capacity: int | None) -> None:
    contexts = popular(600)
    adaptive = cached("adaptive", contexts, capacity)
    assert adaptive > 0.97 * cached("co-occurrence", contexts, capacity)
    assert adaptive > 1.05 * cached("relevance", contexts, capacity)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(3))
def test_it_comes_back_when_the_workload_changes(seed: int) -> None:
    trial, window = Trial((co_occurrence, relevance), 200), Window(1024)
    verdicts = []
    for contexts in (sessions(400, seed), popular(2600, seed)):
        for context in contexts:
            if trial.next_is_tried():
                trial.observe(window, dict.fromkeys(context, 1))
            window.add(context)
        verdicts.append(trial.verdict)
    assert verdicts == [relevance, co_occurrence]


def test_where_nothing_is_moved_there_is_no_annotation_and_no_loss() -> None:
    """Blocks seen once, and ids that stand for all before them."""
    rng = random.Random(0)
    pilot = ContextPilot()
    for i in range(300):
        path = [rng.randrange(3) for _ in range(6)]
        ids = ["/".join(map(str, path[: n + 1])) for n in range(6)] + [f"{i}.{n}" for n in range(3)]
        plan = pilot.optimize(Request.from_ids(str(i), ids))
        assert list(plan.sent) == ids and plan.order_annotation is None


def test_a_batch_is_learnt_and_not_disturbed() -> None:
    contexts = popular(120)
    requests = [Request.from_ids(str(i), c) for i, c in enumerate(contexts)]
    adaptive, plain = ContextPilot(), ContextPilot(PilotConfig(tail="relevance"))
    assert adaptive.optimize_batch(requests) == plain.optimize_batch(requests)
    probe = Request.from_ids("probe", contexts[0][::-1])
    adaptive.evict(str(i) for i in range(120))
    assert adaptive.propose(probe).prefix_len == 0
    assert adaptive.propose(probe).order_annotation is not None


def test_tenants_learn_nothing_from_each_other() -> None:
    learner = TailLearner(PilotConfig())
    for _ in range(20):
        learner.learn(KEY, (1, 2), (1, 1), (0, 1))
    window_free = learner.lead(TreeKey(TenantId("other"), ""), _tail())
    assert (learner.lead(KEY, _tail()), window_free) == ([1, 2], [])


def _tail() -> Tail:
    return Tail((), [3, 1, 2], [1, 1, 1], 20)


def test_trees_that_come_and_go_leave_nothing_behind() -> None:
    learner = TailLearner(PilotConfig())
    for number in range(2 * MAX_HELD):
        learner.learn(TreeKey(TenantId("t"), f"scope {number // 3}"), (number, -number - 1), (1, 1), (1, 0))
        if number % 1000 == 0:
            learner.check_invariants()
    learner.check_invariants()
    assert learner.lead(TreeKey(TenantId("t"), "scope 0"), _tail()) == []


def test_relevance_learns_nothing() -> None:
    learner = TailLearner(PilotConfig(tail="relevance"))
    for _ in range(20):
        learner.learn(KEY, (1, 2), (1, 1), (0, 1))
    assert learner.lead(KEY, _tail()) == []


def test_an_unknown_tail_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tail.*'best'.*adaptive"):
        PilotConfig(tail="best")  # type: ignore[arg-type]


def test_threads_share_one_pilot() -> None:
    """Each plan is whole whatever the others do, and the index is sound in the end."""
    pilot = ContextPilot(PilotConfig(max_contexts=50))
    failures: list[str] = []

    def work(thread: int) -> None:
        try:
            for i, ids in enumerate(popular(150, seed=thread)):
                request = Request.from_ids(f"{thread}.{i}", ids, f"c{i % 5}" if thread == 0 else None)
                if i % 10 == 9:
                    planned = pilot.optimize_batch([request, Request.from_ids(f"{thread}.{i}b", ids[::-1])])
                    orders = [entry.plan.order for entry in planned]
                elif thread == 1:
                    plan = pilot.propose(request)
                    pilot.learn(plan)
                    orders = [plan.order]
                else:
                    orders = [pilot.optimize(request).order]
                if any(sorted(order) != list(range(len(ids))) for order in orders):
                    failures.append(f"{thread}.{i}: {orders}")
                pilot.evict([RequestId(f"{thread}.{i - 3}")])
        except Exception as error:  # noqa: BLE001 - a thread's failure must fail the test
            failures.append(repr(error))

    threads = [Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    pilot.check_invariants()
    assert pilot.live_requests <= 50


def warm_pilot(contexts: list[list[BlockId]]) -> ContextPilot:
    pilot = ContextPilot(PilotConfig(cache_tokens=600))
    for number, blocks in enumerate(contexts):
        pilot.optimize(Request.from_ids(str(number), blocks))
    return pilot


@pytest.mark.no_cover
@pytest.mark.parametrize("count", [10, 700, 1200])
def test_what_is_learnt_of_tails_outlives_a_snapshot(count: int) -> None:
    contexts = popular(count + 40)
    pilot, restored = warm_pilot(contexts[:count]), ContextPilot(PilotConfig(cache_tokens=600))
    restored.restore(json.loads(json.dumps(pilot.snapshot())))
    restored.check_invariants()
    assert restored.snapshot() == pilot.snapshot()
    for number, blocks in enumerate(contexts[count:]):
        request = Request.from_ids(f"new {number}", blocks)
        assert restored.optimize(request).sent == pilot.optimize(request).sent


def test_the_verdict_outlives_a_snapshot() -> None:
    trial, window = Trial((co_occurrence, relevance), 200), Window(1024)
    for context in sessions(400):
        trial.next_is_tried()
        trial.observe(window, dict.fromkeys(context, 1))
        window.add(context)
    restored = Trial((co_occurrence, relevance), 200)
    assert restored.verdict is co_occurrence
    restored.restore(json.loads(json.dumps(trial.snapshot())))
    assert restored.verdict is trial.verdict is relevance


def test_a_snapshot_of_version_1_has_nothing_of_tails() -> None:
    snapshot = warm_pilot(popular(60)).snapshot()
    del snapshot["tails"]
    restored = ContextPilot()
    restored.restore({**snapshot, "version": 1})
    assert restored.live_requests == len(snapshot["order_of_use"])
    assert restored.snapshot()["tails"] == []


def test_a_snapshot_is_read_by_a_pilot_that_learns_less() -> None:
    snapshot = warm_pilot(popular(60)).snapshot()
    plans: list[tuple[TailOrder, int]] = [("relevance", 0), ("chain", 1)]
    for tail, known in plans:
        restored = ContextPilot(PilotConfig(tail=tail))
        restored.restore(snapshot)
        tails = restored.snapshot()["tails"]
        assert [entry["trial"] for entry in tails] == [None] * known


def _route(contexts: Any, trial: Any = None) -> list[dict[str, Any]]:
    return [{"tenant": "t", "scope": "", "contexts": contexts, "trial": trial}]


@pytest.mark.parametrize(
    "tails",
    [
        3,
        [3],
        [{}],
        _route([[]]),
        _route([[1.5]]),
        _route([[{"hex": "x"}]]),
        _route([3]),
        _route([[1]], {"seen": -1, "duels": []}),
        _route([[1]], {"seen": 1, "duels": []}),
        _route([[1]], {"seen": 1, "duels": [{"lead": float("nan"), "variance": 1, "ahead": False}] * 2}),
    ],
)
def test_damaged_tails_are_refused_whole(tails: Any) -> None:
    snapshot, fresh = warm_pilot(popular(20)).snapshot(), ContextPilot()
    with pytest.raises(InvalidRequestError, match=r"snapshot\.tails"):
        fresh.restore({**snapshot, "tails": tails})
    assert fresh.live_requests == 0 and fresh.snapshot()["tails"] == []


def test_requests_of_a_batch_on_a_warm_tree_are_tried() -> None:
    contexts = popular(60)
    pilot = warm_pilot(contexts[:30])
    pilot.optimize_batch([Request.from_ids(f"b{i}", c) for i, c in enumerate(contexts[30:])])
    trials = [one.snapshot()["tails"][0]["trial"] for one in (pilot, warm_pilot(contexts))]
    assert trials[0] == trials[1] and trials[0]["seen"] == 60 - 17
