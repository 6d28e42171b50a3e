"""A fleet in simulated time: queues, caches, and what routing is worth."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from prefixpilot.bench import sent_prompts, simulate
from prefixpilot.bench.arrivals import recorded
from prefixpilot.bench.fleet import Service, simulate_fleet
from prefixpilot.bench.replaying import SentPrompt
from prefixpilot.cli import main
from prefixpilot.core import RequestId
from prefixpilot.errors import ConfigError
from prefixpilot.prefix_cache import RadixPrefixCache, Segment
from prefixpilot.routing import RoundRobin, router_of
from prefixpilot.workloads.synthetic import topical

FAST = Service(prefill_rate=100.0, decode_rate=10.0, answer_tokens=10)


def prompt(*blocks: int) -> SentPrompt:
    return SentPrompt(RequestId("r"), None, [Segment(block, 100) for block in blocks])


def caches(count: int, tokens: int | None = None) -> list[RadixPrefixCache]:
    return [RadixPrefixCache(tokens) for _ in range(count)]


def test_the_figures_of_four_requests_on_two_replicas() -> None:
    report = simulate_fleet([prompt(1, 2), prompt(3), prompt(1, 2), prompt(4)], RoundRobin(), caches(2), FAST)
    first, second = report.replicas
    assert (first.requests, first.prompt_tokens, first.cached_tokens) == (2, 400, 200)
    assert (second.requests, second.prefilled_tokens) == (2, 200)
    assert report.hit_rate == pytest.approx(200 / 600)
    assert report.imbalance == 1.0
    assert report.makespan_s == 2.0  # 200 tokens at 100 a second, on each
    assert report.requests_per_s == 2.0
    assert (report.ttft_p50_s, report.ttft_p95_s) == (2.0, 2.0)


def test_one_replica_is_a_replay() -> None:
    workload = topical(80).workload()
    replayed = simulate(workload, "online", RadixPrefixCache(30_000))
    fleet = simulate_fleet(sent_prompts(workload, "online", 30_000), RoundRobin(), caches(1, 30_000))
    assert fleet.replicas[0].cached_tokens == replayed.result.cached_tokens
    assert fleet.replicas[0].prompt_tokens == replayed.result.total_tokens


def test_where_the_prefix_is_beats_whose_turn_it_is() -> None:
    workload = topical(300).workload()
    by_name = {}
    for name in ("context-aware", "round-robin"):
        prompts = sent_prompts(workload, "online", 4 * 60_000)
        by_name[name] = simulate_fleet(prompts, router_of(name, 60_000), caches(4, 60_000), Service(rate=3.0))
    ours, theirs = by_name["context-aware"], by_name["round-robin"]
    assert ours.hit_rate > 1.2 * theirs.hit_rate
    assert ours.imbalance < 1.3
    assert ours.predicted_tokens == sum(replica.cached_tokens for replica in ours.replicas)


def test_arrivals_spread_requests_and_shorten_queues() -> None:
    prompts = [prompt(i) for i in range(50)]
    at_once = simulate_fleet(prompts, RoundRobin(), caches(1), FAST)
    spread = simulate_fleet(prompts, RoundRobin(), caches(1), Service(100.0, 10.0, 10, rate=0.5))
    assert spread.ttft_p95_s < at_once.ttft_p95_s / 5
    assert spread.makespan_s > at_once.makespan_s


@pytest.mark.parametrize("field", ["prefill_rate", "decode_rate", "rate"])
def test_bad_services_name_the_field(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: is 0"):
        Service(**{field: 0})


def test_no_replica_is_an_error() -> None:
    with pytest.raises(ConfigError, match="replicas: is 0; use an int of 1 or more"):
        simulate_fleet([], RoundRobin(), [])
    with pytest.raises(ConfigError, match="mode: is 'best'"):
        next(sent_prompts(topical(2).workload(), "best", None))  # type: ignore[arg-type]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [{"trace": "t", "tokens": [100] * 6}]
    lines += [{"request_id": f"r{i}", "blocks": [i % 3, 3 + i % 2]} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_the_command_compares_policies(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["replay", str(trace), "--cache-tokens", "5000", "--mode", "online", "--replicas", "2"]
    assert main([*fixed, "--routing", "all"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("t, 12 requests, online, 2 replicas")
    assert all(name in told for name in ("context-aware", "round-robin", "least-loaded", "prefix-hash"))
    assert main([*fixed, "--json", "--rate", "5", "--page-size", "16"]) == 0
    found = json.loads(capsys.readouterr().out)["routing"]["context-aware"]
    assert sum(replica["requests"] for replica in found["replicas"]) == 12
    assert 0 < found["hit_rate"] < 1


def test_flags_of_a_fleet_need_one(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(trace), "--cache-tokens", "5000", "--prefill-rate", "5"]) == 2
    assert "--prefill-rate: goes with --replicas only; add --replicas N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--routing", "best"], "policy: is 'best'; use one of: context-aware"),
        (["--emit", "x"], "--emit: goes without --replicas; leave one of them out"),
        (["--prefill-rate", "0"], "prefill_rate: is 0.0; use a number above 0"),
    ],
)
def test_bad_input_is_one_line(trace: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert main(["replay", str(trace), "--cache-tokens", "5000", "--replicas", "2", *more]) == 2
    assert message in capsys.readouterr().err


def test_requests_come_when_those_of_a_recorded_service_did() -> None:
    times = [4.0, 1.0, 2.0]
    assert list(islice(recorded(times), 5)) == pytest.approx([0.0, 1.0, 3.0, 4.5, 5.5])  # one mean gap, then anew
    stretched = list(islice(recorded(times, rate=0.5), 301))
    assert stretched[300] == pytest.approx(300 / 0.5)
    report = simulate_fleet([prompt(1), prompt(2)], RoundRobin(), caches(1), FAST, arrivals=[0.0, 10.0])
    assert report.makespan_s == 11.0


@pytest.mark.parametrize(("times", "rate"), [([], None), ([3.0, 3.0], None), ([1.0, 2.0], 0.0)])
def test_arrivals_that_cannot_be_used(times: list[float], rate: float | None) -> None:
    with pytest.raises(ConfigError, match=r"arrivals|rate"):
        recorded(times, rate)


def test_the_command_takes_recorded_arrivals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, arrivals = tmp_path / "t.jsonl", tmp_path / "a.jsonl"
    trace.write_text(
        '{"trace": "t", "tokens": [1000, 1000]}\n'
        '{"request_id": "a", "blocks": [0]}\n{"request_id": "b", "blocks": [1]}\n{"request_id": "c", "blocks": [0]}\n'
    )
    arrivals.write_text('{"timestamp": 0, "hash_ids": []}\n{"timestamp": 3000}\n{"timestamp": 60000}\n')
    command = ["replay", str(trace), "--replicas", "2", "--cache-tokens", "9000", "--arrivals", str(arrivals), "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)["routing"]["context-aware"]
    assert report["makespan_s"] == pytest.approx(60.0, abs=0.2)
    arrivals.write_text('{"timestamp": "soon"}\n')
    assert main(command) == 2
    assert "timestamp" in capsys.readouterr().err
