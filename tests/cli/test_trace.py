"""``prefixpilot trace``: a log becomes a trace that `replay` reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from prefixpilot.cli import main
from prefixpilot.workloads import read_workload

TEXTS = [f"Report {i}. " + " ".join(f"fact{i}x{n}" for n in range(60)) for i in range(5)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    def body(*messages: str, blocks: list[str] | None = None) -> str:
        spoken = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
        given = {} if blocks is None else {"context_blocks": blocks}
        return json.dumps({"model": "m", "messages": spoken, **given})

    lines = [
        body("What?", blocks=[TEXTS[2], TEXTS[0]]),
        body("Hello"),
        "broken",
        body("What?", "That.", "And?", blocks=[TEXTS[0], TEXTS[4]]),
        json.dumps({"messages": [], "context_blocks": 7}),
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ids_only_without_a_word_of_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = log.with_name("trace.jsonl.gz")
    assert main(["trace", str(log), "-o", str(out)]) == 0
    text = gzip.decompress(out.read_bytes()).decode()
    assert "fact" not in text
    workload = read_workload(out)
    assert [[block.id for block in entry.request.blocks] for entry in workload.requests] == [[0, 1], [1, 2]]
    assert [(entry.session_id, entry.turn) for entry in workload.requests] == [("session-0", 0), ("session-0", 1)]
    assert workload.requests[0].request.blocks[0].tokens == -(-len(TEXTS[2]) // 4)
    told = capsys.readouterr().out
    assert "requests           2" in told
    assert "no request         2 lines" in told
    assert "without documents  1" in told
    assert main(["replay", str(out), "--cache-tokens", "5000", "--multi-turn", "--mode", "online"]) == 0


def test_a_folder_holds_the_texts(log: Path) -> None:
    folder = log.with_name("mine")
    assert main(["trace", str(log), "--texts", str(folder)]) == 0
    workload = read_workload(folder)
    assert [block.text for block in workload.requests[1].request.blocks] == [TEXTS[0], TEXTS[4]]


def test_to_stdout_the_summary_goes_to_stderr(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(log), "-o", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[0])["trace"] == "log"
    assert "documents" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{log}"], "--output: is missing; give --output FILE, --texts FOLDER, or both"),
        (["nowhere", "-o", "{dir}/t.jsonl"], "nowhere: No such file or directory; give a file that can be read"),
        (["{log}", "-o", "{log}"], "--output: {log} is {log} too; give different files"),
        (["{log}", "--texts", "{log}"], "--texts: {log}: File exists; give a folder that can be made"),
    ],
)
def test_bad_input_is_one_line(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    filled = [text.format(log=log, dir=log.parent) for text in arguments]
    assert main(["trace", *filled]) == 2
    assert capsys.readouterr().err == f"prefixpilot trace: {message.format(log=log, dir=log.parent)}\n"


def test_no_documents_is_an_error_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "trace.jsonl"
    log.write_text(json.dumps({"model": "m", "prompt": "Hello"}) + "\n")
    assert main(["trace", str(log), "-o", str(out)]) == 2
    assert "holds no request with documents" in capsys.readouterr().err
    assert not out.exists()
