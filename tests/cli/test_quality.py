"""``prefixpilot quality``: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.quality.word_model import WordModel, served

from prefixpilot.cli import main

BLOCKS = [{"block_id": i, "text": f"Mill {i} has {i * 3} stones."} for i in range(12)]
REQUESTS = [
    {"request_id": f"r{n}", "blocks": [(n + j * j) % 12 for j in range(4)], "query": f"Stones of {n}?", "answer": a}
    for n, a in enumerate(["three stones", True, ["six", "6"], "", None, "mill stones", False, "x"])
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    folder = tmp_path / "mills"
    folder.mkdir()
    for name, lines in (("blocks", BLOCKS), ("requests", REQUESTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_tables_and_report(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with served(WordModel(), "vllm") as url:
        line = ["quality", trace, "--engine", url, "--out", str(out), "--sample", "4", "--max-tokens", "4"]
        assert main(line) == 0
        told = capsys.readouterr().out
    assert "| arrival | 4 | 0 |" in told
    assert told == (out / "report.md").read_text() + "\n"
    written = json.loads((out / "report.json").read_text())
    assert (written["workload"], written["requests"], written["scorable"]) == ("mills", 8, 6)
    assert written["engine"] == "vLLM, words"
    assert [arm["arm"] for arm in written["arms"]] == ["arrival", "order", "annotated", "deduped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "gpu"], "--engine: is 'gpu'; use embedded, transformers, or a URL"),
        (["--engine", "http://127.0.0.1:9"], "--engine: /v1/models was answered with no answer"),
        (["--judge", "http://127.0.0.1:9"], "--judge-model: is missing"),
        (["--judge-model", "m"], "--judge: is missing"),
        (["--arms", "arrival,best"], "arms: has 'best'"),
        (["--max-prompt-tokens", "2"], "workload: has no request that can be scored"),
    ],
)
def test_bad_input_is_one_line(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["quality", trace, "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
