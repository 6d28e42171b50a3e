"""``prefixpilot replay``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.cli import main


@pytest.fixture
def trace(tmp_path: Path) -> str:
    requests = [
        {"request_id": f"r{i}", "session_id": "ab"[i % 2], "turn": i // 2, "blocks": blocks}
        for i, blocks in enumerate([[2, 1, 3], [4, 5, 6], [1, 2, 7], [4, 5, 6]])
    ]
    path = tmp_path / "trace.jsonl"
    lines = [{"trace": "tiny", "tokens": [100] * 10}, *requests]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["replay", *argv, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_report_for_machines(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, trace, "--cache-tokens", "1000")
    windows = found.pop("windows")
    assert found == {
        "workload": "tiny",
        "mode": "arrival",
        "multi_turn": False,
        "cache_tokens": 1000,
        "requests": 4,
        "total_tokens": 1200,
        "cached_tokens": 300,
        "prefilled_tokens": 900,
        "evicted_tokens": 0,
        "hit_rate": 0.25,
        "annotation_tokens": 0,
        "net_cached_tokens": 300,
        "net_hit_rate": 0.25,
        "bound_tokens": 500,
        "bound_hit_rate": 500 / 1200,
    }
    assert [window["hit_rate"] for window in windows] == [0, 0, 0, 1]
    assert windows[3] == {"first": 3, "requests": 1, "total_tokens": 300, "cached_tokens": 300, "hit_rate": 1.0}


@pytest.mark.parametrize(("mode", "cached"), [("arrival", 0), ("online", 0), ("offline", 500)])
def test_modes_under_a_cache_of_one_request(
    trace: str, mode: str, cached: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(capsys, trace, "--cache-tokens", "300", "--mode", mode)["cached_tokens"] == cached


def test_conversations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, trace, "--cache-tokens", "unbounded", "--mode", "online", "--multi-turn")
    assert found["cache_tokens"] is None
    assert found["total_tokens"] == 600 + 400 + 300 + found["annotation_tokens"]
    assert found["cached_tokens"] == 600


def test_pages_and_policies(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    paged = report(capsys, trace, "--cache-tokens", "1000", "--page-size", "16", "--policy", "lfu")
    assert paged["cached_tokens"] == 300 // 16 * 16


def test_what_was_sent_can_be_written(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sent.jsonl"
    report(capsys, trace, "--cache-tokens", "1000", "--mode", "online", "--emit", str(out))
    sent = [json.loads(line) for line in out.read_text().split("\n") if line]
    assert sent[0] == {"request_id": "r0", "blocks": [2, 1, 3]}
    assert sent[2] == {"request_id": "r2", "blocks": [2, 1, 7]}
    assert [line["request_id"] for line in sent] == ["r0", "r1", "r2", "r3"]


def test_the_report_makes_way_for_what_was_sent(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "1000", "--emit", "-"]) == 0
    out, err = capsys.readouterr()
    assert len([json.loads(line) for line in out.split("\n") if line]) == 4
    assert "hit rate      0.2500" in err


def test_the_report_for_people(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "1000"]) == 0
    out = capsys.readouterr().out
    assert "arrival, requests are independent" in out
    assert "prefilled     900 tokens" in out
    assert "net hit rate  0.2500, annotations taken off" in out
    assert "bound         500 tokens (0.4167): no order and no schedule saves more" in out
    assert "4-4       1.0000" in out


def test_net_of_annotations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, trace, "--cache-tokens", "unbounded", "--mode", "online")
    assert (found["cached_tokens"], found["annotation_tokens"], found["net_cached_tokens"]) == (500, 38, 462)
    assert found["net_hit_rate"] == 462 / 1200


def test_a_gate_keeps_hands_off_what_does_not_pay(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, trace, "--cache-tokens", "unbounded", "--mode", "online", "--gate")
    assert (found["cached_tokens"], found["annotation_tokens"]) == (300, 0)


def test_the_bound_is_not_computed_for_conversations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, trace, "--cache-tokens", "unbounded", "--multi-turn")
    assert (found["bound_tokens"], found["bound_hit_rate"]) == (None, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--cache-tokens", "0"], "--cache-tokens: '0' is not an int of 1 or more"),
        (["--cache-tokens", "many"], "--cache-tokens: 'many' is not an int"),
        ([], "required: --cache-tokens"),
        (["--cache-tokens", "9", "--annotate", "some"], "--annotate: 'some' is not an int of 0 or more"),
        (["--cache-tokens", "9", "--mode", "up"], "argument --mode: invalid choice"),
    ],
)
def test_bad_arguments_are_one_line(
    trace: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", trace, *argv])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_pages_larger_than_the_cache(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "9", "--page-size", "16"]) == 2
    assert "capacity_tokens: is 9; use at least one page of 16" in capsys.readouterr().err


def test_a_rendered_replay_models_the_whole_prompt(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("--head-tokens", "50", "--question-tokens", "20", "--label-tokens", "5")
    found = report(capsys, trace, "--cache-tokens", "1000", "--rendered", *lengths)
    assert found["rendering"] == {"head_tokens": 50, "question_tokens": 20, "label_tokens": 5}
    assert found["total_tokens"] == 4 * (50 + 3 * 105 + 20)
    assert found["cached_tokens"] == 2 * (50 + 5) + 50 + 3 * 105  # the first label is that of every prompt
    assert found["hit_rate_behind_head"] == (2 * 5 + 3 * 105) / (4 * (3 * 105 + 20))
    assert found["bound_tokens"] is None


def test_a_rendered_report_for_people(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "1000", "--rendered"]) == 0
    out = capsys.readouterr().out
    assert "behind head" in out and "in the total" in out and "with --rendered" in out


def test_lengths_without_rendered_are_refused(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "1000", "--head-tokens", "5"]) == 2
    assert "--rendered" in capsys.readouterr().err


def test_a_fleet_has_a_bound(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, "--cache-tokens", "900", "--replicas", "100000"]) == 2
    assert capsys.readouterr().err == "prefixpilot replay: --replicas: is 100,000; use at most 1,024\n"
