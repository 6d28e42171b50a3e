"""Logs that say what an analysis must find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[[Iterable[Any]], Path]


@pytest.fixture
def write_log(tmp_path: Path) -> Write:
    """Writes lines to a file; strings as they are."""

    def write(lines: Iterable[Any]) -> Path:
        path = tmp_path / "log.jsonl"
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(text) + "\n")
        return path

    return write


def document(number: int) -> str:
    """About 250 tokens that stand nowhere else."""
    words = " ".join(f"fact{number}x{i}" for i in range(90))
    return f"Report {number}. {words}"


def documents(numbers: Iterable[int]) -> str:
    """As many applications write them."""
    units = (
        f"<document>\n<source>report-{i}.md</source>\n<document_content>\n{document(i)}\n</document_content>\n</document>"
        for i in numbers
    )
    return "<documents>\n" + "\n".join(units) + "\n</documents>"


def chat(*messages: str, system: str = "Answer from the documents.", model: str = "llama") -> dict[str, Any]:
    """A chat whose messages are by turns the user's and the assistant's."""
    roles = ("user", "assistant")
    spoken = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    return {"model": model, "messages": [{"role": "system", "content": system}, *spoken]}
