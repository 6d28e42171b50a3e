"""``prefixpilot plan --ray`` on a real Ray: the same as without, nearly; and it goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.cli import main
from prefixpilot.workloads.synthetic import topical

ray = pytest.importorskip("ray", reason="Ray is not installed (make test-ray)")
pytestmark = pytest.mark.ray

REQUESTS = 3_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = topical(REQUESTS)
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    lines = [json.dumps({"trace": made.name, "tokens": list(made.tokens)})]
    lines.extend(json.dumps({"request_id": f"r{n}", "blocks": blocks}) for n, blocks in enumerate(made.contexts))
    path.write_text("\n".join(lines) + "\n")
    return path


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["plan", *args, "--json"]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def test_a_plan_by_ray_saves_what_the_plan_of_one_process_saves_and_goes_on_after_a_stop(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """The first time with a Ray of its own, that is gone behind it; then on one that runs, and is left running."""
    alone = plan(capsys, str(trace), "-o", str(tmp_path / "alone.jsonl"))
    out = tmp_path / "ray.jsonl"
    before = ray.is_initialized()
    by_ray = plan(capsys, str(trace), "-o", str(out), "--ray", "--parts", "2", "--keep-parts")
    assert ray.is_initialized() is before, "left as it was"
    assert by_ray["predicted_cached_tokens"] > 0.99 * alone["predicted_cached_tokens"]
    whole = out.read_bytes()
    assert len({json.loads(line)["request_id"] for line in whole.splitlines()}) == REQUESTS

    parts = sorted((tmp_path / "ray.jsonl.parts").glob("*.jsonl"))
    assert b"".join(part.read_bytes() for part in parts) == whole
    request.getfixturevalue("running_ray")
    out.unlink()
    parts[1].unlink()  # as if stopped before it was written
    kept = parts[0].stat().st_mtime_ns
    plan(capsys, str(trace), "-o", str(out), "--ray", "--parts", "2", "--keep-parts")
    assert out.read_bytes() == whole
    assert parts[0].stat().st_mtime_ns == kept

    plan(capsys, str(trace), "-o", str(out), "--ray", "--parts", "2")
    assert out.read_bytes() == whole
    assert not (tmp_path / "ray.jsonl.parts").exists()
    assert ray.is_initialized()
