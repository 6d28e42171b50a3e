from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixpilot import pieces
from prefixpilot.errors import InvalidInputError
from prefixpilot.pieces import UNCHANGED, Form, Slot, Span, apply, composed, fill, permuted


def test_examples() -> None:
    assert doctest.testmod(pieces).failed == 0


def test_an_emptied_string_is_not_an_unchanged_one() -> None:
    form = fill(3, [Slot(Span(0, 3), ())])
    assert form != UNCHANGED
    assert apply(form, "abc") == ""


def test_slots_at_one_place_are_filled_in_the_order_given() -> None:
    assert apply(fill(2, [Slot(Span(1, 1), ("x",)), Slot(Span(1, 1), ("y",))]), "ab") == "axyb"


@pytest.mark.parametrize("slots", [[Slot(Span(0, 3), ()), Slot(Span(2, 4), ())], [Slot(Span(0, 9), ())]])
def test_slots_that_overlap_or_reach_out_are_refused(slots: list[Slot]) -> None:
    with pytest.raises(InvalidInputError, match="slots"):
        fill(5, slots)


def test_a_form_of_another_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="form"):
        apply((Span(0, 4),), "abc")


@given(st.data())
def test_a_permutation_keeps_every_character(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.text("abcd\n", min_size=1), min_size=1, max_size=6))
    joint = data.draw(st.sampled_from(["", " ", "\n\n"]))
    text = "<" + joint.join(words) + ">"
    spans, at = [], 1
    for word in words:
        spans.append(Span(at, at + len(word)))
        at += len(word) + len(joint)
    order = data.draw(st.permutations(range(len(words))))
    expected = "<" + joint.join(words[i] for i in order) + ">"
    assert apply(fill(len(text), permuted(spans, order)), text) == expected


def forms_of(length: int) -> st.SearchStrategy[Form]:
    span = st.tuples(st.integers(0, length), st.integers(0, length)).map(lambda ends: Span(*sorted(ends)))
    return st.lists(st.one_of(span, st.text("xyz", max_size=3)), max_size=5).map(tuple)


@given(st.data(), st.text("abcdef", max_size=8))
def test_a_composed_form_does_one_after_the_other(data: st.DataObject, text: str) -> None:
    inner = data.draw(forms_of(len(text)))
    between = apply(inner, text)
    outer = data.draw(forms_of(len(between)))
    assert apply(composed(outer, inner), text) == apply(outer, between)


def test_a_form_that_reaches_beyond_what_the_other_makes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="outer"):
        composed((Span(0, 4),), (Span(0, 2), "c"))
