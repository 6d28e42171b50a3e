"""The programs of ``examples/``: short, those of the cookbook, and they print there what they print here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.docs.pages import ROOT, cookbook, fences, with_examples

from prefixpilot.proxy import ProxySettings, serve_in_thread
from prefixpilot.testing import SimulatedCall, SimulatedEngine, SimulatedReply

PROGRAMS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("*.py"))
PAGES = {path.name: path.read_text(encoding="utf-8") for path in cookbook()}
READS = ("app.py", "lib.py", "app.py")


def shown() -> Iterator[tuple[str, str]]:
    """Each program that a page shows, and what stands behind it there."""
    for page in PAGES.values():
        found = fences(page)
        for fence, behind in pairwise(found):
            if fence.title.startswith("examples/"):
                assert behind.language == "text", fence.title
                yield fence.title, behind.text


def reply(body: Mapping[str, Any]) -> str | SimulatedReply:
    """Where there are tools, files are read, one of them twice; then the answer."""
    done = sum(message["role"] == "tool" for message in body["messages"])
    if "tools" not in body or done == len(READS):
        return "This is a simulated answer."
    return SimulatedReply(calls=(SimulatedCall(f"call_{done}", "read_file", f'{{"path": "{READS[done]}"}}'),))


@contextmanager
def base_url(program: str) -> Iterator[str]:
    """Of the engine, or of a proxy in front of it."""
    with SimulatedEngine(reply=reply) as engine:
        if not program.endswith("_proxy.py"):
            yield f"{engine.base_url}/v1"
            return
        with serve_in_thread(ProxySettings(engine.base_url, port=0)) as proxy:
            yield f"{proxy.url}/v1"
        unchanged = [chat for chat in engine.chats if "[Unchanged: same text as the latest" in chat.body.decode()]
        assert unchanged, "the proxy has named the file that was read again"


def test_every_program_is_short_and_on_a_page() -> None:
    assert sorted(program for program, _ in shown()) == PROGRAMS
    for program in PROGRAMS:
        assert len((ROOT / program).read_text(encoding="utf-8").splitlines()) <= 40, program


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_show_the_programs_as_they_are(page: str) -> None:
    assert with_examples(PAGES[page]) == PAGES[page], "run `make docs-update`"


@pytest.mark.parametrize(("program", "output"), list(shown()), ids=lambda value: value if value in PROGRAMS else "")
def test_a_program_prints_what_its_page_says(program: str, output: str) -> None:
    with base_url(program) as url:
        environ = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "-W", "error", program]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environ, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == output
