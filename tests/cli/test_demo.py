"""``prefixpilot demo`` as a process, on the tiny model: the real engine and proxy, nonsense as text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BOUND_S = 240.0


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefixpilot.cli", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)


@pytest.mark.engine
def test_json_holds_both_arms_and_mode_on_prefills_less(tiny_model: Path) -> None:
    run = demo("--model", str(tiny_model), "--threads", "1", "--json")
    assert run.returncode == 0, run.stderr
    requests = len(json.loads(run.stdout)["arms"]["on"]["requests"])
    told = [f"mode {mode}: {done} of {requests} requests" for mode in ("off", "on") for done in (1, requests)]
    assert run.stderr == "".join(f"prefixpilot demo: {line}\n" for line in told), "it is no terminal"
    result = json.loads(run.stdout)
    off, on = result["arms"]["off"], result["arms"]["on"]
    assert len(off["requests"]) == len(on["requests"]) > 10
    assert on["prefilled_tokens"] < off["prefilled_tokens"]
    assert {"cpu", "cores"} <= result["machine"].keys()


@pytest.mark.engine
def test_the_table_names_both_modes_and_the_engine(tiny_model: Path) -> None:
    run = demo("--model", str(tiny_model), "--threads", "1")
    assert run.returncode == 0, run.stderr
    for words in ("mode off", "mode on", "ratio", "cached tokens", "TTFT median", tiny_model.stem):
        assert words in run.stdout


@pytest.mark.parametrize(
    ("options", "named"), [(["--model", "no-such.gguf"], "no-such.gguf"), (["--threads", "0"], "threads")]
)
def test_bad_input_is_one_line_and_status_2(options: list[str], named: str) -> None:
    run = demo(*options)
    assert run.returncode == 2
    assert run.stdout == ""
    lines = run.stderr.rstrip("\n").split("\n")
    assert len(lines) == 1 and lines[0].startswith("prefixpilot demo: ") and named in lines[0]


def test_help_says_what_is_measured() -> None:
    text = demo("--help").stdout
    for word in ("TTFT", "prefilled", "cached", "--json"):
        assert word in text
