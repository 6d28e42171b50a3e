"""What all commands share: help, version, errors, outputs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prefixpilot import COMPILED, __version__
from prefixpilot.cli import main
from prefixpilot.cli.outputs import open_outputs, print_summary
from prefixpilot.errors import ConfigError

BOUND_S = 60


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefixpilot.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"prefixpilot {__version__} ({'compiled' if COMPILED else 'pure Python'})\n"


@pytest.mark.parametrize("command", ["plan", "run", "replay", "serve", "demo"])
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"prefixpilot {command} " in out
    assert "examples:" in out
    assert "exit status" in out


def test_no_command_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("prefixpilot: the following arguments are required: COMMAND")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from prefixpilot.cli import build_parser\n"
        "build_parser().format_help()\n"
        "print([m for m in ('numpy', 'tqdm', 'aiohttp', 'starlette', 'uvicorn', 'xllamacpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND_S, check=True)
    assert done.stdout == "[]\n"


def test_the_module_is_the_command() -> None:
    done = run("plan", "nowhere.jsonl")
    assert done.returncode == 2
    assert done.stderr == "prefixpilot plan: nowhere.jsonl: No such file or directory; give a file that can be read\n"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = [{"trace": "t", "tokens": [1]}, *({"request_id": f"r{i}", "blocks": [0]} for i in range(2000))]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "prefixpilot.cli", "plan", str(trace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(BOUND_S) == 141
        assert process.stderr.read() == ""


def test_an_output_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open_outputs(str(path)) as (out,):
        out.write_line({"a": 1})
        assert not path.exists()
    assert path.read_text() == '{"a": 1}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_an_error_leaves_no_output(tmp_path: Path, name: str) -> None:
    with pytest.raises(ZeroDivisionError), open_outputs(str(tmp_path / name)) as (out,):
        out.write_line(1)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.touch(mode=0o600)
    link.symlink_to(path)
    with open_outputs(str(link)) as (out,):
        out.write_line(1)
    assert link.is_symlink()
    assert path.read_text() == "1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["missing/out", ""])
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="give a file that can be written"), open_outputs(str(tmp_path / name)):
        pytest.fail("opened")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_full_disk_names_the_file(tmp_path: Path, suffix: str) -> None:
    link = tmp_path / f"full{suffix}"
    link.symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"full.*No space left"), open_outputs(str(link)) as (out,):
        out.write_line("x" * 100_000)
    assert Path("/dev/full").is_char_device()


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with open_outputs(str(path)) as (out,):
            out.write_line(1)
        assert os.read(reader, 10) == b"1\n"
    finally:
        os.close(reader)


def test_a_summary_survives_any_terminal(tmp_path: Path) -> None:
    with (tmp_path / "terminal").open("w", encoding="ascii") as stream:
        print_summary("caf\u00e9 \udcff", stream)
    assert (tmp_path / "terminal").read_text() == "caf\\xe9 \\udcff\n"


@pytest.mark.parametrize(
    ("flags", "hint"), [(["--enginee", "x"], "did you mean --engine?"), (["--prot=1"], "--port"), (["--zzzz"], "")]
)
def test_a_flag_that_is_nearly_one_is_told(flags: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *flags])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and hint in said and said.count("\n") == 1
    assert ("did you mean" in said) == bool(hint)


@pytest.mark.parametrize(
    "command",
    [["run", "batch.jsonl"], ["bench", "t.jsonl", "--out", "o"], ["quality", "t.jsonl", "--out", "o"]],
    ids=lambda words: str(words[0]),
)
def test_one_engine_is_asked_and_a_second_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of several, argparse would take the last without a word."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--engine", "http://127.0.0.1:1", "--engine", "http://127.0.0.1:2"])
    assert ended.value.code == 2
    assert "--engine: is given twice" in capsys.readouterr().err
