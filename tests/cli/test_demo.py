"""``prefixpilot demo`` as a process, on the tiny model: the real engine and proxy, nonsense as text.

Its JSON is tested on the simulated engine: a second run of the real one, half a minute long, would show nothing more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bench.test_demo import simulated_endpoint

from prefixpilot.bench.demo import load_requests
from prefixpilot.cli import build_parser, main
from prefixpilot.cli import demo as demo_command

BOUND_S = 240.0


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefixpilot.cli", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)


@pytest.mark.engine
def test_the_table_of_a_real_engine(tiny_model: Path) -> None:
    run = demo("--model", str(tiny_model), "--threads", "1")
    assert run.returncode == 0, run.stderr
    for words in (
        "mode off",
        "mode on",
        "ratio",
        "cached tokens",
        "TTFT median",
        tiny_model.stem,
        "embedded llama.cpp",
    ):
        assert words in run.stdout
    (prefilled,) = [line for line in run.stdout.splitlines() if line.startswith("| prefilled tokens")]
    off, on = (int(cell.replace(",", "")) for cell in prefilled.split("|")[2:4])
    assert 0 < on < off
    requests = len(load_requests())
    told = [f"mode {mode}: {done} of {requests} requests" for mode in ("off", "on") for done in (1, requests)]
    assert run.stderr == "".join(f"prefixpilot demo: {line}\n" for line in told), "it is no terminal"


def test_json_holds_both_arms_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = build_parser().parse_args(["demo", "--json"])
    assert demo_command.run(arguments, simulated_endpoint) == 0
    result = json.loads(capsys.readouterr().out)
    off, on = result["arms"]["off"], result["arms"]["on"]
    assert len(off["requests"]) == len(on["requests"]) > 10
    assert on["prefilled_tokens"] < off["prefilled_tokens"]
    assert {"cpu", "cores"} <= result["machine"].keys()


@pytest.mark.parametrize(
    ("options", "named"), [(["--model", "no-such.gguf"], "no-such.gguf"), (["--threads", "0"], "threads")]
)
def test_bad_input_is_one_line_and_status_2(options: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 2
    out, err = capsys.readouterr()
    lines = err.rstrip("\n").split("\n")
    assert (out, len(lines)) == ("", 1) and lines[0].startswith("prefixpilot demo: ") and named in lines[0]


def test_help_says_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    text = capsys.readouterr().out
    for word in ("TTFT", "prefilled", "cached", "--json"):
        assert word in text
