"""NarrativeQA: questions about whole books and film scripts, each with two answers by people who read a summary.

Tomáš Kočiský et al., "The NarrativeQA Reading Comprehension Challenge", TACL 2018, arXiv 1712.07040. Licence:
Apache-2.0 (the stories keep that of their sources). Files: ``documents.csv``, ``qaps.csv`` and
``third_party/wikipedia/summaries.csv`` of the authors' repository; where its script has fetched the stories
(``tmp/ID.content``), these are the documents, else the summaries. Hub: ``deepmind/narrativeqa``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prefixpilot.core import ContextBlock
from prefixpilot.workloads.files import one_of, read_rows
from prefixpilot.workloads.hub import Hub
from prefixpilot.workloads.questions import Question, QuestionSet, blocks_of, passages

HUB: Final = "deepmind/narrativeqa"
SPLIT: Final = "test"


def read(path: Path) -> QuestionSet:
    """The test part, from the folder of the repository.

    Raises:
        TraceError: a file is missing, or is not as published.
    """
    titles = {
        row.text("document_id"): row.text("wiki_title", "")
        for row in read_rows(one_of(path, "documents.csv"), ("document_id", "wiki_title"))
    }
    summaries = read_rows(one_of(path, "summaries.csv"), ("document_id", "set", "summary"))
    blocks = {}
    for row in summaries:
        name = row.text("document_id")
        if row.text("set") == SPLIT:
            blocks[name] = _blocks(name, titles.get(name, ""), _story(path, name) or row.text("summary"))
    asked = [
        _question(str(number), row.text("question"), (row.text("answer1"), row.text("answer2")))
        for number, row in enumerate(read_rows(one_of(path, "qaps.csv"), ("set", "question", "answer1", "answer2")))
        if row.text("set") == SPLIT
    ]
    return _of(blocks, asked)


def of_hub(hub: Hub) -> QuestionSet:
    """The test part from the hub. Raises as :class:`Hub`."""
    blocks: dict[str, list[ContextBlock]] = {}
    asked = []
    for number, row in enumerate(hub.rows(SPLIT)):
        document = row.entry("document")
        name, summary = document.text("id"), document.entry("summary")
        if name not in blocks:
            blocks[name] = _blocks(name, summary.text("title", ""), document.text("text", "") or summary.text("text"))
        answers = tuple(answer.text("text") for answer in row.entries("answers"))
        asked.append(_question(str(number), row.entry("question").text("text"), answers))
    return _of(blocks, asked)


def _of(blocks: Mapping[str, list[ContextBlock]], asked: list[Question]) -> QuestionSet:
    return QuestionSet("narrativeqa", {"": [block for found in blocks.values() for block in found]}, asked)


def _blocks(name: str, title: str, story: str) -> list[ContextBlock]:
    return blocks_of(name, passages(story.split("\n\n")), title or None)


def _question(number: str, text: str, answers: tuple[str, ...]) -> Question:
    return Question(f"q{number}", text, tuple(dict.fromkeys(answer for answer in answers if answer)))


def _story(path: Path, name: str) -> str | None:
    file = path / "tmp" / f"{name}.content"
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
