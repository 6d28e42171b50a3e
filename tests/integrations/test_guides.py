"""The guides' samples that need a framework, as they stand on the page."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from tests.docs.pages import DOCS, Fence, fences

from prefixpilot.testing import SimulatedEngine

pytestmark = pytest.mark.integrations
ENGINE = "http://127.0.0.1:8000"
MODULES = {"langchain": "langchain_openai", "llamaindex": "llama_index", "haystack": "haystack", "litellm": "litellm"}
FENCES = {path.name: fences(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("guides/*.md"))}
SAMPLES = [(name, fence) for name, found in FENCES.items() for fence in found if fence.needs]


@pytest.mark.parametrize(("page", "fence"), SAMPLES, ids=[f"{name}:{fence.line}" for name, fence in SAMPLES])
def test_a_sample_runs(page: str, fence: Fence) -> None:
    if importlib.util.find_spec(MODULES.get(fence.needs, fence.needs)) is None:
        pytest.skip(f"{fence.needs} is not installed; run `make test-integrations`")
    with SimulatedEngine() as engine:
        code = fence.text.replace(ENGINE, engine.base_url)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, run.stderr
        assert engine.chats
    behind = next((other for other in FENCES[page] if other.line > fence.line), None)
    told = behind is not None and behind.language == "text"
    assert run.stdout == (behind.text if told and behind is not None else "This is a simulated answer.\n")


def test_there_are_samples_of_each_framework() -> None:
    assert {fence.needs for _, fence in SAMPLES} == {*MODULES, "agents"}
