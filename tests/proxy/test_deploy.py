"""The files of ``deploy/``: what they name exists, and what they promise of the time to stop is kept."""

from __future__ import annotations

import re
import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "prefixpilot.service").read_text()
    path = tmp_path / "prefixpilot.service"
    path.write_text(unit.replace("/opt/prefixpilot/bin/prefixpilot ", "/bin/true "))
    run = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in run.stderr.splitlines() if "prefixpilot.service" in line]
    assert ours == []
