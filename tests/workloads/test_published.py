"""Public data sets, from small files in their published layouts, written here."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from prefixpilot.blocks import estimate_tokens
from prefixpilot.cli import main
from prefixpilot.errors import TraceError
from prefixpilot.workloads import Workload, read_workload
from prefixpilot.workloads.hub import _turned
from prefixpilot.workloads.questions import passages

ARTICLES = [
    {
        "title": "Mills reopen",
        "body": "Four mills reopened.\n\nThe oldest has 91 stones.",
        "source": "Post",
        "url": "u1",
    },
    {"title": "Grain prices", "body": "Prices of grain fell in autumn.", "source": "Daily", "url": "u2"},
]
MULTIHOP = [
    {
        "query": "How many stones has the oldest of the mills, and what fell in autumn?",
        "answer": "91, grain prices",
        "question_type": "inference_query",
        "evidence_list": [
            {"title": "Mills reopen", "fact": "The oldest has 91 stones."},
            {"title": "Grain prices", "fact": "Prices of grain fell"},
            {"title": "Not in the corpus", "fact": "x"},
        ],
    },
    {"query": "Who reopened?", "answer": "Four mills", "question_type": "comparison_query", "evidence_list": []},
]
PAPER = {
    "title": "Milling with attention",
    "abstract": "We mill grain.",
    "full_text": [
        {"section_name": "Data", "paragraphs": ["We use MillBank, a corpus of mills.", "It has 91 stones."]},
        {"section_name": None, "paragraphs": []},
    ],
    "qas": [
        {
            "question": "Which corpus of mills?",
            "question_id": "k1",
            "answers": [
                {"answer": _answer}
                for _answer in (
                    {
                        "unanswerable": False,
                        "extractive_spans": ["MillBank", "91"],
                        "yes_no": None,
                        "free_form_answer": "",
                        "evidence": ["We use MillBank, a corpus of mills.", "FLOAT SELECTED: Table 1"],
                    },
                    {"unanswerable": False, "extractive_spans": [], "yes_no": None, "free_form_answer": "MillBank"},
                    {"unanswerable": True, "extractive_spans": [], "yes_no": None, "free_form_answer": ""},
                )
            ],
        },
        {
            "question": "Is grain milled?",
            "question_id": "k2",
            "answers": [{"answer": {"unanswerable": False, "extractive_spans": [], "yes_no": True}}],
        },
    ],
}
TASKS = [
    {
        "conversation_id": "c1",
        "task_id": f"c1::{turn}",
        "turn": turn,
        "Multi-Turn": float("nan"),
        "contexts": [{"document_id": name, "text": f"{name}: a mill", "title": "t", "score": 3} for name in found],
        "input": [{"speaker": "user", "text": f"question {n}"} for n in range(1, turn + 1)],
        "targets": [{"speaker": "agent", "text": f"answer {turn}"}],
    }
    for turn, found in ((2, ["p2", "p1"]), (1, ["p1", "p1"]))
]
TALK = [
    {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "session_1_date_time": "1:00 pm on 2 May, 2023",
            "session_1": [
                {"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a mill."},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "Nice stones!", "blip_caption": "a mill by a river"},
            ],
            "session_2_date_time": "2:00 pm on 9 May, 2023",
            "session_2": [{"speaker": "Ann", "dia_id": "D2:1", "text": "It has 91 stones."}],
        },
        "qa": [
            {"question": "How many stones?", "answer": 91, "evidence": ["D2:1; D1:2"], "category": 1},
            {"question": "When was the bridge sold?", "adversarial_answer": "May", "evidence": [], "category": 5},
        ],
    }
]


def written(path: Path, value: Any) -> Path:
    path.write_text("".join(map(_line, value)) if path.suffix == ".jsonl" else json.dumps(value))
    return path


def _line(value: Any) -> str:
    return json.dumps(value) + "\n"


def table(path: Path, *rows: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def ids(workload: Workload, request_id: str) -> list[Any]:
    entry = next(entry for entry in workload.requests if entry.request.request_id == request_id)
    return [block.id for block in entry.request.blocks]


def by_id(workload: Workload) -> dict[str, Any]:
    return {str(entry.request.request_id): entry for entry in workload.requests}


def test_multihoprag(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    written(tmp_path / "dataset" / "corpus.json", ARTICLES)
    written(tmp_path / "dataset" / "MultiHopRAG.json", MULTIHOP)
    workload = read_workload(f"multihoprag:{tmp_path}")
    assert workload.name == "multihoprag"
    first = by_id(workload)["q0"]
    assert first.answers == ("91, grain prices",)
    assert first.evidence == ("a0/0", "a1/0")
    assert set(ids(workload, "q0")) == {"a0/0", "a1/0"}
    block = next(block for block in first.request.blocks if block.id == "a0/0")
    assert (block.title, block.text) == ("Mills reopen", "Four mills reopened.\n\nThe oldest has 91 stones.")
    assert len(ids(read_workload(f"multihoprag/1:{tmp_path}"), "q0")) == 1


def test_narrativeqa(tmp_path: Path) -> None:
    documents = [{"document_id": n, "set": s, "wiki_title": f"Book {n}"} for n, s in (("d1", "test"), ("d2", "train"))]
    table(tmp_path / "documents.csv", *documents)
    summaries = [
        {"document_id": n, "set": s, "summary": f"Ann of {n} mills."} for n, s in (("d1", "test"), ("d2", "train"))
    ]
    table(tmp_path / "third_party" / "wikipedia" / "summaries.csv", *summaries)
    asked = [
        {"document_id": "d1", "set": "test", "question": "Who mills?", "answer1": "Ann", "answer2": "Ann of d1"},
        {"document_id": "d2", "set": "train", "question": "Who?", "answer1": "Bo", "answer2": "Bo"},
    ]
    table(tmp_path / "qaps.csv", *asked)
    entry = by_id(read_workload(f"narrativeqa:{tmp_path}"))["q0"]
    assert entry.answers == ("Ann", "Ann of d1")
    assert [(b.id, b.title, b.text) for b in entry.request.blocks] == [("d1/0", "Book d1", "Ann of d1 mills.")]
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "d1.content").write_text("Chapter one.\n\nAnn mills all day.")
    story = by_id(read_workload(f"narrativeqa:{tmp_path}"))["q0"]
    assert story.request.blocks[0].text == "Chapter one.\n\nAnn mills all day."


def test_qasper(tmp_path: Path) -> None:
    written(tmp_path / "qasper-dev-v0.3.json", {"1909.1": PAPER})
    workload = read_workload(f"qasper/5:{tmp_path}")
    first, second = by_id(workload)["1909.1/q0"], by_id(workload)["1909.1/q1"]
    assert first.answers == ("MillBank, 91", "MillBank")
    assert first.evidence == ("1909.1/0",)
    assert ids(workload, "1909.1/q0") == ["1909.1/0"]
    assert second.answers == ("Yes",)
    text = "We mill grain.\n\nWe use MillBank, a corpus of mills.\n\nIt has 91 stones."
    assert first.request.blocks[0].text == text


def test_mtrag(tmp_path: Path) -> None:
    workload = read_workload(f"mtrag:{written(tmp_path / 'RAG.jsonl', TASKS)}")
    assert [(e.session_id, e.turn, e.query) for e in workload.requests] == [
        ("c1", 0, "question 1"),
        ("c1", 1, "question 2"),
    ]
    assert [ids(workload, f"c1::{turn}") for turn in (1, 2)] == [["p1"], ["p2", "p1"]]
    assert workload.requests[1].answers == ("answer 2",)
    workload.as_conversations()


def test_locomo(tmp_path: Path) -> None:
    workload = read_workload(f"locomo:{written(tmp_path / 'locomo10.json', TALK)}")
    first, second = by_id(workload)["conv-1/q0"], by_id(workload)["conv-1/q1"]
    assert first.answers == ("91",)
    assert first.evidence == ("conv-1/D2:1", "conv-1/D1:2")
    assert second.answers == ("May",)
    texts = {block.id: block.text for block in first.request.blocks}
    assert texts["conv-1/D1:2"] == "[1:00 pm on 2 May, 2023] Bo: Nice stones! [shared a photo: a mill by a river]"


@pytest.mark.parametrize(
    ("name", "file", "value", "message"),
    [
        ("locomo", "locomo10.json", {"sample_id": 1}, "is dict, not a list"),
        ("locomo", "locomo10.json", [{"sample_id": "c", "qa": []}], r"\[0\].conversation: is NoneType, not an object"),
        ("locomo", "other.json", [], r"holds no locomo\*\.json"),
        ("mtrag", "RAG.jsonl", [{"turn": 1, "input": []}], r"RAG.jsonl:1.input: is empty"),
        ("mtrag", "RAG.jsonl", [], "holds no question"),
        ("mtrag", "RAG.jsonl", [3], "RAG.jsonl:1: is int, not an object"),
        ("qasper", "qasper-dev-v0.3.json", {"p": {"title": ["x"]}}, "p.title: is list; it should be a string"),
        ("multihoprag", "corpus.json", [{"title": "t"}], "holds no MultiHopRAG.json"),
        ("narrativeqa", "documents.csv", "a,b", "holds no|has no column document_id|is not"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, name: str, file: str, value: Any, message: str) -> None:
    written(tmp_path / file, value)
    with pytest.raises(TraceError, match=message):
        read_workload(f"{name}:{tmp_path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [("mtrag:hub", "is not on the hub"), ("qasper:no/where", "does not exist"), ("squad:here", "squad:here")],
)
def test_names_and_places(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_workload(text)


def test_passages_lose_no_word_and_keep_the_limit() -> None:
    paragraphs = ["one two three", "", "word " * 300, "x" * 50, "last words here"]
    packed = passages(paragraphs, limit=40)
    assert " ".join(packed).split() == " ".join(paragraphs).split()
    assert all(estimate_tokens(text) <= 40 for text in packed)
    assert packed[0].startswith("one two three")


def test_lists_of_columns_are_turned() -> None:
    row = {"id": "p", "full_text": {"section_name": ["A", "B"], "paragraphs": [["x"], ["y", "z"]]}, "n": {"a": 1}}
    sections = [{"section_name": "A", "paragraphs": ["x"]}, {"section_name": "B", "paragraphs": ["y", "z"]}]
    assert _turned(row) == {"id": "p", "full_text": sections, "n": {"a": 1}}


def test_a_trace_of_a_data_set_is_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"locomo:{written(tmp_path / 'locomo10.json', TALK)}"
    folder, numbers = tmp_path / "text", tmp_path / "ids.jsonl.gz"
    assert main(["trace", source, "--texts", str(folder), "-o", str(numbers)]) == 0
    told = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[-1:].isdigit())
    assert (told["requests"], told["with an answer"], told["nearest overlap"]) == ("2", "2", "0.000")
    whole, again = read_workload(source), read_workload(folder)
    for mine, theirs in zip(again.requests, whole.requests, strict=True):
        assert (mine.query, mine.answers, mine.evidence) == (theirs.query, theirs.answers, theirs.evidence)
        assert (mine.session_id, mine.turn) == (theirs.session_id, theirs.turn)
        assert [b.text for b in mine.request.blocks] == [b.text for b in theirs.request.blocks]
    counted = [[b.tokens for b in entry.request.blocks] for entry in read_workload(numbers).requests]
    assert counted == [[b.tokens for b in entry.request.blocks] for entry in again.requests]
