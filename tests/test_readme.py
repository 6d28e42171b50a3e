"""The README's library example runs as it stands, and its commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def fenced(language: str) -> list[str]:
    """The README's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_library_example_runs_and_prints_what_it_says() -> None:
    example = next(block for block in fenced("python") if "import ContextPilot" in block)
    run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == fenced("text")[0]


def test_every_python_block_compiles() -> None:
    for block in fenced("python"):
        compile(block, "README.md", "exec")


def test_the_make_targets_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z]+)`?", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_json_of_its_curl_lines_parses() -> None:
    bodies = re.findall(r"-d '(\{.*?\})'", README, flags=re.DOTALL)
    assert bodies
    for body in bodies:
        assert json.loads(body)["context_blocks"]
