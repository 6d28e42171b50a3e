"""The study of attention, but for the model: questions, sums over tokens, and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.attention import DOCUMENTS, Looked, Span, _less, _shares, _to, questions
from benchmarks.attention_page import LAYERS, PAGE, PLACES, write


def test_questions_are_made_from_the_seed_and_answered_by_their_first_document() -> None:
    made = list(questions(5))
    assert made == list(questions(7))[:5] != list(questions(5, seed=1))
    for asked in made:
        assert len(set(asked.documents)) == DOCUMENTS
        good = asked.answer.removesuffix(".").split()[-1]
        assert [good in text for text in asked.documents] == [True] + [False] * (DOCUMENTS - 1)


def test_attention_to_documents_is_summed_over_their_tokens_and_averaged_over_the_source() -> None:
    attention = np.arange(2 * 6 * 6, dtype=float).reshape(2, 6, 6)
    found = _to(attention, Span(4, 6), [Span(0, 2), Span(2, 3)])
    assert found.shape == (2, 2)
    assert found[0].tolist() == [(24 + 25 + 30 + 31) / 2, (26 + 32) / 2]
    assert _shares(np.array([1.0, 3.0])).tolist() == [0.25, 0.75]


def test_likelihoods_are_compared_question_by_question() -> None:
    none = np.zeros(1)
    looks = [Looked(none, None, none, 0.0, value) for value in (-1.0, -2.0, -3.0)]
    more = [look._replace(likelihood=look.likelihood + 0.5) for look in looks]
    assert _less(looks, more) == [0.5, 0.5, 0.5]


def test_the_page_tells_the_figures(tmp_path: Path) -> None:
    grid = (np.eye(DOCUMENTS) / 2 + 1 / 16).tolist()
    each = [-1.0 - place / 10 for place in range(DOCUMENTS)]
    found = {
        "model": "a model",
        "questions": 3,
        "documents": DOCUMENTS,
        "answer_to_documents": {"plain": grid, "annotated": grid},
        "annotation_to_documents": grid,
        "layers_at_middle": {"plain": grid, "annotated": (np.array(grid) * 2).tolist()},
        "likelihood": {"plain": each, "annotated": each},
        "likelihood_against_first_place": {"plain": [[value + 1, -1.0, 0.0] for value in each]},
        "likelihood_against_plain": {"annotated": [[0.25, 0.125, 0.5]] * DOCUMENTS, "misled": [[0, -1, 1]] * DOCUMENTS},
    }
    write(found, tmp_path)
    page = (tmp_path / PAGE).read_text()
    shares = "| 4 | 0.562 | 0.562 | 0.562 | -1.300 | -1.300 |"
    assert f"{shares} +0.250 (+0.125 to +0.500) | +0.000 (-1.000 to +1.000) | -0.300 (-1.000 to +0.000) |" in page
    for name in (PLACES, LAYERS):
        assert name in page
        assert (tmp_path / name).read_text().startswith("<?xml")
