"""Scores of answers, on the cases by which SQuAD's own are known, and their laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot.bench.quality.scoring import evidence_recall, exact_match, f1, normalized

TEXTS = st.lists(st.sampled_from(["The", "mill,", "river!", "a", "old", "OLD", "1891"]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("answer", "references", "exact", "overlap"),
    [
        ("The Mill!", ["mill"], 1, 1),
        ("an  old\nmill", ["Old mill."], 1, 1),
        ("theatre", ["atre"], 0, 0),
        ("the old mill", ["mill", "river"], 0, 2 / 3),
        ("mill mill", ["mill"], 0, 2 / 3),
        ("the", [""], 1, 1),
        ("mill", [""], 0, 0),
        ("mill", [], 0, 0),
    ],
)
def test_exact_match_and_f1(answer: str, references: list[str], exact: float, overlap: float) -> None:
    assert exact_match(answer, references) == exact
    assert f1(answer, references) == pytest.approx(overlap)


@given(TEXTS, TEXTS)
def test_laws(answer: str, reference: str) -> None:
    assert normalized(normalized(answer)) == normalized(answer)
    assert 0 <= f1(answer, [reference]) <= 1
    assert f1(answer, [reference]) == f1(reference, [answer])
    assert (exact_match(answer, [reference]) == 1) <= (f1(answer, [reference]) == 1)
    assert f1(answer, [reference, answer]) == 1


def test_evidence_recall_counts_what_is_unknown() -> None:
    assert evidence_recall("the mill stands", ["mill", "bridge", None, "stands"]) == 0.5
    assert evidence_recall("the mill stands", []) is None
