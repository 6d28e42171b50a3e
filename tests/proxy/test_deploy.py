"""The files of ``deploy/``: what they name exists, and what they promise of the time to stop is kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prefixpilot.cli.serve_settings import ServeSettings
from prefixpilot.proxy.configuration import Sources, load, schema
from prefixpilot.proxy.server import STOP_SLACK_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_settings_file_is_read_as_it_is() -> None:
    loaded = load(ServeSettings, Sources(file=DEPLOY / "prefixpilot.toml"))
    assert loaded.settings.log.format == "json"
    assert loaded.warnings == ()


def test_what_its_comments_suggest_are_settings_too() -> None:
    text = (DEPLOY / "prefixpilot.toml").read_text()
    active = re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE)
    known = {setting.path for setting in schema(ServeSettings)}
    document = tomllib.loads(active)
    named = {
        (key,) if not isinstance(value, dict) else (key, inner)
        for key, value in document.items()
        for inner in (value if isinstance(value, dict) else ("",))
    }
    assert ("tenants", "cache_salt_secret_file") in named
    assert named <= known


def test_the_unit_waits_longer_than_the_proxy_drains() -> None:
    unit = (DEPLOY / "prefixpilot.service").read_text()
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1])  # type: ignore[index]
    drain = load(ServeSettings, Sources(file=DEPLOY / "prefixpilot.toml")).settings.drain_timeout
    assert stop > drain + 2 * STOP_SLACK_S


def test_the_variables_of_the_image_are_read() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    named = set(re.findall(r"PREFIXPILOT_[A-Z_]+", text)) - {"PREFIXPILOT_", "PREFIXPILOT_CONFIG"}
    assert named == {"PREFIXPILOT_ENGINE", "PREFIXPILOT_HOST", "PREFIXPILOT_LOG_FORMAT", "PREFIXPILOT_ADMIN_TOKEN_FILE"}
    assert named <= {setting.env for setting in schema(ServeSettings)}


def instructions() -> list[list[str]]:
    """Of the Containerfile, split into words; comments left out, lines that go on joined."""
    lines = (line for line in (DEPLOY / "Containerfile").read_text().splitlines() if not line.startswith("#"))
    return [line.split() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


def test_what_the_image_is_built_of_is_there() -> None:
    """All that the build reads: what is copied exists, the build hook and what the metadata names are copied."""
    copied = [
        word for words in instructions() if words[0] == "COPY" and "--from" not in words[1] for word in words[1:-1]
    ]
    assert all((DEPLOY.parent / name).exists() for name in copied)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    metadata = project["project"]
    assert {"pyproject.toml", "src", "hatch_build.py", metadata["readme"]} <= set(copied)
    (installed,) = re.findall(r'"\.\[([a-z0-9,]+)\]"', (DEPLOY / "Containerfile").read_text())
    assert set(installed.split(",")) <= metadata["optional-dependencies"].keys()


def test_the_image_starts_a_command_that_there_is_with_its_variables() -> None:
    """The entry point, as the wheel installs it, with the image's environment: it reads it and prints it."""
    (entry,) = [json.loads(" ".join(words[1:])) for words in instructions() if words[0] == "ENTRYPOINT"]
    scripts = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(entry[0]).name in scripts
    (given,) = [dict(word.split("=", 1) for word in words[1:]) for words in instructions() if words[0] == "ENV"]
    command = [sys.executable, "-m", "prefixpilot.cli", *entry[1:], "--print-config"]
    environment = {**os.environ, **given, "PREFIXPILOT_ENGINE": "http://host.containers.internal:8000"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    printed = tomllib.loads(run.stdout)
    assert (printed["host"], printed["log"]["format"]) == ("0.0.0.0", "json")
    port = next(int(words[1]) for words in instructions() if words[0] == "EXPOSE")
    assert printed["port"] == port
    (check,) = [
        json.loads(" ".join(words[words.index("CMD") + 1 :])) for words in instructions() if words[0] == "HEALTHCHECK"
    ]
    assert f"http://127.0.0.1:{port}/healthz" in check[-1]
    compile(check[-1], "healthcheck", "exec")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "prefixpilot.service").read_text()
    path = tmp_path / "prefixpilot.service"
    path.write_text(unit.replace("/opt/prefixpilot/bin/prefixpilot ", "/bin/true "))
    run = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in run.stderr.splitlines() if "prefixpilot.service" in line]
    assert ours == []
