"""``prefixpilot analyze``: what it prints and writes."""

from __future__ import annotations

import gzip
import json
import os
import sys
from io import BytesIO
from pathlib import Path

import pytest

from prefixpilot.cli import main


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": "The same words. " * 40 + str(i)}]} for i in (1, 2)
    ]
    path.write_text("\n".join(map(json.dumps, bodies)) + "\nbroken\n")
    return path


def test_summary_and_page(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = log.with_name("report.html")
    assert main(["analyze", str(log), "--html", str(page), "--processes", "1", "--prefill-rate", "1000"]) == 0
    out = capsys.readouterr().out
    assert "requests      2 in 2 conversations" in out
    assert "1 lines; line 3 is not JSON" in out
    assert "arrival       0.4" in out
    assert page.read_text().startswith("<!doctype html>")
    assert "at 1,000 a second" in page.read_text()


def test_json_is_one_object(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--json", "--no-schedule", "--no-text", "--cache-tokens", "unbounded", "--processes", "1"]
    assert main(["analyze", str(log), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 2
    assert found["cache_tokens"] is None
    assert found["arms"][0]["name"] == "arrival"
    assert 0.4 < found["arms"][0]["hit_rate"] < 0.5
    assert found["bad_examples"][0]["number"] == 3


class Piped:
    """Stdin of a pipe."""

    def __init__(self, data: bytes) -> None:
        self.buffer = BytesIO(data)


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_may_come_from_stdin(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    data = log.read_bytes()
    monkeypatch.setattr(sys, "stdin", Piped(gzip.compress(data) if packed else data))
    assert main(["analyze", "-", "--processes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["bad_lines"], found["log"]) == (2, 1, "log")
    monkeypatch.setattr(sys, "stdin", Piped(b""))
    for command in (["analyze", "-", "--processes", "1"], ["trace", "-", "-o", "-"]):
        assert main(command) == 2
        assert ": stdin: " in capsys.readouterr().err


def test_a_log_that_is_still_written_is_read_as_far_as_it_goes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.dumps({"model": "m", "prompt": "Hm?"}) + "\n"
    log.write_bytes(gzip.compress((whole * 500).encode() + os.urandom(9000).hex().encode())[:-4000])
    assert main(["analyze", str(log), "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "requests      500 in" in out and "2 lines; line 501" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: No such file or directory; give a file that can be read"),
        (["{log}", "--price", "0"], "price: is 0.0; use a number above 0, or leave it out"),
        (["{log}", "--html", "{log}"], "--html: {log} is {log} too; give different files"),
        (["{log}", "--html", "{dir}"], "--html: {dir}: Is a directory; give a file that can be written"),
    ],
)
def test_bad_input_is_one_line(
    log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    filled = [text.format(log=log, dir=log.parent) for text in arguments]
    assert main(["analyze", "--processes", "1", *filled]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"prefixpilot analyze: {message.format(log=log, dir=log.parent)}\n"
    assert captured.out == ""
