"""Data sets as the hub lays them out, read by the real `datasets` from folders in its layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.workloads.test_published import ARTICLES, MULTIHOP, PAPER

from prefixpilot.errors import TraceError
from prefixpilot.workloads import multihoprag, narrativeqa, qasper
from prefixpilot.workloads.hub import Hub

pytestmark = pytest.mark.integrations
pytest.importorskip("datasets", reason="run `make test-integrations`")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def folder(path: Path, configurations: dict[str, dict[str, list[Any]]]) -> Hub:
    """A data set of configurations and their parts."""
    lines = ["---", "configs:"]
    for name, parts in configurations.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        for part, rows in parts.items():
            file = f"{name}-{part}.jsonl"
            (path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
            lines += [f"  - split: {part}", f"    path: {file}"]
    (path / "README.md").write_text("\n".join([*lines, "---", ""]))
    return Hub(str(path))


def test_multihoprag(tmp_path: Path) -> None:
    hub = folder(tmp_path, {"corpus": {"train": ARTICLES}, "MultiHopRAG": {"train": MULTIHOP}})
    found = multihoprag.of_hub(hub)
    assert found == multihoprag.parse(hub.rows("train", "corpus"), hub.rows("train", "MultiHopRAG"))
    assert found.questions[0].evidence == ("a0/0", "a1/0")
    assert len(found.workload("hub", 15).requests) == 2


def test_narrativeqa(tmp_path: Path) -> None:
    document = {"id": "d1", "text": "", "summary": {"title": "Book", "text": "Ann mills."}}
    rows = [
        {"document": document, "question": {"text": asked}, "answers": [{"text": "Ann"}, {"text": "Ann."}]}
        for asked in ("Who mills?", "What does Ann do?")
    ]
    found = narrativeqa.of_hub(folder(tmp_path, {"default": {"test": rows}}))
    assert [block.text for block in found.corpora[""]] == ["Ann mills."]
    assert [question.answers for question in found.questions] == [("Ann", "Ann.")] * 2


def test_qasper_stands_there_by_columns(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = PAPER["qas"]  # type: ignore[assignment]
    given = [[{"evidence": [], "free_form_answer": "", **a["answer"]} for a in q["answers"]] for q in asked]
    row = {
        "id": "1909.1",
        "title": PAPER["title"],
        "abstract": PAPER["abstract"],
        "full_text": {"section_name": ["Data"], "paragraphs": [["We use MillBank, a corpus of mills."]]},
        "qas": {
            "question": [q["question"] for q in asked],
            "answers": [{"answer": answers, "worker_id": ["w"] * len(answers)} for answers in given],
        },
    }
    found = qasper.of_hub(folder(tmp_path, {"qasper": {"validation": [row]}}))
    assert [question.answers for question in found.questions] == [("MillBank, 91", "MillBank"), ("Yes",)]
    assert found.questions[0].evidence == ("1909.1/0",)


def test_what_is_not_there(tmp_path: Path) -> None:
    hub = folder(tmp_path, {"corpus": {"train": ARTICLES}})
    for split, name in (("test", "corpus"), ("train", "MultiHopRAG")):
        with pytest.raises(TraceError, match="give the path of the files instead"):
            hub.rows(split, name)
