"""``prefixpilot plan``."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from prefixpilot import ContextPilot, Request
from prefixpilot.cli import main

TRACE: list[dict[str, Any]] = [
    {"trace": "tiny", "tokens": [100] * 10},
    {"request_id": "r0", "session_id": "a", "turn": 0, "blocks": [2, 1, 3]},
    {"request_id": "r1", "session_id": "b", "turn": 0, "blocks": [4, 5, 6]},
    {"request_id": "r2", "session_id": "a", "turn": 1, "blocks": [1, 2, 7]},
]


def write(path: Path, lines: list[Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def read(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return write(tmp_path / "trace.jsonl", TRACE)


@pytest.fixture
def batch(tmp_path: Path) -> str:
    def line(custom_id: str, blocks: list[str]) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "context_blocks": blocks, "seed": 1}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}

    return write(tmp_path / "batch.jsonl", [line("c0", ["two", "one"]), line("c1", ["x"]), line("c2", ["one", "two"])])


def test_the_plan_goes_to_stdout_and_the_summary_to_stderr(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", trace]) == 0
    out, err = capsys.readouterr()
    lines = read(out)
    assert sorted(line["request_id"] for line in lines) == ["r0", "r1", "r2"]
    by_id = {line["request_id"]: line for line in lines}
    assert all(list(line) == ["request_id", "blocks", "annotation"] for line in lines)
    for request in TRACE[1:]:
        assert sorted(by_id[request["request_id"]]["blocks"]) == sorted(request["blocks"])
    assert by_id["r0"]["blocks"][:2] == by_id["r2"]["blocks"][:2] == [1, 2]
    assert by_id["r0"]["annotation"].endswith("priority order: [Doc 2] > [Doc 1] > [Doc 3] and answer the question.")
    assert by_id["r2"]["annotation"] is None
    assert "requests     3, of which 3 have context blocks" in err
    assert "cached       200 tokens (predicted, for 3 requests)" in err
    assert "hit rate     0.2222 of the blocks' tokens (predicted)" in err
    assert "bound        200 tokens (0.2222): no order" in err


def test_execution_order_puts_sharers_side_by_side(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", trace])
    ids = [line["request_id"] for line in read(capsys.readouterr().out)]
    assert abs(ids.index("r0") - ids.index("r2")) == 1


@pytest.mark.parametrize("schedule", ["paper", "depth-first"])
def test_both_schedules_and_the_planner(trace: str, schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", trace, "--planner", "paper", "--schedule", schedule]) == 0
    assert len(read(capsys.readouterr().out)) == 3


def test_to_a_file_with_a_json_summary(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.jsonl"
    assert main(["plan", trace, "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "workload": "tiny",
        "requests": 3,
        "requests_with_blocks": 3,
        "requests_reordered": 1,
        "blocks": 9,
        "blocks_replaced": 0,
        "block_tokens": 900,
        "predicted_cached_tokens": 200,
        "predicted_for_requests": 3,
        "predicted_hit_rate": 200 / 900,
        "annotation_tokens": 38,
        "net_cached_tokens": 162,
        "bound_tokens": 200,
        "bound_hit_rate": 200 / 900,
    }
    assert len(read(out.read_text())) == 3


def test_a_compressed_file_is_the_same_each_time(trace: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    assert main(["plan", trace, "-o", str(first)]) == main(["plan", trace, "-o", str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert len(read(gzip.decompress(first.read_bytes()).decode())) == 3


def test_pages_reach_the_planner(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shared prefix of 200 tokens is no page of 256, so nothing is moved for it."""
    for page, expected in ("256", [2, 1, 3]), ("16", [1, 2, 3]):
        main(["plan", trace, "--page-size", page])
        by_id = {line["request_id"]: line["blocks"] for line in read(capsys.readouterr().out)}
        assert by_id["r0"] == expected


def test_limits_reach_the_planner(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", trace, "--max-displacement", "0"])
    assert all(line["annotation"] is None for line in read(capsys.readouterr().out))
    main(["plan", trace, "--annotate", "1"])
    by_id = {line["request_id"]: line["annotation"] for line in read(capsys.readouterr().out)}
    assert by_id["r0"].endswith("order: [Doc 2], then the rest, and answer the question.")


def test_the_bound_is_not_computed_for_conversations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", trace, "--multi-turn"])
    assert "bound        not computed: with --multi-turn" in capsys.readouterr().err


def test_conversations(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", trace, "--multi-turn"]) == 0
    lines = read(capsys.readouterr().out)
    ids = [line["request_id"] for line in lines]
    assert ids.index("r0") < ids.index("r2")
    second = lines[ids.index("r2")]
    assert second["blocks"] == [1, 2, 7]
    assert second["annotation"] is None
    assert [entry["index"] for entry in second["replaced"]] == [0, 1]
    assert second["replaced"][0]["annotation"] == "Please refer to [Doc 2] in the previous conversation."


def test_a_batch_file_is_ready_to_run(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", batch]) == 0
    lines = read(capsys.readouterr().out)
    assert sorted(line["custom_id"] for line in lines) == ["c0", "c1", "c2"]
    bodies = {line["custom_id"]: line["body"] for line in lines}
    assert all(list(body) == ["model", "messages", "seed"] for body in bodies.values())
    contents = {custom_id: body["messages"][0]["content"] for custom_id, body in bodies.items()}
    assert contents["c1"] == "[Doc 1]\nx\n\nWhy?"
    shared = "[Doc 1]\ntwo\n\n[Doc 2]\none\n\n"
    assert contents["c0"] == f"{shared}Why?"
    assert contents["c2"].startswith(
        f"{shared}Please read the context in the following priority order: [Doc 2] > [Doc 1]"
    )


def test_conversations_need_sessions(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", batch, "--multi-turn"]) == 2
    assert "batch.jsonl:1: a Batch line names no session; leave out --multi-turn" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["index.json", "index.json.gz"])
def test_the_index_can_be_taken_over(trace: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert main(["plan", trace, "-o", str(tmp_path / "plan"), "--save-index", str(path)]) == 0
    content = path.read_bytes()
    pilot = ContextPilot()
    pilot.restore(json.loads(gzip.decompress(content) if name.endswith(".gz") else content))
    assert pilot.live_requests == 3
    assert pilot.propose(Request.from_ids("new", [8, 2, 1])).sent == (1, 2, 8)


def test_the_index_is_not_the_plan(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", trace, "-o", "same", "--save-index", "same"]) == 2
    assert "--save-index: same is same too; give different files" in capsys.readouterr().err


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "bad.jsonl", [*TRACE, {"request_id": "r3", "blocks": 7}])
    before = sorted(tmp_path.iterdir())
    assert main(["plan", bad, "-o", str(tmp_path / "out.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"prefixpilot plan: {bad}:5: blocks: is 7; give a list\n")
    assert sorted(tmp_path.iterdir()) == before


def test_an_old_plan_survives_an_error(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.jsonl"
    out.write_text("old")
    assert main(["plan", trace, "-o", str(out), "--save-index", str(tmp_path / "missing" / "index")]) == 2
    assert "missing/index: No such file or directory; give a file that can be written" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.jsonl", "trace.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-o", "TRACE"], "--output"),
        (["-o", "LINK"], "--output"),
        (["--save-index", "TRACE"], "--save-index"),
        (["-o", "a.json", "--save-index", "./a.json"], "--save-index"),
    ],
)
def test_no_file_is_overwritten_by_another(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    before = Path(trace).read_bytes()
    link = tmp_path / "link"
    link.symlink_to(trace)
    names = {"TRACE": trace, "LINK": str(link)}
    assert main(["plan", trace, *(names.get(a, a) for a in arguments)]) == 2
    assert f"prefixpilot plan: {named}: " in capsys.readouterr().err
    assert Path(trace).read_bytes() == before


def test_all_outputs_appear_or_none(trace: str, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    assert main(["plan", trace, "-o", "/dev/full", "--save-index", str(index)]) == 2
    assert not index.exists()


def test_outputs_that_cannot_be_written_are_one_line(trace: str) -> None:
    command = [sys.executable, "-m", "prefixpilot.cli", "plan", trace]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, timeout=60, check=False)
    assert (closed.returncode, closed.stderr.count(b"\n")) == (2, 1)


def test_sigterm_leaves_nothing_behind(trace: str, tmp_path: Path) -> None:
    pipe, out = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)  # nobody reads it: the command waits there, with the temporary file of the plan open
    command = [sys.executable, "-m", "prefixpilot.cli", "plan", trace, "-o", str(out), "--save-index", str(pipe)]
    with subprocess.Popen(command) as child:
        until = monotonic() + 30
        while not list(tmp_path.glob(".out.jsonl.*")):
            assert monotonic() < until
            sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["pipe", Path(trace).name])


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"trace": "t", "tokens": [1, 1]}\n{"request_id": "a", "blocks": [0], "blocks": [1]}\n')
    assert main(["plan", str(path)]) == 2
    assert ":2: is not usable JSON (the key 'blocks' stands twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parts", "2"], "--parts: goes with --ray only"),
        (["--keep-parts"], "--keep-parts: goes with --ray only"),
        (["--ray"], "-o: is needed with --ray"),
        (["--ray", "-o", "{out}", "--save-index", "{out}.index"], "--save-index: goes without --ray"),
    ],
)
def test_flags_of_ray_that_do_not_go_together(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"trace": "t", "tokens": [5]}\n{"request_id": "a", "blocks": [0]}\n')
    given = [flag.format(out=tmp_path / "out.jsonl") for flag in more]
    assert main(["plan", str(trace), *given]) == 2
    assert message in capsys.readouterr().err
