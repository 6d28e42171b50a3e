"""QASPER: 5,049 questions over 1,585 papers on natural language processing, with the paragraphs that answer them.

Pradeep Dasigi et al., "A Dataset of Information-Seeking Questions and Answers Anchored in Research Papers", NAACL 2021,
arXiv 2105.03011. Licence: CC BY 4.0. Files: ``qasper-dev-v0.3.json`` and its like (all that a folder holds). Hub:
``allenai/qasper``, its validation part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prefixpilot.core import ContextBlock
from prefixpilot.workloads.files import one_of, read_json
from prefixpilot.workloads.hub import Hub
from prefixpilot.workloads.questions import Entry, Question, QuestionSet, blocks_of, holding, passages

HUB: Final = "allenai/qasper"
FILES: Final = "qasper-*.json"


def read(path: Path) -> QuestionSet:
    """The set from a file, or from all of a folder.

    Raises:
        TraceError: there is none, or one is not as published.
    """
    first = one_of(path, FILES)
    files = [first] if path.is_file() else sorted(path.rglob(FILES))
    return parse(paper for file in files for paper in Entry(str(file), read_json(file)).named())


def of_hub(hub: Hub) -> QuestionSet:
    """The validation part from the hub, where lists of objects are objects of lists. Raises as :class:`Hub`."""
    return parse((row.text("id"), row) for row in hub.rows("validation", turned=True))


def parse(papers: Iterable[tuple[str, Entry]]) -> QuestionSet:
    """The set from its papers, by name. Passages keep to their sections; one index holds all papers."""
    corpus: list[ContextBlock] = []
    asked: list[Question] = []
    for name, paper in papers:
        sections = paper.entries("full_text")
        texts = [paper.text("abstract", ""), *(text for s in sections for text in s.texts("paragraphs"))]
        blocks = blocks_of(name, passages(texts), paper.text("title"))
        corpus += blocks
        asked += _questions(name, paper, blocks)
    return QuestionSet("qasper", {"": corpus}, asked)


def _questions(name: str, paper: Entry, blocks: list[ContextBlock]) -> Iterator[Question]:
    for number, asked in enumerate(paper.entries("qas")):
        given = [answer.entry("answer") for answer in asked.entries("answers")]
        answers = dict.fromkeys(text for text in map(_answer, given) if text)
        evidence = [text for answer in given for text in answer.texts("evidence") if not text.startswith("FLOAT")]
        yield Question(f"{name}/q{number}", asked.text("question"), tuple(answers), holding(blocks, evidence))


def _answer(given: Entry) -> str | None:
    """As the authors' evaluation writes it; ``None`` where the paper has no answer."""
    if given.flag("unanswerable"):
        return None
    spans, free = given.texts("extractive_spans"), given.text("free_form_answer", "")
    if spans or free:
        return ", ".join(spans) or free
    yes = given.flag("yes_no")
    return None if yes is None else "Yes" if yes else "No"
