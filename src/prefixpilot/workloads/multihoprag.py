"""MultiHop-RAG: 2,556 questions over 609 news articles, each answered from two to four of them.

Yixuan Tang and Yi Yang, "MultiHop-RAG: Benchmarking Retrieval-Augmented Generation for Multi-Hop Queries", COLM 2024,
arXiv 2401.15391. Licence: ODC-BY 1.0. Files: ``corpus.json`` and ``MultiHopRAG.json`` of the authors' repository
(``dataset/``) or of the hub (``yixuantt/MultiHopRAG``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prefixpilot.core import ContextBlock
from prefixpilot.workloads.files import one_of, read_entries
from prefixpilot.workloads.hub import Hub
from prefixpilot.workloads.questions import Entry, Question, QuestionSet, blocks_of, holding, passages

HUB: Final = "yixuantt/MultiHopRAG"


def read(path: Path) -> QuestionSet:
    """The set from a folder that holds both files.

    Raises:
        TraceError: one is missing, or is not as published.
    """
    return parse(read_entries(one_of(path, "corpus.json")), read_entries(one_of(path, "MultiHopRAG.json")))


def of_hub(hub: Hub) -> QuestionSet:
    """The set from the hub. Raises as :class:`Hub`."""
    return parse(hub.rows("train", "corpus"), hub.rows("train", "MultiHopRAG"))


def parse(articles: Sequence[Entry], questions: Sequence[Entry]) -> QuestionSet:
    """The set from its rows. Evidence is found by the titles and facts that a question names."""
    by_title: dict[str, list[ContextBlock]] = {}
    for number, article in enumerate(articles):
        title = article.text("title")
        found = blocks_of(f"a{number}", passages(article.text("body").split("\n\n")), title)
        by_title.setdefault(title, []).extend(found)
    asked = []
    for number, row in enumerate(questions):
        evidence = [
            block
            for item in row.entries("evidence_list")
            for block in holding(by_title.get(item.text("title"), ()), [item.text("fact")])
        ]
        answer = (row.text("answer"),)
        asked.append(Question(f"q{number}", row.text("query"), answer, tuple(dict.fromkeys(evidence))))
    return QuestionSet("multihoprag", {"": [block for blocks in by_title.values() for block in blocks]}, asked)
