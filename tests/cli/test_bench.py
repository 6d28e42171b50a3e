"""``prefixpilot bench``: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixpilot.cli import main

SMALL = ["--engine", "simulated", "--limit", "6", "--prompt-tokens", "300", "--arms", "arrival,deduped"]


def test_tables_report_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["bench", "generated", *SMALL, "--cache-tokens", "2000,all", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "**cache 2,000, 1 at a time**" in told
    assert "**engine's cache, 1 at a time**" in told
    assert "| deduped |" in told
    report = json.loads((out / "report.json").read_text())
    assert report["machine"]["cores"] >= 1
    assert report["workload"] == "topical-6"
    assert [setting["cache_tokens"] for setting in report["settings"]] == [2000, None]
    assert (out / "report.md").read_text() in told
    assert (out / "hit-rate.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generated", "--engine", "gpu"], "--engine: is 'gpu'; use embedded, simulated, or a URL"),
        (["nowhere", "--engine", "simulated"], "nowhere"),
        (["generated", "--engine", "simulated", "--rate", "0"], "rate: is 0.0; use a number above 0"),
        (["generated", "--engine", "http://127.0.0.1:9"], "http://127.0.0.1:9/v1/models"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("prefixpilot bench: ")
    assert message in error
    assert error.count("\n") == 1


def test_unknown_arms_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "generated", "--arms", "fast", "--out", str(tmp_path)])
    assert (
        "'fast' is not one of: arrival, queue, popularity, walk, order, annotated, deduped, scheduled"
        in capsys.readouterr().err
    )
